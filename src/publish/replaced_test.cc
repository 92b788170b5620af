// Files beside a checkpoint that is overwritten: kept, copied, refused, moved and reported.

#include "publish/replaced.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/other_files.h"
#include "storages/faulty.h"
#include "storages/memory.h"
#include "support/dcp_in_place.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"

namespace varve::test::replaced_test {
namespace {

constexpr const char* kPath = "runs/ck";

void Put(Storage& storage, const std::string& name, const std::string& content) {
  EXPECT_TRUE(IsOk(MakeDirectories(storage, ParentPath(name))));
  EXPECT_TRUE(IsOk(WriteWholeFile(storage, name, content, /*exclusive=*/false)));
}

std::string Get(Storage& storage, const std::string& name) {
  auto content = ReadWholeFile(storage, name, kMaxCopiedBytes);
  return content.ok() ? *content : content.status().ToString();
}

/// Writes a directory that looks like a DCP checkpoint: no test reads its content.
void PutCheckpoint(Storage& storage, const std::string& content) {
  Put(storage, JoinPath(kPath, ".metadata"), content);
  Put(storage, JoinPath(kPath, "__0_0.distcp"), content);
}

Result<std::unique_ptr<Commit>> Begin(Storage& storage, std::uint8_t number) {
  return Commit::Begin(storage, kPath, {.id = SaveId{{number}}, .overwrite = Overwrite::kAlways});
}

/// Publishes a new "checkpoint" of two files.
Status Finish(Storage& storage, Commit& commit, const std::string& content) {
  Put(storage, JoinPath(commit.staging(), "__0_0.distcp"), content);
  DataFile file;
  file.name = "__0_0.distcp";
  file.size = content.size();
  return commit.Publish({file}, {{".metadata", content}});
}

Status Overwrite(Storage& storage, const std::string& content) {
  VARVE_ASSIGN_OR_RETURN(const auto commit, Begin(storage, 1));
  return Finish(storage, *commit, content);
}

TEST(OverwriteKeepsOtherFiles, HuggingFaceFolderBesideAnIndexThatNamesNoFile) {
  MemoryStorage storage;
  const auto index = EncodeDcpIndex(Metadata{.format = Format::kDcp});
  ASSERT_TRUE(IsOk(index));
  Put(storage, "runs/ck/.metadata", *index);  // Of an empty state.
  Put(storage, "runs/ck/model.safetensors.index.json", R"({"weight_map": {"w": "w.safetensors"}})");
  Put(storage, "runs/ck/w.safetensors", "exported");
  ASSERT_TRUE(IsOk(Overwrite(storage, "new")));
  EXPECT_EQ(Get(storage, "runs/ck/.metadata"), "new");
  EXPECT_EQ(Get(storage, "runs/ck/w.safetensors"), "exported");
}

TEST(OverwriteKeepsOtherFiles, AsTheVeryFilesTheyWere) {
  MemoryStorage storage;
  PutCheckpoint(storage, "old");
  Put(storage, "runs/ck/config.json", "{}");
  Put(storage, "runs/elsewhere", "-");
  ASSERT_TRUE(IsOk(storage.Remove("runs/elsewhere")));
  ASSERT_TRUE(IsOk(storage.extras().hard_links->Link("runs/ck/config.json", "runs/elsewhere")));
  Put(storage, "runs/ck/__7_0.distcp", "stale");
  ASSERT_TRUE(IsOk(Overwrite(storage, "new")));
  EXPECT_EQ(Get(storage, "runs/ck/.metadata"), "new");
  const auto one = storage.extras().hard_links->AreOneFile("runs/ck/config.json", "runs/elsewhere");
  ASSERT_TRUE(IsOk(one));
  EXPECT_TRUE(*one);
  EXPECT_FALSE(storage.OpenForRead("runs/ck/__7_0.distcp").ok());
  const auto entries = storage.List("runs/ck");
  ASSERT_TRUE(IsOk(entries));
  EXPECT_EQ(entries->size(), 3U);
}

TEST(OverwriteKeepsOtherFiles, LargeOnesAreRefusedByNameWithoutHardLinks) {
  MemoryStorage storage({.links = false});
  PutCheckpoint(storage, "old");
  Put(storage, "runs/ck/small.txt", "small");
  ASSERT_TRUE(IsOk(Overwrite(storage, "new")));
  EXPECT_EQ(Get(storage, "runs/ck/small.txt"), "small");
  Put(storage, "runs/ck/large.bin", std::string(kMaxCopiedBytes, 'x'));
  EXPECT_TRUE(FailsWith(Begin(storage, 2), StatusCode::kFailedPrecondition,
                        {"runs/ck", "large.bin", "small.txt", "64 MiB", "choose another name"}));
  EXPECT_EQ(Get(storage, "runs/ck/.metadata"), "new");
  EXPECT_EQ(storage.List("runs")->size(), 1U);
}

TEST(OverwriteKeepsOtherFiles, ATokenizerThatWasThereFirst) {
  MemoryStorage storage;
  Put(storage, "runs/ck/tokenizer.json", "{}");
  Put(storage, "runs/ck/special_tokens_map.json", "{}");
  {
    const auto commit = Commit::Begin(storage, kPath, {.id = SaveId{{1}}});
    ASSERT_TRUE(IsOk(commit));
    ASSERT_TRUE(IsOk(Finish(storage, **commit, "new")));
  }
  EXPECT_EQ(Get(storage, "runs/ck/.metadata"), "new");
  EXPECT_EQ(Get(storage, "runs/ck/tokenizer.json"), "{}");
  EXPECT_EQ(storage.List("runs/ck")->size(), 4U);
  EXPECT_EQ(storage.List("runs")->size(), 1U);
  Put(storage, "runs/other/tokenizer.json", "{}");
  Put(storage, "runs/other/notes.txt", "the user's");
  EXPECT_TRUE(FailsWith(
      Commit::Begin(storage, "runs/other", {.id = SaveId{{1}}, .overwrite = Overwrite::kAlways}),
      StatusCode::kFailedPrecondition, {"is not a checkpoint"}));
}

TEST(OverwriteKeepsOtherFiles, ANameThatTheNewCheckpointNeedsIsRefused) {
  MemoryStorage storage;
  Put(storage, "runs/ck/varve.json", "{}");  // Native, with a file of DCP's name beside it.
  Put(storage, "runs/ck/__0_0.distcp", "the user's");
  EXPECT_TRUE(FailsWith(Overwrite(storage, "new"), StatusCode::kFailedPrecondition,
                        {"runs/ck", "__0_0.distcp", "not part of the checkpoint"}));
  EXPECT_EQ(Get(storage, "runs/ck/__0_0.distcp"), "the user's");
  EXPECT_EQ(storage.List("runs")->size(), 1U);
}

TEST(OverwriteKeepsOtherFiles, OneWithTheContentOfTheNewOneIsNotInTheWay) {
  MemoryStorage storage;
  Put(storage, "runs/ck/model.pt", "same");
  Put(storage, "from/model.pt", "same");
  Put(storage, "from/other.pt", "else");
  OtherFile there;
  there.name = "model.pt";
  BroughtFile brought;
  brought.name = "model.pt";
  EXPECT_TRUE(FailsWith(CheckNoneIsTaken(storage, kPath, {there}, {brought}),
                        StatusCode::kFailedPrecondition));
  brought.same_as = "from/model.pt";
  EXPECT_TRUE(IsOk(CheckNoneIsTaken(storage, kPath, {there}, {brought})));
  brought.same_as = "from/other.pt";
  EXPECT_TRUE(FailsWith(CheckNoneIsTaken(storage, kPath, {there}, {brought}),
                        StatusCode::kFailedPrecondition));
}

// In OLMo's layouts a file in a folder tells which files are the checkpoint's: they are no user's
// because that folder could not be listed.
TEST(OverwriteKeepsOtherFiles, NoneIsToldFromTheCheckpointsWhereAFolderCannotBeListed) {
  MemoryStorage memory;
  Put(memory, "runs/ck/config.yaml", "");
  Put(memory, "runs/ck/metadata.yaml", "");
  Put(memory, "runs/ck/model/rank0.pt", "weights");
  FaultyStorage storage(memory);
  const auto found = TakeInventory(storage, kPath);
  ASSERT_TRUE(IsOk(found));
  EXPECT_TRUE(found->others.empty());
  storage.FailAt({.operation = Operation::kList,
                  .number = storage.count(Operation::kList) + 1,  // Behind that of runs/ck.
                  .status = Unavailable("no answer")});
  EXPECT_TRUE(FailsWith(TakeInventory(storage, kPath), StatusCode::kUnavailable, {"no answer"}));
}

TEST(OverwriteKeepsOtherFiles, ADirectoryThatIsNoCheckpointIsNeverReplaced) {
  MemoryStorage storage;
  Put(storage, "runs/ck/model.safetensors", "weights");
  Put(storage, "runs/ck/x.distcp", "no index");
  EXPECT_TRUE(FailsWith(Overwrite(storage, "new"), StatusCode::kFailedPrecondition,
                        {"runs/ck exists and is not a checkpoint"}));
}

TEST(OverwriteKeepsOtherFiles, AFileReplacedMeanwhileStaysAndIsReported) {
  MemoryStorage storage;
  PutCheckpoint(storage, "old");
  Put(storage, "runs/ck/config.json", "1");
  const std::string stale = "runs/.ck.varve-saving-000102030405";
  // An old checkpoint that was exchanged into the staging name, and a file written there since.
  Put(storage, stale + "/.metadata", "older");
  Put(storage, stale + "/__0_0.distcp", "older");
  Put(storage, stale + "/config.json", "2");
  Put(storage, stale + "/late/log.txt", "late");
  auto commit = Begin(storage, 9);
  ASSERT_TRUE(IsOk(commit));
  EXPECT_EQ((*commit)->conflicts(), std::vector<std::string>{stale + "/config.json"});
  EXPECT_EQ(Get(storage, "runs/ck/config.json"), "1");
  EXPECT_EQ(Get(storage, stale + "/config.json"), "2");
  EXPECT_EQ(Get(storage, "runs/ck/late/log.txt"), "late");
  EXPECT_FALSE(storage.OpenForRead(stale + "/__0_0.distcp").ok());
  EXPECT_FALSE(storage.List(stale + "/late").ok());
  ASSERT_TRUE(IsOk(Finish(storage, **commit, "new")));
  commit->reset();  // And the lock with it.
  const auto report = CollectGarbage("runs", DryRun::kNo, storage);
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(report->conflicts, std::vector<std::string>{stale + "/config.json"});
  EXPECT_EQ(Get(storage, stale + "/config.json"), "2");
  // Once its owner has dealt with it the directory goes.
  ASSERT_TRUE(IsOk(storage.Remove(stale + "/config.json")));
  ASSERT_TRUE(IsOk(CollectGarbage("runs", DryRun::kNo, storage)));
  EXPECT_FALSE(storage.List(stale).ok());
}

TEST(OverwriteKeepsOtherFiles, OfAReplacedCheckpointWhenItsSuccessorIsMissing) {
  MemoryStorage storage;
  const std::string stale = "runs/.ck.varve-saving-000102030405";
  Put(storage, stale + "/.metadata", "older");
  Put(storage, stale + "/notes.txt", "mine");
  const auto report = CollectGarbage("runs", DryRun::kNo, storage);
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(report->conflicts, std::vector<std::string>{stale + "/notes.txt"});
  EXPECT_EQ(Get(storage, stale + "/notes.txt"), "mine");
}

TEST(DisplacedCheckpoint, IsNotRemovedForADirectoryThatHoldsNone) {
  MemoryStorage storage;
  Put(storage, "runs/.ck.varve-old/.metadata", "old");
  Put(storage, "runs/ck/notes.txt", "made while the name was free");
  const auto report = CollectGarbage("runs", DryRun::kNo, storage);
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(report->kept, std::vector<std::string>{"runs/.ck.varve-old"});
  EXPECT_TRUE(FailsWith(Begin(storage, 1), StatusCode::kFailedPrecondition, {"not a checkpoint"}));
  EXPECT_EQ(Get(storage, "runs/.ck.varve-old/.metadata"), "old");
  ASSERT_TRUE(IsOk(storage.Remove("runs/ck/notes.txt")));
  ASSERT_TRUE(IsOk(CollectGarbage("runs", DryRun::kNo, storage)));
  EXPECT_EQ(Get(storage, "runs/ck/.metadata"), "old");
}

}  // namespace
}  // namespace varve::test::replaced_test
