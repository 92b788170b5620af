#include <atomic>
#include <semaphore>
#include <thread>
#include <utility>

#include "catalogue/open.h"
#include "crash/s3_faults.h"
#include "varve/catalogue.h"

namespace varve::test {
namespace {

/// What is wrong with a checkpoint whose index is to be made again.
enum class Lost : std::uint8_t { kRecord, kRecordDamaged, kManifest, kManifestDamaged, kBoth };

class S3Repair : public S3Faults {
 protected:
  /// Saves the new state over the old one, and loses part of its index.
  void SaveAndLose(S3Server& server, Storage& storage, Lost lost) {
    ASSERT_TRUE(IsOk(SaveBoth(old_, storage, true)));
    ASSERT_TRUE(IsOk(SaveBoth(new_, storage, true)));
    for (const auto& [name, content] : server.objects()) {
      const bool record = name.ends_with(".json");
      const bool manifest = name.ends_with("/manifest.bin");
      if ((record && (lost == Lost::kRecord || lost == Lost::kBoth)) ||
          (manifest && (lost == Lost::kManifest || lost == Lost::kBoth))) {
        ASSERT_TRUE(IsOk(storage.Remove("s3://" + name)));
      } else if ((record && lost == Lost::kRecordDamaged) ||
                 (manifest && lost == Lost::kManifestDamaged)) {
        std::string damaged = content;
        damaged[damaged.size() / 2] ^= 1;
        server.Put(name, damaged);
      }
    }
  }

  static constexpr Lost kAll[] = {Lost::kRecord, Lost::kRecordDamaged, Lost::kManifest,
                                  Lost::kManifestDamaged, Lost::kBoth};
};

TEST_F(S3Repair, MakesTheIndexAgainFromTheDataFiles) {
  for (const Lost lost : kAll) {
    S3Server server;
    const auto storage = Open(server);
    SaveAndLose(server, *storage, lost);
    EXPECT_FALSE(ReadContent(kS3Path, *storage).ok());
    const auto report = Repair(kS3Path, *storage);
    ASSERT_TRUE(IsOk(report));
    EXPECT_TRUE(report->changed);
    EXPECT_EQ(Seen(*storage), 2);
    const auto again = Repair(kS3Path, *storage);
    ASSERT_TRUE(IsOk(again));
    EXPECT_FALSE(again->changed);
    EXPECT_TRUE(IsOk(SaveBoth(old_, *storage, true)));
    EXPECT_EQ(Seen(*storage), 1);
  }
}

TEST_F(S3Repair, LeavesASaveThatIsPublishedMeanwhile) {
  S3Server server;
  const auto storage = Open(server);
  SaveAndLose(server, *storage, Lost::kManifestDamaged);
  auto record = ReadCommitRecord(*storage, kS3Path);
  ASSERT_TRUE(IsOk(record));
  SaveAndLose(server, *storage, Lost::kRecordDamaged);
  record->writer = "another save";
  std::binary_semaphore wanted(0);
  std::atomic<bool> published{false};
  std::jthread other([&] {
    wanted.acquire();
    server.Put("bucket/run/step-1/varve-5.json", EncodeCommitRecord(*record));
    published = true;
  });
  server.SetScript([&, asked = false](const S3Request& request, int) mutable {
    if (request.method != "PUT" || !request.path.ends_with("/varve-5.json")) {
      return S3Fault::kNone;
    }
    if (!std::exchange(asked, true)) {
      wanted.release();
    }
    return published ? S3Fault::kNone : S3Fault::kUnavailable;
  });
  const Status repaired = Repair(kS3Path, *storage).status();
  wanted.release();
  other.join();
  EXPECT_TRUE(
      FailsWith(repaired, StatusCode::kFailedPrecondition, {"was published meanwhile; it stays"}));
  server.SetScript({});
  const auto now = ReadCommitRecord(*storage, kS3Path);
  ASSERT_TRUE(IsOk(now));
  EXPECT_EQ(*now, *record);
}

TEST_F(S3Repair, TakesNoSaveOfWhichAFileIsMissing) {
  S3Server server;
  const auto storage = Open(server);
  SaveAndLose(server, *storage, Lost::kBoth);
  for (const auto& [name, content] : server.objects()) {
    if (name.find("data-00001-of-") != std::string::npos) {
      ASSERT_TRUE(IsOk(storage->Remove("s3://" + name)));
    }
  }
  EXPECT_TRUE(FailsWith(Repair(kS3Path, *storage), StatusCode::kFailedPrecondition,
                        {"data files of rank 1", "are missing"}));
}

}  // namespace
}  // namespace varve::test
