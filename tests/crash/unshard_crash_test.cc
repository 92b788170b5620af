// An unshard over an older unsharded checkpoint of the same sizes, stopped at each operation and
// run again: the target holds the old states or the new ones, and the new ones when the second run
// has ended. A run that goes on never takes the old checkpoint's files for its own.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "crash/saves.h"
#include "support/small_state.h"
#include "varve/convert.h"

namespace varve::test::unshard_crash_test {
namespace {

constexpr const char* kTarget = "runs/whole";
constexpr const char* kNotes = "runs/whole/notes.txt";

Value Dict(const std::vector<std::pair<std::string, Value>>& items) {
  Value dict{.kind = ValueKind::kDict};
  for (const auto& [key, value] : items) {
    dict.items.push_back({.kind = ValueKind::kStr, .text = key});
    dict.items.push_back(value);
  }
  return dict;
}

/// Saves a sharded checkpoint whose elements all have this value.
Status SaveSource(Storage& storage, const std::string& path, float value) {
  const Value leaf{.kind = ValueKind::kTensorLeaf, .text = "torch"};
  return SmallState()
      .Structure(Dict({{"model", Dict({{"w", leaf}})}, {"optim", Dict({{"m", leaf}})}}))
      .Floats("model.w", {value, value})
      .Floats("optim.m", {value})
      .File("config.yaml", "run: x")
      .Save(storage, path);
}

Status UnshardTo(Storage& storage, const std::string& source) {
  UnshardOptions options;
  options.overwrite = true;
  return Unshard(source, kTarget, options, storage).status();
}

/// Returns the value of the target's elements; -1 where they differ or cannot be read.
float ValueOf(Storage& storage) {
  const auto content = ReadContent(kTarget, storage);
  if (!content.ok()) {
    return -1;
  }
  float first = -1;
  for (const auto& [name, text] : content->tensors) {
    float value = -1;
    std::memcpy(&value, text.data() + text.size() - sizeof(value), sizeof(value));
    if (first >= 0 && value != first) {
      return -1;
    }
    first = value;
  }
  return first;
}

TEST(UnshardCrash, ASecondRunGivesTheNewStatesWhateverTheFirstHasLeft) {
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(SaveSource(memory, "runs/a", 1)));
  ASSERT_TRUE(IsOk(SaveSource(memory, "runs/b", 2)));
  ASSERT_TRUE(IsOk(UnshardTo(memory, "runs/a")));
  ASSERT_TRUE(IsOk(WriteWholeFile(memory, kNotes, "mine")));
  ASSERT_TRUE(IsOk(memory.SyncDirectory(kTarget)));
  ASSERT_EQ(ValueOf(memory), 1);
  const auto base = memory.AfterPowerCut(PowerCut::kKeepAll);
  for (std::uint64_t k = 0;; k += kEvery) {
    const testing::ScopedTrace trace("", 0, "stopped after " + std::to_string(k) + " changes");
    const auto under_test = base->AfterKill();
    FaultyStorage faulty(*under_test);
    faulty.StopAt(k);
    const Status outcome = UnshardTo(faulty, "runs/b");
    for (const Survivor& survivor : Survivors(*under_test, 4)) {
      const testing::ScopedTrace how("", 0, survivor.how);
      const float value = ValueOf(*survivor.storage);
      ASSERT_TRUE(value == 2 || (value == 1 && !outcome.ok()));
      ASSERT_TRUE(IsOk(UnshardTo(*survivor.storage, "runs/b")));
      ASSERT_EQ(ValueOf(*survivor.storage), 2);
      ASSERT_TRUE(IsOk(ReadWholeFile(*survivor.storage, kNotes, 10).status()));
      EXPECT_EQ(survivor.storage->List("runs")->size(), 3U) << "only the three checkpoints";
      EXPECT_EQ(survivor.storage->List(kTarget)->size(), 4U) << "two parts, the mark, the notes";
    }
    if (!faulty.stopped()) {
      EXPECT_TRUE(IsOk(outcome));
      EXPECT_GE(k, 15U);
      return;
    }
    if (HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace varve::test::unshard_crash_test
