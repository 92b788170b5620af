/// For tests of coordinated ranks through a directory: on disk, in memory and in an object store.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "coordinate/directory.h"
#include "storage/s3/s3_storage.h"
#include "storages/memory.h"
#include "support/ranks.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::test {

/// Answers each rank with its own payload and all of them.
inline Result<std::vector<std::string>> Answer(std::vector<std::string> payloads) {
  std::string all;
  for (const std::string& payload : payloads) {
    all += payload;
  }
  for (std::string& payload : payloads) {
    payload += ":" + all;
  }
  return payloads;
}

/// Exchanges "RANK:" and returns the numbers of all ranks.
inline Result<std::string> ExchangeRank(Coordinator& rank, Deadline deadline) {
  return Exchange(rank, "counting", std::to_string(rank.rank()), deadline, Answer);
}

enum class Place : std::uint8_t { kPosix, kMemory, kObjects };

/// Ranks that exchange messages through directories of one storage, of any kind.
class DirectoryRanks : public testing::TestWithParam<Place> {
 protected:
  Storage& storage() {
    if (GetParam() != Place::kObjects) {
      return GetParam() == Place::kPosix ? PosixStorage() : static_cast<Storage&>(memory_);
    }
    if (!objects_) {
      s3::Settings settings;
      settings.endpoint = server_.endpoint();
      objects_ = std::make_unique<s3::S3Storage>(
          settings, [] { return s3::Credentials{"key", "secret", ""}; });
    }
    return *objects_;
  }
  [[nodiscard]] std::string Path(const std::string& name) const {
    return GetParam() == Place::kPosix    ? temporary_ / name
           : GetParam() == Place::kMemory ? name
                                          : "s3://bucket/run/" + name;
  }

  /// Returns rank `rank` of `size` in directory `name`, whose waits end when Hurry was called.
  std::unique_ptr<Coordinator> Rank(int rank, int size, const std::string& name = "channel") {
    return RankOn(storage(), rank, size, name);
  }
  std::unique_ptr<Coordinator> RankOn(Storage& on, int rank, int size,
                                      const std::string& name = "channel") {
    const auto check = [this] {
      return hurry_ ? Status(StatusCode::kCancelled, "in a hurry") : Status::Ok();
    };
    return MakeDirectoryCoordinator(on, Path(name), {rank, size, check});
  }
  World Ranks(int size, const std::string& name = "channel") {
    World world;
    for (int rank = 0; rank < size; ++rank) {
      world.push_back(Rank(rank, size, name));
    }
    return world;
  }

  /// Ends the waits of all ranks, so that rank 0 does not wait for peers that never read.
  void Hurry() { hurry_ = true; }

  [[nodiscard]] bool IsRemoved(const std::string& name = "channel") {
    return storage().List(Path(name)).status().code() == StatusCode::kNotFound;
  }
  std::vector<std::string> Names(const std::string& name = "channel") {
    std::vector<std::string> names;
    const auto entries = storage().List(Path(name));
    EXPECT_TRUE(IsOk(entries));
    for (const DirectoryEntry& entry : entries.ok() ? *entries : std::vector<DirectoryEntry>()) {
      names.push_back(entry.name);
    }
    return names;
  }

 private:
  TempDir temporary_;
  MemoryStorage memory_;
  S3Server server_;
  std::unique_ptr<s3::S3Storage> objects_;
  std::atomic<bool> hurry_{false};
};

inline std::string PlaceName(const testing::TestParamInfo<Place>& place) {
  return place.param == Place::kPosix    ? "Posix"
         : place.param == Place::kMemory ? "Memory"
                                         : "Objects";
}

}  // namespace varve::test
