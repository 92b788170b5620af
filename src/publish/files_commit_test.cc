#include "publish/files_commit.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "publish/claim.h"
#include "storages/memory.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"

namespace varve::test::files_commit_test {
namespace {

constexpr const char* kPath = "runs/step-1";

using Sizes = std::vector<std::pair<std::string, std::uint64_t>>;

void Put(Storage& storage, const std::string& name, const std::string& content) {
  EXPECT_TRUE(IsOk(MakeDirectories(storage, ParentPath(name))));
  EXPECT_TRUE(IsOk(WriteWholeFile(storage, name, content)));
}

Result<std::unique_ptr<FilesCommit>> Begin(Storage& storage, Overwrite overwrite) {
  return FilesCommit::Begin(kPath, {.overwrite = overwrite, .mark = "config.yaml"}, storage);
}

TEST(FilesCommit, GivesFilesInFoldersTheNameAndWritesTheMark) {
  MemoryStorage storage;
  auto commit = Begin(storage, Overwrite::kNever);
  ASSERT_TRUE(IsOk(commit.status()));
  Put(storage, (*commit)->staging() + "/train/rank0.pt", "abc");
  Put(storage, (*commit)->staging() + "/rank0.pt", "");
  EXPECT_FALSE(storage.List(kPath).ok());
  ASSERT_TRUE(IsOk((*commit)->Publish({{"train/rank0.pt", 3}, {"rank0.pt", 0}}, "run: x")));
  EXPECT_EQ(*ReadWholeFile(storage, "runs/step-1/train/rank0.pt", 10), "abc");
  EXPECT_EQ(*ReadWholeFile(storage, "runs/step-1/config.yaml", 10), "run: x");
  commit->reset();
  EXPECT_EQ(storage.List("runs")->size(), 1U);
}

TEST(FilesCommit, RefusesFilesThatAreMissingOrCutShort) {
  for (const Sizes& files :
       {Sizes{{"train/rank0.pt", 4}}, Sizes{{"train/rank1.pt", 3}}, Sizes{{"other/rank0.pt", 3}}}) {
    MemoryStorage storage;
    auto commit = Begin(storage, Overwrite::kNever);
    ASSERT_TRUE(IsOk(commit.status()));
    Put(storage, (*commit)->staging() + "/train/rank0.pt", "abc");
    EXPECT_FALSE((*commit)->Publish(files, "").ok());
    commit->reset();
    EXPECT_FALSE(storage.List(kPath).ok());
    EXPECT_TRUE(storage.List("runs")->empty());
  }
}

TEST(FilesCommit, ReplacesACheckpointOfOlmoOnlyIfAskedTo) {
  MemoryStorage storage;
  Put(storage, "runs/step-1/rank0.pt", "old");
  Put(storage, "runs/step-1/config.yaml", "old");
  EXPECT_TRUE(FailsWith(Begin(storage, Overwrite::kNever), StatusCode::kAlreadyExists));
  auto commit = Begin(storage, Overwrite::kAlways);
  ASSERT_TRUE(IsOk(commit.status()));
  ASSERT_TRUE(IsOk((*commit)->Publish({}, "new")));
  EXPECT_FALSE(ReadWholeFile(storage, "runs/step-1/rank0.pt", 10).ok());
}

TEST(FilesCommit, ReplacesNothingThatLacksTheMark) {
  MemoryStorage storage;
  Put(storage, "runs/step-1/rank0.pt", "somebody's");
  EXPECT_TRUE(FailsWith(Begin(storage, Overwrite::kAlways), StatusCode::kFailedPrecondition));
}

TEST(FilesCommit, ReplacesNoProjectThatHasFoldersOfTheseNames) {
  for (const char* folder : {"model_and_optim", "model"}) {
    MemoryStorage storage;
    for (const std::string name :
         {"config.yaml", "metadata.yaml", "optim/sgd.py", "train/loop.py"}) {
      Put(storage, "runs/step-1/" + name, "somebody's");
    }
    Put(storage, std::string("runs/step-1/") + folder + "/net.py", "somebody's");
    EXPECT_TRUE(FailsWith(Begin(storage, Overwrite::kAlways), StatusCode::kFailedPrecondition));
    EXPECT_TRUE(FailsWith(RemoveCheckpoint("runs/step-1", DryRun::kNo, storage),
                          StatusCode::kFailedPrecondition));
  }
}

}  // namespace
}  // namespace varve::test::files_commit_test
