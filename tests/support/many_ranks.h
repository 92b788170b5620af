/// A save by many ranks, each of which holds a little of every tensor, and what an S3 server is
/// asked for by those who read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "storage/s3/s3_storage.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "varve/checkpoint.h"
#include "varve/coordinator.h"

namespace varve::test {

/// Threads as ranks of one job, and a server.
class ManyRanks : public testing::Test {
 protected:
  static constexpr std::uint64_t kRanks = 64;
  static constexpr std::uint64_t kRows = 4096;
  static constexpr std::uint64_t kColumns = 4096;
  static constexpr std::uint64_t kTensors = 2;
  static constexpr std::uint64_t kShardBytes = kRows * kColumns * 2 / kRanks;
  static constexpr std::uint64_t kBytes = kTensors * kRanks * kShardBytes;

  ManyRanks() : storage_(At(server_), [] { return s3::Credentials{"key", "secret", ""}; }) {}

  /// Saves on all ranks, with an element of its own for each rank and tensor.
  void SaveAll(const std::string& path, const SaveOptions& options) {
    auto coordinators = MakeInProcessCoordinators(static_cast<int>(kRanks));
    std::vector<std::jthread> threads;
    for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank, coordinator = std::move(coordinators[rank])] {
        std::vector<std::string> shards;
        State state;
        for (std::uint64_t i = 0; i < kTensors; ++i) {
          shards.emplace_back(kShardBytes, static_cast<char>(rank * kTensors + i));
        }
        for (std::uint64_t i = 0; i < kTensors; ++i) {
          const Box mine{{rank * kRows / kRanks, 0}, {kRows / kRanks, kColumns}};
          state.tensors.push_back({"layer." + std::to_string(i),
                                   DType::kBFloat16,
                                   {kRows, kColumns},
                                   mine,
                                   HostMemory{shards[i].data()}});
        }
        EXPECT_TRUE(IsOk(Save(state, path, options, *coordinator, storage_).status()));
      });
    }
  }

  /// Counts the bytes of objects that are asked for from now on, where the key has `part` in it.
  void CountFetched(const std::string& part) {
    server_.SetScript([this, part](const S3Request& request, int) {
      const auto range = request.headers.find("range");
      unsigned long begin = 0;
      unsigned long last = 0;
      if (request.method == "GET" && request.path.find(part) != std::string::npos &&
          range != request.headers.end() &&
          std::sscanf(range->second.c_str(), "bytes=%lu-%lu", &begin, &last) == 2) {
        fetched_ += last + 1 - begin;
      }
      return S3Fault::kNone;
    });
  }

  S3Server server_;
  s3::S3Storage storage_;
  std::uint64_t fetched_ = 0;

 private:
  static s3::Settings At(const S3Server& server) {
    s3::Settings settings;
    settings.endpoint = server.endpoint();
    return settings;
  }
};

}  // namespace varve::test
