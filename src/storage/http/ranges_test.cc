#include "storage/http/ranges.h"

#include <array>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "support/status_matchers.h"

namespace varve::http::ranges_test {
namespace {

using test::FailsWith;
using test::IsOk;

/// A sink for bytes 10 to 19 of a file.
class RangeSinks : public testing::Test {
 protected:
  static HttpResponse Answer(int status, const NameValues& headers) {
    HttpResponse answer;
    answer.status = status;
    answer.headers = headers;
    return answer;
  }
  static NameValues Good() {
    return {{"content-range", "bytes 10-19/100"}, {"etag", "\"1\""}, {"last-modified", "then"}};
  }
  static NameValues With(const std::string& name, const std::string& value) {
    NameValues headers = Good();
    std::erase_if(headers, [&](const auto& header) { return header.first == name; });
    headers.emplace_back(name, value);
    return headers;
  }

  std::string text_ = std::string(10, '\0');
  const std::span<std::byte> bytes_ = std::as_writable_bytes(std::span(text_.data(), 10));
  const std::array<std::span<std::byte>, 3> parts_{bytes_.first(3), bytes_.subspan(3, 0),
                                                   bytes_.subspan(3)};
  const FileVersion version_{"\"1\"", "then", 100};
  RangeSink sink_{10, parts_, version_};
};

TEST_F(RangeSinks, PartsAreFilledInOrderAndAnewByASecondTry) {
  EXPECT_EQ(sink_.Range(), "bytes=10-19");
  ASSERT_TRUE(IsOk(sink_.Begin(Answer(206, Good()))));
  ASSERT_TRUE(IsOk(sink_.Take(AsByteSpan("lost"))));
  EXPECT_FALSE(sink_.complete());
  ASSERT_TRUE(IsOk(sink_.Begin(Answer(206, Good()))));
  ASSERT_TRUE(IsOk(sink_.Take(AsByteSpan("01"))));
  ASSERT_TRUE(IsOk(sink_.Take(AsByteSpan("23456789"))));
  EXPECT_TRUE(sink_.complete());
  EXPECT_EQ(text_, "0123456789");
  EXPECT_TRUE(FailsWith(sink_.Take(AsByteSpan("x")), StatusCode::kDataLoss, {"more bytes"}));
}

TEST_F(RangeSinks, AnotherRangeIsRefused) {
  for (const char* const range :
       {"bytes 11-20/100", "bytes 10-18/100", "bytes 10-190/200", "", "x"}) {
    EXPECT_EQ(sink_.Begin(Answer(206, With("content-range", range))).code(), StatusCode::kDataLoss)
        << range;
  }
}

TEST_F(RangeSinks, AWholeFileInPlaceOfARangeIsTold) {
  EXPECT_EQ(sink_.Begin(Answer(200, {{"content-length", "100"}})).code(), StatusCode::kDataLoss);
  EXPECT_TRUE(sink_.range_ignored());
  ASSERT_TRUE(IsOk(sink_.Begin(Answer(206, Good()))));
  EXPECT_FALSE(sink_.range_ignored());
}

TEST_F(RangeSinks, AnotherVersionIsRefused) {
  for (const auto& [name, value] : NameValues{{"etag", "\"2\""},
                                              {"etag", ""},
                                              {"last-modified", "now"},
                                              {"content-range", "bytes 10-19/101"}}) {
    EXPECT_TRUE(FailsWith(sink_.Begin(Answer(206, With(name, value))),
                          StatusCode::kFailedPrecondition, {"replaced"}))
        << name;
  }
  NameValues headers = Good();
  headers.pop_back();  // Last-Modified may be left out beside an ETag.
  EXPECT_TRUE(IsOk(sink_.Begin(Answer(206, headers))));
}

TEST_F(RangeSinks, AnEncodedBodyIsRefused) {
  EXPECT_TRUE(FailsWith(sink_.Begin(Answer(206, With("content-encoding", "gzip"))),
                        StatusCode::kDataLoss, {"gzip"}));
  EXPECT_TRUE(IsOk(sink_.Begin(Answer(206, With("content-encoding", "identity")))));
}

}  // namespace
}  // namespace varve::http::ranges_test
