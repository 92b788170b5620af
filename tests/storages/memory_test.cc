#include "storages/memory.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/status_matchers.h"

namespace varve::memory_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr PowerCut kAllCuts[] = {
    PowerCut::kKeepAll,  PowerCut::kKeepSynced,    PowerCut::kZeroData, PowerCut::kTruncateData,
    PowerCut::kKeepData, PowerCut::kRandomOrdered, PowerCut::kRandom};

/// Returns the content, or the name of the error.
std::string Read(Storage& storage, const std::string& name) {
  const auto content = ReadWholeFile(storage, name, 1 << 20);
  return content.ok() ? *content : std::string(StatusCodeName(content.status().code()));
}

void Write(Storage& storage, const std::string& name, const std::string& content) {
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, name, content)));
}

/// Writes without syncing.
void WriteOnly(Storage& storage, const std::string& name, const std::string& content) {
  const auto file = storage.OpenForWrite(name, {});
  ASSERT_TRUE(IsOk(file));
  ASSERT_TRUE(IsOk((*file)->WriteAt(0, std::as_bytes(std::span(content)))));
}

TEST(MemoryStorage, SyncedContentUnderASyncedNameSurvivesEveryCut) {
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(memory.MakeDirectory("dir")));
  Write(memory, "dir/file", "content");
  ASSERT_TRUE(IsOk(memory.SyncDirectory("dir")));
  ASSERT_TRUE(IsOk(memory.SyncDirectory("/")));
  for (const PowerCut cut : kAllCuts) {
    EXPECT_EQ(Read(*memory.AfterPowerCut(cut, 7), "dir/file"), "content");
  }
}

TEST(MemoryStorage, EachCutTreatsUnsyncedContentInItsWay) {
  MemoryStorage memory;
  WriteOnly(memory, "file", "content");
  ASSERT_TRUE(IsOk(memory.SyncDirectory(".")));
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kKeepAll), "file"), "content");
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kKeepData), "file"), "content");
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kKeepSynced), "file"), "");
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kTruncateData), "file"), "");
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kZeroData), "file"), std::string(7, '\0'));
}

TEST(MemoryStorage, EachCutTreatsUnsyncedNamesInItsWay) {
  MemoryStorage memory;
  Write(memory, "file", "content");
  for (const PowerCut cut : {PowerCut::kKeepAll, PowerCut::kZeroData, PowerCut::kTruncateData}) {
    EXPECT_EQ(Read(*memory.AfterPowerCut(cut), "file"), "content");
  }
  for (const PowerCut cut : {PowerCut::kKeepSynced, PowerCut::kKeepData}) {
    EXPECT_EQ(Read(*memory.AfterPowerCut(cut), "file"), "NotFound");
  }
}

TEST(MemoryStorage, ADirectoryKeepsItsSyncedEntriesUnderAnyName) {
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(memory.MakeDirectory("staging")));
  Write(memory, "staging/file", "content");
  ASSERT_TRUE(IsOk(memory.SyncDirectory("staging")));
  ASSERT_TRUE(IsOk(memory.Rename("staging", "final", RenameMode::kNoReplace)));
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kKeepSynced), "final/file"), "NotFound");
  ASSERT_TRUE(IsOk(memory.SyncDirectory(".")));
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kKeepSynced), "final/file"), "content");
}

TEST(MemoryStorage, ASyncedNameDoesNotMakeEntriesBelowItDurable) {
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(memory.MakeDirectory("dir")));
  Write(memory, "dir/file", "content");
  ASSERT_TRUE(IsOk(memory.SyncDirectory(".")));
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kKeepSynced), "dir/file"), "NotFound");
}

TEST(MemoryStorage, AnUnsyncedRemovalMayBeUndoneInPart) {
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(memory.MakeDirectory("dir")));
  Write(memory, "dir/a", "a");
  Write(memory, "dir/b", "b");
  ASSERT_TRUE(IsOk(memory.SyncDirectory("dir")));
  ASSERT_TRUE(IsOk(memory.SyncDirectory(".")));
  ASSERT_TRUE(IsOk(memory.Remove("dir")));
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kKeepSynced), "dir/b"), "b");
  bool half = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto survivor = memory.AfterPowerCut(PowerCut::kRandom, seed);
    half = half || (Read(*survivor, "dir/a") == "NotFound" && Read(*survivor, "dir/b") == "b");
  }
  EXPECT_TRUE(half);
}

