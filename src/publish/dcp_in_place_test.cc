// Saves into a directory that stays: their numbers, their refusals, the files they remove.

#include "support/dcp_in_place.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "publish/claim.h"
#include "publish/files_commit.h"
#include "storages/faulty.h"
#include "storages/memory.h"
#include "support/status_matchers.h"
#include "varve/checkpoint.h"

namespace varve::test::dcp_in_place_test {
namespace {

constexpr const char* kPath = "runs/ck";

void Put(Storage& storage, const std::string& name, const std::string& content = "-") {
  const std::string path = JoinPath(kPath, name);
  EXPECT_TRUE(IsOk(MakeDirectories(storage, ParentPath(path))));
  EXPECT_TRUE(IsOk(WriteWholeFile(storage, path, content)));
}

std::vector<std::string> Names(Storage& storage) {
  std::vector<std::string> names;
  const auto entries = storage.List(kPath);
  EXPECT_TRUE(IsOk(entries));
  for (std::size_t i = 0; entries.ok() && i < entries->size(); ++i) {
    names.push_back((*entries)[i].name);
  }
  return names;
}

using List = std::vector<std::string>;

Result<std::unique_ptr<FilesCommit>> Begin(Storage& storage, bool overwrite = true,
                                           std::optional<std::uint32_t> rank = {}) {
  return BeginInPlace(storage, kPath, overwrite, rank);
}

TEST(DcpInPlace, FirstNumberFollowsWhatIsThereAndWhatTheIndexNames) {
  MemoryStorage storage;
  EXPECT_EQ((*Begin(storage))->first(), 0U);
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'a')));
  EXPECT_EQ((*Begin(storage))->first(), 1U);
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'b')));
  for (const char* name : {"__0_1.distcp", "__1_1.distcp"}) {
    ASSERT_TRUE(IsOk(storage.Remove(JoinPath(kPath, name))));
  }
  EXPECT_EQ((*Begin(storage))->first(), 2U) << "named, though missing";
  Put(storage, "__5_7.distcp");
  Put(storage, "__0_99999999999999999999999.distcp");
  EXPECT_EQ((*Begin(storage))->first(), 8U);
}

TEST(DcpInPlace, RankCountsItsOwnFilesOnly) {
  MemoryStorage storage;
  Put(storage, "__1_4.distcp");
  EXPECT_EQ((*Begin(storage, true, 0))->first(), 0U);
  EXPECT_EQ((*Begin(storage, true, 1))->first(), 5U);
}

TEST(DcpInPlace, PublishRemovesTheOldCheckpointAndStaleFilesOnly) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'a')));
  for (const char* name : {"__7_3.distcp", "old.distcp", "__4.metadata", ".metadata.tmp",
                           "config.json", "model.safetensors", "model.safetensors.index.json",
                           "tokenizer/__0_0.distcp", "__9_0.distcp/x"}) {
    Put(storage, name);
  }
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'b')));
  EXPECT_EQ(Names(storage),
            (List{".metadata", "__0_4.distcp", "__1_4.distcp", "__9_0.distcp", "config.json",
                  "model.safetensors", "model.safetensors.index.json", "tokenizer"}));
  EXPECT_TRUE(IsOk(storage.OpenForRead("runs/ck/tokenizer/__0_0.distcp")));
  EXPECT_TRUE(IsOk(storage.OpenForRead("runs/ck/__9_0.distcp/x")));
}

TEST(DcpInPlace, PublishKeepsFilesThatCameWhileItWasWritten) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'a')));
  auto commit = Begin(storage);
  ASSERT_TRUE(IsOk(commit));
  Put(storage, "late.distcp");
  ASSERT_TRUE(IsOk(FinishInPlace(storage, **commit, {0, 1}, 'b')));
  commit->reset();
  EXPECT_EQ(Names(storage), (List{".metadata", "__0_1.distcp", "__1_1.distcp", "late.distcp"}));
}

TEST(DcpInPlace, FilesThatTheOldIndexNamedGoWhateverTheirName) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'a')));
  // The same checkpoint by a writer that names its files otherwise.
  auto reader = CheckpointReader::Open(kPath, storage);
  ASSERT_TRUE(IsOk(reader));
  Metadata metadata = (*reader)->metadata();
  for (DataFile& file : metadata.files) {
    const std::string name = "shard-" + std::to_string(file.rank) + ".bin";
    ASSERT_TRUE(IsOk(
        storage.Rename(JoinPath(kPath, file.name), JoinPath(kPath, name), RenameMode::kNoReplace)));
    file.name = name;
  }
  const auto index = EncodeDcpIndex(metadata);
  ASSERT_TRUE(IsOk(index));
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, "runs/ck/.metadata", *index, /*exclusive=*/false)));
  ASSERT_TRUE(IsOk(CheckpointReader::Open(kPath, storage)));
  Put(storage, "shard-9.bin");
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'b')));
  EXPECT_EQ(Names(storage), (List{".metadata", "__0_0.distcp", "__1_0.distcp", "shard-9.bin"}));
}

TEST(DcpInPlace, RankRemovesItsOwnFilesOnly) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveRankInPlace(storage, kPath, 0, 'a')));
  ASSERT_TRUE(IsOk(SaveRankInPlace(storage, kPath, 1, 'a')));
  Put(storage, "__0_7.distcp");
  Put(storage, "__2_7.distcp");
  ASSERT_TRUE(IsOk(SaveRankInPlace(storage, kPath, 0, 'b')));
  EXPECT_EQ(Names(storage),
            (List{"__0.metadata", "__0_8.distcp", "__1.metadata", "__1_0.distcp", "__2_7.distcp"}));
}

