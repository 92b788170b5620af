// A whole save and load by several ranks as threads, on the real file system: the test that runs
// every thread of the engine at once, for the thread sanitizer above all.

#include <cstddef>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "tensor/box.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve::round_trip_test {
namespace {

constexpr std::uint64_t kRows = 1024;
constexpr std::uint64_t kColumns = 1500;  // 6 MB: several checksum blocks, not a multiple of one.

/// Runs `work(coordinator)` on `size` threads that are each other's ranks.
template <class Work>
void OnRanks(int size, Work work) {
  auto ranks = MakeInProcessCoordinators(size);
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&work, &rank] { work(*rank); });
  }
}

Box RowsOf(int rank, int size) {
  const std::uint64_t low =
      kRows * static_cast<std::uint64_t>(rank) / static_cast<std::uint64_t>(size);
  const std::uint64_t high =
      kRows * static_cast<std::uint64_t>(rank + 1) / static_cast<std::uint64_t>(size);
  return {{low, 0}, {high - low, kColumns}};
}

Box ColumnsOf(int rank, int size) {
  const Box rows = RowsOf(rank, size);
  return {{0, rows.offsets[0] * kColumns / kRows},
          {kRows, (rows.offsets[0] + rows.sizes[0]) * kColumns / kRows -
                      rows.offsets[0] * kColumns / kRows}};
}

/// Returns a box whose element (r, c) is r * kColumns + c.
std::vector<std::uint32_t> Filled(const Box& box) {
  std::vector<std::uint32_t> data;
  for (std::uint64_t r = 0; r < box.sizes[0]; ++r) {
    for (std::uint64_t c = 0; c < box.sizes[1]; ++c) {
      data.push_back(
          static_cast<std::uint32_t>((box.offsets[0] + r) * kColumns + box.offsets[1] + c));
    }
  }
  return data;
}

Status SaveRows(const std::string& path, Coordinator& ranks, bool overwrite = false) {
  const Box box = RowsOf(ranks.rank(), ranks.size());
  const auto sharded = Filled(box);
  std::vector<float> same(300'000);
  std::iota(same.begin(), same.end(), 0.0F);
  State state;
  state.tensors.push_back(
      {"sharded", DType::kUInt32, {kRows, kColumns}, box, HostMemory{sharded.data()}});
  state.tensors.push_back(
      {"same", DType::kFloat32, {same.size()}, WholeBox({same.size()}), HostMemory{same.data()}});
  state.objects.push_back({"step", EncodeValue(Value::Int(7))});
  return Save(state, path, {.overwrite = overwrite ? Overwrite::kAlways : Overwrite::kNever}, ranks)
      .status();
}

TEST(SaveLoad, RowsSavedByThreeRanksLoadAsColumnsOnTwo) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/step-7";
  OnRanks(3, [&](Coordinator& ranks) { EXPECT_EQ(SaveRows(path, ranks).ToString(), "Ok"); });
  OnRanks(2, [&](Coordinator& ranks) {
    const Box box = ColumnsOf(ranks.rank(), ranks.size());
    std::vector<std::uint32_t> sharded(Volume(box.sizes));
    std::vector<float> same(300'000);
    const auto reader = CheckpointReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    LoadRequest request;
    request.targets.push_back(
        {"sharded", DType::kUInt32, {kRows, kColumns}, box, sharded.data(), {}});
    request.targets.push_back(
        {"same", DType::kFloat32, {same.size()}, WholeBox({same.size()}), same.data(), {}});
    request.objects.emplace_back("step");
    const auto report = Load(**reader, request, {}, ranks);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(sharded, Filled(box));
    EXPECT_EQ(same.back(), 299'999.0F);
  });
  const auto verified = Verify(path);
  ASSERT_TRUE(verified.ok());
  EXPECT_TRUE(verified->clean());
}

TEST(SaveLoad, OneRowOfALargeChunkReadsOnlyItsBlock) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/step-7";
  OnRanks(1, [&](Coordinator& ranks) { EXPECT_EQ(SaveRows(path, ranks).ToString(), "Ok"); });
  const auto reader = CheckpointReader::Open(path);
  ASSERT_TRUE(reader.ok());
  std::vector<std::uint32_t> row(kColumns);
  const TargetTensor target{
      "sharded", DType::kUInt32, {kRows, kColumns}, {{5, 0}, {1, kColumns}}, row.data(), {}};
  const auto read = (*reader)->ReadTensors({&target, 1}, {});
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, std::uint64_t{1} << 20);  // One checksum block for one row.
  EXPECT_EQ(row, Filled({{5, 0}, {1, kColumns}}));
}

std::vector<std::string> NamesOf(const std::vector<Phase>& phases) {
  std::vector<std::string> names;
  for (const Phase& phase : phases) {
    EXPECT_GE(phase.seconds, 0) << phase.name;
    names.push_back(phase.name);
  }
  return names;
}

TEST(SaveLoad, AReportHasThePhasesAndOnTheCoordinatorTheSlowestRankOfEach) {
  const test::TempDir dir;
  OnRanks(2, [&](Coordinator& ranks) {
    std::vector<std::uint32_t> mine(std::size_t{1} << (ranks.rank() == 1 ? 22 : 10));
    State state;
    state.tensors.push_back({"of rank " + std::to_string(ranks.rank()),
                             DType::kUInt32,
                             {mine.size()},
                             WholeBox({mine.size()}),
                             HostMemory{mine.data()}});
    SaveOptions slow;
    slow.max_write_bandwidth = std::uint64_t{64} << 20;
    const auto saved = Save(state, dir.path() + "/c", slow, ranks);
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_EQ(NamesOf(saved->phases),
              (std::vector<std::string>{"plan", "exchange", "write", "sync", "commit"}));
    EXPECT_EQ(saved->phases[2].bytes, saved->bytes_written);
    if (ranks.rank() == 0) {
      EXPECT_EQ(saved->phases[2].slowest_rank, 1U) << "it has 16 MiB to write";
      EXPECT_GT(saved->phases[2].slowest_seconds, saved->phases[2].seconds);
    } else {
      EXPECT_FALSE(saved->phases[2].slowest_rank);
    }
    const auto reader = CheckpointReader::Open(dir.path() + "/c");
    ASSERT_TRUE(reader.ok());
    std::vector<std::uint32_t> read(std::size_t{1} << 22);
    LoadRequest request;
    request.targets.push_back(
        {"of rank 1", DType::kUInt32, {read.size()}, WholeBox({read.size()}), read.data(), {}});
    const auto loaded = Load(**reader, request, {.strict = Strict::kOff}, ranks);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_EQ(NamesOf(loaded->phases),
              (std::vector<std::string>{"open", "plan", "exchange", "read", "verify", "copy"}));
    EXPECT_EQ(loaded->phases[3].bytes, loaded->bytes_read);
  });
}

TEST(SaveLoad, SavesOfDifferentNamesRunAtTheSameTime) {
  const test::TempDir dir;
  std::vector<std::jthread> jobs;
  for (int job = 0; job < 3; ++job) {
    jobs.emplace_back([&dir, job] {
      const std::string path = dir.path() + "/step-" + std::to_string(job);
      OnRanks(2, [&](Coordinator& ranks) {
        EXPECT_EQ(SaveRows(path, ranks).ToString(), "Ok");
        EXPECT_EQ(SaveRows(path, ranks, /*overwrite=*/true).ToString(), "Ok");
      });
    });
  }
  jobs.clear();
  const auto entries = ListCheckpoints(dir.path());
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ(entries->size(), 3U);
}

}  // namespace
}  // namespace varve::round_trip_test
