#include "storage/objects/object_writer.h"

#include <algorithm>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "storage/s3/client.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"

namespace varve::object_writer_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::S3Request;
using test::S3Server;

constexpr std::uint64_t kPart = 1000;

class ObjectWriters : public testing::Test {
 protected:
  static std::span<const std::byte> Bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }
  static std::string Text(std::size_t size) {
    std::mt19937 random(1);
    std::string text(size, '\0');
    std::generate(text.begin(), text.end(), [&] { return static_cast<char>(random()); });
    return text;
  }
  static s3::Settings SettingsOf(const S3Server& server) {
    s3::Settings settings;
    settings.endpoint = server.endpoint();
    settings.retry.time_limit = std::chrono::milliseconds(0);
    return settings;
  }
  std::unique_ptr<WritableFile> Open(bool uploads = true) {
    return MakeObjectWriter(calls_, "b/k", /*size=*/0, {.part_bytes = kPart, .uploads = uploads});
  }
  std::string Stored() { return server_.objects()["b/k"]; }

  S3Server server_;
  ObjectCalls calls_{"s3", std::make_shared<s3::S3Client>(SettingsOf(server_), [] {
                       return s3::Credentials{"key", "secret", ""};
                     })};
};

TEST_F(ObjectWriters, PartsAreOfEqualSizeAndAtMost10000) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  EXPECT_EQ(PartBytes(0, 16 * kMiB), 16 * kMiB);
  EXPECT_EQ(PartBytes(100'000, 8192), 8192U);
  EXPECT_EQ(PartBytes(160'000 * kMiB, 16 * kMiB), 16 * kMiB);
  EXPECT_EQ(PartBytes(160'000 * kMiB + 1, 16 * kMiB), 17 * kMiB);
}

TEST_F(ObjectWriters, WritesOfAnySizeInAnyOrderByThreadsGiveTheFile) {
  for (const std::size_t size : {0, 1, 999, 1000, 1001, 2000, 12'345}) {
    for (const std::size_t step : {1, 7, 400, 1000, 1700, 3000}) {
      if (size / step > 2000) {
        continue;
      }
      const std::string text = Text(size);
      const auto writer = Open(/*uploads=*/step != 400);
      {
        std::vector<std::jthread> threads;
        for (std::size_t thread = 0; thread < 3; ++thread) {
          threads.emplace_back([&, thread] {
            for (std::size_t at = thread * step; at < size; at += 3 * step) {
              const std::size_t now = std::min(step, size - at);
              EXPECT_TRUE(IsOk(writer->WriteAt(at, Bytes(text).subspan(at, now))));
            }
          });
        }
      }
      ASSERT_TRUE(IsOk(writer->Sync(size)));
      EXPECT_TRUE(Stored() == text) << size << " bytes by " << step;
      EXPECT_EQ(server_.open_uploads(), 0U);
    }
  }
}

TEST_F(ObjectWriters, BytesBehindTheSyncedSizeAreCutOff) {
  for (const std::size_t size : {900, 1000, 2500}) {
    const std::string text = Text(size + 96);
    const auto writer = Open();
    ASSERT_TRUE(IsOk(writer->WriteAt(0, Bytes(text))));
    ASSERT_TRUE(IsOk(writer->Sync(size)));
    EXPECT_TRUE(Stored() == text.substr(0, size));
  }
}

TEST_F(ObjectWriters, WhatIsNotWrittenIsZerosAlsoInMemoryThatWasUsed) {
  const std::string text = Text(5000);
  const auto writer = Open();
  ASSERT_TRUE(IsOk(writer->WriteAt(1000, Bytes(text).subspan(1000, 500))));
  ASSERT_TRUE(IsOk(writer->WriteAt(1500, Bytes(text).subspan(1500, 500))));  // Uploaded.
  ASSERT_TRUE(IsOk(writer->WriteAt(3100, Bytes(text).subspan(3100, 100))));
  ASSERT_TRUE(IsOk(writer->Sync(4500)));
  std::string want(4500, '\0');
  std::copy_n(text.begin() + 1000, 1000, want.begin() + 1000);
  std::copy_n(text.begin() + 3100, 100, want.begin() + 3100);
  EXPECT_TRUE(Stored() == want);
}

TEST_F(ObjectWriters, NothingIsVisibleBeforeSync) {
  const auto writer = Open();
  ASSERT_TRUE(IsOk(writer->WriteAt(0, Bytes(Text(2500)))));
  EXPECT_TRUE(server_.objects().empty());
}

TEST_F(ObjectWriters, AWriterThatIsGivenUpLeavesNothing) {
  auto writer = Open();
  ASSERT_TRUE(IsOk(writer->WriteAt(0, Bytes(Text(2500)))));
  EXPECT_EQ(server_.open_uploads(), 1U);
  writer.reset();
  EXPECT_EQ(server_.open_uploads(), 0U);
  EXPECT_TRUE(server_.objects().empty());
}

TEST_F(ObjectWriters, PartsCarryTheirChecksum) {
  const auto writer = Open();
  ASSERT_TRUE(IsOk(writer->WriteAt(0, Bytes("123456789"))));
  ASSERT_TRUE(IsOk(writer->Sync(9)));
  EXPECT_EQ(server_.last_put()["x-amz-checksum-crc32c"], "4waSgw==");  // E3069283
}

TEST_F(ObjectWriters, ACompletionWhoseAnswerIsLostIsFoundOut) {
  server_.SetScript([](const S3Request& request, int) {
    return request.method == "POST" && request.Parameter("uploadId") ? test::S3Fault::kResetAfter
                                                                     : test::S3Fault::kNone;
  });
  const std::string text = Text(2500);
  const auto writer = Open();
  ASSERT_TRUE(IsOk(writer->WriteAt(0, Bytes(text))));
  EXPECT_TRUE(IsOk(writer->Sync(text.size())));
  EXPECT_TRUE(Stored() == text);
}

TEST_F(ObjectWriters, AnOlderObjectOfTheSameSizeIsNotTakenForOneThatWasEndedBySomebody) {
  const std::string older = Text(2500);
  server_.Put("b/k", older);
  server_.SetStand([](const S3Request& request, int) -> std::optional<test::S3Answer> {
    const bool completes = request.method == "POST" && request.Parameter("uploadId");
    return completes ? std::optional(test::S3Answer{404, {}, test::S3ErrorXml("NoSuchUpload")})
                     : std::nullopt;
  });
  const auto writer = Open();
  ASSERT_TRUE(IsOk(writer->WriteAt(0, Bytes(std::string(2500, 'x')))));
  EXPECT_TRUE(FailsWith(writer->Sync(2500), StatusCode::kUnavailable,
                        {"s3://b/k", "404 NoSuchUpload", "not known to be that of this upload"}));
  EXPECT_TRUE(Stored() == older);
}

TEST_F(ObjectWriters, AnAnswerToTheCompletionWithoutSenseIsNoSuccess) {
  server_.SetStand([](const S3Request& request, int) -> std::optional<test::S3Answer> {
    const bool completes = request.method == "POST" && request.Parameter("uploadId");
    return completes ? std::optional(test::S3Answer{200, {}, "<html>a proxy's</html>"})
                     : std::nullopt;
  });
  const auto writer = Open();
  ASSERT_TRUE(IsOk(writer->WriteAt(0, Bytes(Text(2500)))));
  EXPECT_TRUE(FailsWith(writer->Sync(2500), StatusCode::kUnavailable,
                        {"CompleteMultipartUploadResult", "a proxy's"}));
  EXPECT_TRUE(server_.objects().empty());
}

TEST_F(ObjectWriters, APartThatFailsFailsTheWriteAndNamesIt) {
  server_.SetScript([](const S3Request& request, int) {
    return request.Parameter("partNumber") == "2" ? test::S3Fault::kRefused : test::S3Fault::kNone;
  });
  const auto writer = Open();
  EXPECT_TRUE(FailsWith(writer->WriteAt(0, Bytes(Text(2500))), StatusCode::kFailedPrecondition,
                        {"s3://b/k", "part 2", "403", "AccessDenied"}));
}

}  // namespace
}  // namespace varve::object_writer_test
