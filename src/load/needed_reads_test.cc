// Saves and loads read each header that they need once, and no others.

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "storages/faulty.h"
#include "storages/memory.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve::needed_reads_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr std::uint64_t kElements = 1000;
constexpr int kRanks = 4;

/// The coordinator of a rank in an uncoordinated save: it refuses messages.
class Apart final : public Coordinator {
 public:
  explicit Apart(int rank) : rank_(rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return kRanks; }
  Status Send(int /*to*/, std::string_view /*message*/, Deadline /*deadline*/) override {
    return Internal("sent a message");
  }
  Result<std::string> Receive(int /*from*/, Deadline /*deadline*/) override {
    return Internal("waited for a message");
  }

 private:
  int rank_;
};

/// Counts the reads of each file.
class CountingStorage {
 public:
  CountingStorage() {
    storage_.SetObserver([this](Operation operation, const std::string& name) {
      const std::scoped_lock lock(mutex_);
      if (operation == Operation::kRead) {
        ++reads_[BaseName(name)];
      }
    });
  }
  Storage& storage() { return storage_; }

  /// Returns the names of the files read since the last call, with the number of reads.
  std::map<std::string, int> Take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(reads_, {});
  }
  std::set<std::string> TakeNames() {
    std::set<std::string> names;
    for (const auto& [name, count] : Take()) {
      names.insert(name);
    }
    return names;
  }

 private:
  MemoryStorage memory_;
  FaultyStorage storage_{memory_};
  std::mutex mutex_;
  std::map<std::string, int> reads_;  // Guarded by mutex_.
};

State StateOf(const std::vector<float>& values, const std::string& name) {
  State state;
  state.tensors.push_back(
      {name, DType::kFloat32, {kElements}, WholeBox({kElements}), HostMemory{values.data()}});
  return state;
}

/// Saves the tensors "w0", "w1", ..., one by each rank of an uncoordinated save.
void SaveApart(Storage& storage, std::uint8_t number, const std::vector<int>& ranks,
               bool overwrite = false) {
  for (const int rank : ranks) {
    const std::vector<float> values(kElements, static_cast<float>(rank));
    Apart apart(rank);
    const SaveOptions options{.overwrite = overwrite ? Overwrite::kAlways : Overwrite::kNever,
                              .coordinate = false,
                              .save_id = SaveId{{number}}};
    ASSERT_TRUE(
        IsOk(Save(StateOf(values, "w" + std::to_string(rank)), "/c", options, apart, storage)));
  }
}

std::string NameOf(std::uint8_t number, int rank) {
  return "data-0000" + std::to_string(rank) + "-of-00004-0" + std::to_string(number) +
         "0000000000.safetensors";
}

void LoadOne(CheckpointReader& reader, const std::string& name, float expected) {
  std::vector<float> loaded(kElements, -1);
  const std::vector<TargetTensor> targets{
      {name, DType::kFloat32, {kElements}, WholeBox({kElements}), loaded.data(), {}}};
  ASSERT_TRUE(IsOk(reader.ReadTensors(targets, {})));
  EXPECT_EQ(loaded, std::vector<float>(kElements, expected));
}

TEST(RankLocalSave, ReadsNoFileOfOtherRanksWhereNoOtherSaveIsThere) {
  CountingStorage counting;
  SaveApart(counting.storage(), 1, {0, 1, 2, 3});
  EXPECT_EQ(counting.TakeNames(), std::set<std::string>());
}

TEST(RankLocalSave, ReadsTheFilesOfOtherSavesOnceItIsCompleteAndNotBefore) {
  CountingStorage counting;
  SaveApart(counting.storage(), 1, {0, 1, 2});
  SaveApart(counting.storage(), 2, {3, 1, 0});
  EXPECT_EQ(counting.TakeNames(), std::set<std::string>());
  SaveApart(counting.storage(), 2, {2});
  EXPECT_EQ(counting.TakeNames().size(), 7U);
  const auto names = counting.storage().List("/c");
  ASSERT_TRUE(IsOk(names));
  EXPECT_EQ(names->size(), 4U);  // The incomplete save's files have been removed.
}