TEST(DcpInPlace, RefusesAnIndexThatIsThereWithoutOverwrite) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveRankInPlace(storage, kPath, 1, 'a')));
  EXPECT_TRUE(FailsWith(Begin(storage, false), StatusCode::kAlreadyExists, {"already holds"}));
  EXPECT_TRUE(FailsWith(Begin(storage, false, 1), StatusCode::kAlreadyExists, {"already holds"}));
  EXPECT_TRUE(IsOk(Begin(storage, false, 0)));
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'a')));
  EXPECT_TRUE(
      FailsWith(Begin(storage, true, 0), StatusCode::kFailedPrecondition, {"never be read"}));
}

TEST(DcpInPlace, RefusesCheckpointsThatReadersWouldOpenInstead) {
  for (const char* name : {"varve.json", "data-00000-of-00002-0123456789ab.safetensors"}) {
    MemoryStorage storage;
    Put(storage, name);
    EXPECT_TRUE(FailsWith(Begin(storage), StatusCode::kFailedPrecondition, {"instead"}));
    EXPECT_TRUE(FailsWith(Begin(storage, true, 0), StatusCode::kFailedPrecondition, {"never"}));
    EXPECT_TRUE(FailsWith(Begin(storage, false), StatusCode::kAlreadyExists, {"already holds"}));
    EXPECT_EQ(Names(storage), List{name});
  }
}

TEST(DcpInPlace, SecondSaveAtOnceIsRefusedAndHarmsNothing) {
  MemoryStorage storage;
  const auto first = Begin(storage);
  ASSERT_TRUE(IsOk(first));
  Put(storage, "__0_0.distcp");
  EXPECT_TRUE(FailsWith(Begin(storage), StatusCode::kFailedPrecondition, {"another save"}));
  EXPECT_TRUE(FailsWith(FilesCommit::Begin(kPath, {.overwrite = Overwrite::kAlways}, storage),
                        StatusCode::kFailedPrecondition, {"another save"}));
  EXPECT_TRUE(IsOk(storage.OpenForRead("runs/ck/__0_0.distcp")));
  const auto local = BeginInPlace(storage, "runs/local", true, 3);
  ASSERT_TRUE(IsOk(local));
  EXPECT_TRUE(FailsWith(BeginInPlace(storage, "runs/local", true, 3),
                        StatusCode::kFailedPrecondition, {"another save"}));
  EXPECT_TRUE(IsOk(BeginInPlace(storage, "runs/local", true, 4)));
}

TEST(DcpInPlace, AbandonedSaveRemovesItsOwnFiles) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'a')));
  Put(storage, "config.json");
  {
    const auto commit = Begin(storage);
    ASSERT_TRUE(IsOk(commit));
    WrittenDcp written;
    ASSERT_TRUE(IsOk(WriteRank(storage, kPath, 1, 0, 'b', &written)));
    ASSERT_TRUE(IsOk(WriteRank(storage, kPath, 1, 1, 'b', &written)));
    written.files[1].second += 1;
    EXPECT_TRUE(FailsWith((*commit)->Publish(written.files, "index"), StatusCode::kDataLoss,
                          {"__1_1.distcp of rank 1 has"}));
    written.files[1].first = "__2_1.distcp";
    EXPECT_TRUE(FailsWith((*commit)->Publish(written.files, "index"),
                          StatusCode::kFailedPrecondition, {"rank 2", "not in runs/ck"}));
  }
  EXPECT_EQ(Names(storage), (List{".metadata", "__0_0.distcp", "__1_0.distcp", "config.json"}));
  EXPECT_TRUE(IsOk(CheckpointReader::Open(kPath, storage)));
}

TEST(DcpInPlace, SyncThatFailsAfterTheRenameLeavesTheFilesOfBoth) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'a')));
  FaultyStorage faulty(storage);
  bool renamed = false;
  faulty.SetObserver([&](Operation operation, const std::string& name) {
    if (operation == Operation::kRename) {
      renamed = true;
    } else if (renamed && operation == Operation::kSyncDirectory && name == kPath) {
      faulty.FailAt({operation, faulty.count(operation), true, Unavailable("I/O error")});
    }
  });
  EXPECT_TRUE(
      FailsWith(SaveInPlace(faulty, kPath, 'b'), StatusCode::kUnavailable, {"may not survive"}));
  EXPECT_EQ(Names(storage),
            (List{".metadata", "__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "__1_1.distcp"}));
  EXPECT_TRUE(IsOk(CheckpointReader::Open(kPath, storage)));
}

TEST(DcpInPlace, IndexThatCannotBeReadIsReplaced) {
  MemoryStorage storage;
  Put(storage, ".metadata", "no pickle");
  Put(storage, "config.json");
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'b')));
  EXPECT_TRUE(IsOk(CheckpointReader::Open(kPath, storage)));
}

TEST(DcpInPlace, DirectoriesWithOtherThingsStay) {
  MemoryStorage storage;
  EXPECT_TRUE(DcpReplacesDirectory(kPath, storage));
  ASSERT_TRUE(IsOk(MakeDirectories(storage, kPath)));
  EXPECT_TRUE(DcpReplacesDirectory(kPath, storage));
  ASSERT_TRUE(IsOk(SaveInPlace(storage, kPath, 'a')));
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, InPlaceLockPath(kPath), "")));  // Of a killed save.
  EXPECT_TRUE(DcpReplacesDirectory(kPath, storage));
  Put(storage, "config.json");
  EXPECT_FALSE(DcpReplacesDirectory(kPath, storage));
  Put(storage, "data-00000-of-00002-0123456789ab.safetensors");  // Varve's own comes first.
  EXPECT_TRUE(DcpReplacesDirectory(kPath, storage));
}

}  // namespace
}  // namespace varve::test::dcp_in_place_test
