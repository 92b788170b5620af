#include "save/hf/pieces.h"

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

namespace varve::test::pieces_test {
namespace {

constexpr std::uint64_t kRanks = 64;
constexpr std::uint64_t kRows = 4096;
constexpr std::uint64_t kColumns = 4096;
constexpr std::uint64_t kShardBytes = kRows * kColumns * 2 / kRanks;

/// Returns how many bytes a request asks for; 0 where it names no range.
std::uint64_t BytesAsked(const S3Request& request) {
  const auto range = request.headers.find("range");
  unsigned long begin = 1;
  unsigned long last = 0;
  if (range != request.headers.end()) {
    std::sscanf(range->second.c_str(), "bytes=%lu-%lu", &begin, &last);
  }
  return last + 1 - begin;
}

TEST(Pieces, OfManyRanksAreFetchedOnceAlthoughEachIsSmall) {
  S3Server server;
  std::uint64_t fetched = 0;
  server.SetScript([&](const S3Request& request, int) {
    if (request.method == "GET" && request.path.find("/varve-pieces/data-") != std::string::npos) {
      fetched += BytesAsked(request);
    }
    return S3Fault::kNone;
  });
  s3::Settings settings;
  settings.endpoint = server.endpoint();
  s3::S3Storage storage(settings, [] { return s3::Credentials{"key", "secret", ""}; });
  const std::vector<std::byte> shards(2 * kShardBytes, std::byte{7});
  auto coordinators = MakeInProcessCoordinators(static_cast<int>(kRanks));
  std::vector<std::jthread> threads;
  for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank, coordinator = std::move(coordinators[rank])] {
      const Box mine{{rank * kRows / kRanks, 0}, {kRows / kRanks, kColumns}};
      State state;
      for (const std::uint64_t i : {0U, 1U}) {
        state.tensors.push_back({"layer." + std::to_string(i),
                                 DType::kBFloat16,
                                 {kRows, kColumns},
                                 mine,
                                 HostMemory{shards.data() + i * kShardBytes}});
      }
      SaveOptions options;
      options.format = Format::kSafetensors;
      options.shard_size = kRows * kColumns * 2;
      EXPECT_TRUE(IsOk(Save(state, "s3://bucket/model", options, *coordinator, storage).status()));
    });
  }
  threads.clear();
  const std::uint64_t needed = 2 * kRanks * kShardBytes;
  EXPECT_GE(fetched, needed);
  EXPECT_LE(fetched, needed + needed / 10);
}

}  // namespace
}  // namespace varve::test::pieces_test
