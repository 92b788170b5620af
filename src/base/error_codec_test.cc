#include "base/error_codec.h"

#include <cerrno>

#include <gtest/gtest.h>

namespace varve::error_codec_test {
namespace {

Bytes Encoded(const Status& error) {
  Bytes bytes;
  ByteWriter out(&bytes);
  EncodeError(error, &out);
  return bytes;
}

Status Full() {
  return Status(StatusCode::kOutOfSpace, "write f: no space")
      .With({.path = "/run/f",
             .rank = 3,
             .system_error = ENOSPC,
             .failures = {{3, StatusCode::kOutOfSpace, "write f: no space", "/run/f", ENOSPC},
                          {5, StatusCode::kDataLoss, "torn"}}});
}

TEST(ErrorCodec, KeepsCodeMessageAndDetails) {
  const auto decoded = DecodeError(Encoded(Full()));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->code(), StatusCode::kOutOfSpace);
  EXPECT_EQ(decoded->message(), "write f: no space");
  EXPECT_EQ(decoded->details(), Full().details());
}

TEST(ErrorCodec, KeepsAnErrorWithoutDetailsInOneByteMoreThanItsMessage) {
  const Bytes bytes = Encoded(NotFound("nothing"));
  EXPECT_EQ(bytes, Bytes("\2nothing"));
  const auto decoded = DecodeError(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->ToString(), "NotFound: nothing");
  EXPECT_EQ(decoded->details(), ErrorDetails{});
}

TEST(ErrorCodec, RefusesWhatIsNoError) {
  EXPECT_FALSE(DecodeError({}).has_value());
  EXPECT_FALSE(DecodeError(Bytes(1, '\0')).has_value());
  EXPECT_FALSE(DecodeError(Bytes("\13")).has_value());
  const Bytes whole = Encoded(Full());
  const std::size_t details = whole.size() - Full().message().size();
  for (std::size_t size = 0; size < details; ++size) {
    EXPECT_FALSE(DecodeError(whole.substr(0, size)).has_value()) << size;
  }
}

}  // namespace
}  // namespace varve::error_codec_test
