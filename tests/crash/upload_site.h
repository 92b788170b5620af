/// Where the tests of uploads take place: a directory in memory, an S3 server, and two ranks.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "crash/saves.h"
#include "crash/states.h"
#include "storage/memory.h"
#include "storage/s3/s3_storage.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "varve/upload.h"

namespace varve::test::upload_crash_test {

inline constexpr const char* kFrom = "run/step-1";
inline constexpr const char* kTo = "s3://bucket/run/step-1";
inline constexpr int kRanks = 2;

/// A directory in memory and an object store, told apart by the name.
class TwoStorages final : public Storage, private ConditionalWrites {
 public:
  TwoStorages(Storage& local, Storage& remote)
      : Storage({.hard_links = nullptr,
                 .symbolic_links = nullptr,
                 .empty_directories = nullptr,
                 .file_locks = nullptr,
                 .conditional_writes = this}),
        local_(local),
        remote_(remote) {}
  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override {
    return Of(name).OpenForWrite(name, options);
  }
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override {
    return Of(name).OpenForRead(name);
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& name) override {
    return Of(name).List(name);
  }
  Status MakeDirectory(const std::string& name) override { return Of(name).MakeDirectory(name); }
  Status SyncDirectory(const std::string& name) override { return Of(name).SyncDirectory(name); }
  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override {
    return Of(from).Rename(from, to, mode);
  }
  Status Remove(const std::string& name) override { return Of(name).Remove(name); }
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override {
    return Of(name).Lock(name);
  }

 private:
  bool Serves(const std::string& name) override { return name.starts_with("s3://"); }
  Status WriteIfAbsent(const std::string& name, std::string_view content) override {
    return writes().WriteIfAbsent(name, content);
  }
  Status Replace(const std::string& name, std::string_view content) override {
    return writes().Replace(name, content);
  }
  Result<std::vector<Unfinished>> ListUnfinished(const std::string& name) override {
    return writes().ListUnfinished(name);
  }
  Status RemoveUnfinished(const Unfinished& file) override {
    return writes().RemoveUnfinished(file);
  }
  Result<bool> Prepare(const std::string& name) override { return writes().Prepare(name); }
  std::int64_t NowNs(const std::string& name) override { return writes().NowNs(name); }
  ConditionalWrites& writes() { return *remote_.extras().conditional_writes; }
  Storage& Of(const std::string& name) { return Serves(name) ? remote_ : local_; }

  Storage& local_;
  Storage& remote_;
};

/// A server, and what one process knows of it and of the directory.
struct Site {
  Site() : remote(SettingsOf(server), [] { return s3::Credentials{"key", "secret", "token"}; }) {}

  static s3::Settings SettingsOf(const S3Server& server) {
    s3::Settings settings;
    settings.endpoint = server.endpoint();
    settings.part_bytes = 8192;
    settings.stall = std::chrono::seconds(5);
    settings.retry = {.first = std::chrono::milliseconds(1),
                      .longest = std::chrono::milliseconds(2),
                      .time_limit = std::chrono::milliseconds(5'000)};
    return settings;
  }

  Status Save(const JobState& job, const char* path, bool overwrite,
              Format format = Format::kVarve) {
    return SaveTogether(job, path, std::vector<Storage*>(kRanks, &both), overwrite, false,
                        format)[0];
  }

  /// Uploads by two ranks, which must return the same.
  Result<UploadReport> Upload(const UploadOptions& options = {}) {
    std::vector<Result<UploadReport>> outcomes(kRanks, Internal("not run"));
    auto coordinators = MakeInProcessCoordinators(kRanks);
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        outcomes[rank] = varve::Upload(kFrom, kTo, options, *coordinators[rank], both);
      });
    }
    threads.clear();
    EXPECT_EQ(outcomes[0].status().ToString(), outcomes[1].status().ToString());
    return outcomes[0];
  }

  /// Changes a byte of a file of the local checkpoint.
  void Damage(const std::string& name, std::uint64_t at) {
    const std::string path = JoinPath(kFrom, name);
    auto content = ReadWholeFile(both, path, 1 << 24);
    ASSERT_TRUE(IsOk(content));
    (*content)[at < content->size() ? at : content->size() - 1] ^= 1;
    ASSERT_TRUE(IsOk(WriteWholeFile(both, path, *content, false)));
  }

  S3Server server;
  MemoryStorage local;
  s3::S3Storage remote;
  TwoStorages both{local, remote};
};

/// Returns 0 where there is no checkpoint, else the number of the state that it has; -1 for
/// neither.
inline int Seen(Storage& storage, const std::vector<const JobState*>& states) {
  const auto content = ReadContent(kTo, storage);
  if (!content.ok()) {
    EXPECT_EQ(content.status().code(), StatusCode::kNotFound) << content.status().ToString();
    return 0;
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Content& want = states[i]->content();
    // Of tensors alone DCP has a structure all the same.
    if (content->tensors == want.tensors && content->objects == want.objects) {
      return static_cast<int>(i) + 1;
    }
  }
  return -1;
}

class UploadTo : public testing::Test {
 protected:
  JobState old_{1, kRanks, 200};
  JobState new_{2, kRanks, 200};
};

/// States that other software's layouts can hold.
class UploadOfTensorsTo : public UploadTo {
 protected:
  UploadOfTensorsTo() {
    old_.LeaveTensorsAlone();
    new_.LeaveTensorsAlone();
  }
};

}  // namespace varve::test::upload_crash_test