TEST(MemoryStorage, AnExchangeIsNeverCutInHalf) {
  MemoryStorage memory;
  Write(memory, "a", "1");
  Write(memory, "b", "2");
  ASSERT_TRUE(IsOk(memory.SyncDirectory(".")));
  ASSERT_TRUE(IsOk(memory.Rename("a", "b", RenameMode::kExchange)));
  bool before = false;
  bool after = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto survivor = memory.AfterPowerCut(PowerCut::kRandom, seed);
    const std::string both = Read(*survivor, "a") + Read(*survivor, "b");
    before = before || both == "12";
    after = after || both == "21";
    EXPECT_TRUE(both == "12" || both == "21") << both;
  }
  EXPECT_TRUE(before && after);
}

TEST(MemoryStorage, AnOrderedCutKeepsAFirstPartOfTheChanges) {
  MemoryStorage memory;
  Write(memory, "a", "");
  Write(memory, "b", "");
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto survivor = memory.AfterPowerCut(PowerCut::kRandomOrdered, seed);
    EXPECT_FALSE(survivor->OpenForRead("b").ok() && !survivor->OpenForRead("a").ok());
  }
}

TEST(MemoryStorage, AnOrderedCutKeepsWhatCameBeforeAnySync) {
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(memory.MakeDirectory("dir")));
  Write(memory, "before", "");
  Write(memory, "dir/file", "");
  ASSERT_TRUE(IsOk(memory.SyncDirectory("dir")));  // A journal takes "before" along.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kRandomOrdered, seed), "before"), "");
  }
}

TEST(MemoryStorage, RandomCutsAreRepeatable) {
  MemoryStorage memory;
  for (int i = 0; i < 20; ++i) {
    WriteOnly(memory, std::to_string(i), std::string(10000, 'x'));
  }
  const auto names = [&](std::uint64_t seed) {
    std::string all;
    const auto survivor = memory.AfterPowerCut(PowerCut::kRandom, seed);
    const auto entries = survivor->List(".");
    for (const DirectoryEntry& entry : *entries) {
      all += entry.name + "=" + Read(*survivor, entry.name) + " ";
    }
    return all;
  };
  EXPECT_EQ(names(1), names(1));
  EXPECT_NE(names(1), names(2));
}

TEST(MemoryStorage, APowerCutFreesLocksAndLeavesTheOriginalAlone) {
  MemoryStorage memory;
  const auto lock = memory.Lock("lock");
  ASSERT_TRUE(IsOk(lock));
  const auto survivor = memory.AfterPowerCut(PowerCut::kKeepAll);
  EXPECT_TRUE(IsOk(survivor->Lock("lock")));
  EXPECT_TRUE(FailsWith(memory.Lock("lock"), StatusCode::kFailedPrecondition));
}

TEST(MemoryStorage, AKillFreesLocksButMakesNothingDurable) {
  MemoryStorage memory;
  const auto lock = memory.Lock("lock");
  Write(memory, "file", "content");
  const auto killed = memory.AfterKill();
  EXPECT_TRUE(IsOk(killed->Lock("lock")));
  EXPECT_EQ(Read(*killed, "file"), "content");
  EXPECT_EQ(Read(*killed->AfterPowerCut(PowerCut::kKeepSynced), "file"), "NotFound");
  ASSERT_TRUE(IsOk(killed->SyncDirectory(".")));
  EXPECT_EQ(Read(*killed->AfterPowerCut(PowerCut::kKeepSynced), "file"), "content");
  EXPECT_EQ(Read(*memory.AfterPowerCut(PowerCut::kKeepSynced), "file"), "NotFound");
}

TEST(MemoryStorage, OptionsTakeAbilitiesAway) {
  MemoryStorage memory({.exchange = false, .locks = false, .direct = false, .cached = false});
  Write(memory, "a", "");
  Write(memory, "b", "");
  EXPECT_TRUE(
      FailsWith(memory.Rename("a", "b", RenameMode::kExchange), StatusCode::kUnimplemented));
  EXPECT_TRUE(FailsWith(memory.Lock("lock"), StatusCode::kUnimplemented));
  EXPECT_FALSE(memory.OpenForWrite("c", {.direct = true}).value()->direct());
  EXPECT_FALSE(memory.OpenForRead("a").value()->IsCached(0, 0));
}

}  // namespace
}  // namespace varve::memory_test