TEST(RankLocalSave, RefusesAndReplacesACompleteSaveByTheNamesOfItsFiles) {
  CountingStorage counting;
  SaveApart(counting.storage(), 1, {0, 1, 2, 3});
  Apart apart(2);
  const std::vector<float> values(kElements);
  const SaveOptions options{.coordinate = false, .save_id = SaveId{{2}}};
  EXPECT_TRUE(FailsWith(Save(StateOf(values, "w"), "/c", options, apart, counting.storage()),
                        StatusCode::kAlreadyExists, {"/c", "overwrite"}));
  EXPECT_EQ(counting.TakeNames(), std::set<std::string>());
  SaveApart(counting.storage(), 3, {0, 1, 2, 3}, true);
  auto reader = CheckpointReader::Open("/c", counting.storage());
  ASSERT_TRUE(IsOk(reader));
  EXPECT_EQ((*reader)->metadata().save_id, SaveId{{3}});
}

TEST(OpenRankLocal, ReadsTheHeadersOfTheCompleteSaveAndOfNoOther) {
  CountingStorage counting;
  SaveApart(counting.storage(), 1, {0, 1, 2, 3});
  SaveApart(counting.storage(), 2, {0, 2}, true);
  (void)counting.Take();
  auto reader = CheckpointReader::Open("/c", counting.storage());
  ASSERT_TRUE(IsOk(reader));
  auto read = counting.Take();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(read[NameOf(1, rank)], 2) << rank;  // Eight bytes, then the header.
    EXPECT_FALSE(read.contains(NameOf(2, rank))) << rank;
  }
  LoadOne(**reader, "w2", 2);
  read = counting.Take();
  EXPECT_EQ(read.size(), 1U);
  EXPECT_EQ(read[NameOf(1, 2)], 1);  // The data; its header has been checked.
}

TEST(OpenCommitted, ReadsTheIndexAloneAndALoadTheFilesThatItNeeds) {
  CountingStorage counting;
  auto ranks = MakeInProcessCoordinators(kRanks);
  {
    std::vector<std::jthread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&] {
        const std::vector<float> values(kElements, static_cast<float>(rank->rank()));
        EXPECT_TRUE(IsOk(Save(StateOf(values, "w" + std::to_string(rank->rank())), "/c", {}, *rank,
                              counting.storage())));
      });
    }
  }
  (void)counting.Take();
  auto reader = CheckpointReader::Open("/c", counting.storage());
  ASSERT_TRUE(IsOk(reader));
  EXPECT_EQ(counting.TakeNames(), (std::set<std::string>{"manifest.bin", "varve.json"}));
  LoadOne(**reader, "w1", 1);
  EXPECT_EQ(counting.TakeNames(), std::set<std::string>{"data-00001-of-00004.safetensors"});
}

TEST(Save, RefusesAnIndexThatWouldBeTooLargeBeforeItReadsData) {
  const test::TempDir dir;
  const Dims shape{std::uint64_t{1} << 42};  // A thousand million checksum blocks.
  bool produced = false;
  State state;
  const Producer producer{[&](std::uint64_t, std::span<std::byte>) {
    produced = true;
    return Unavailable("asked for data");
  }};
  state.tensors.push_back({"w", DType::kUInt8, shape, WholeBox(shape), producer});
  EXPECT_TRUE(FailsWith(Save(state, dir / "c", {.block_bytes = 4096}), StatusCode::kInvalidArgument,
                        {"manifest", "can be written", "checksum blocks"}));
  EXPECT_FALSE(produced);
  const auto names = PosixStorage().List(dir.path());
  ASSERT_TRUE(IsOk(names));
  EXPECT_TRUE(names->empty());
}

}  // namespace
}  // namespace varve::needed_reads_test
