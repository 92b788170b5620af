// Claims: occupants that a save may replace, links, and removal on request.

#include "publish/claim.h"

#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "crash/matrix.h"
#include "crash/saves.h"
#include "storages/memory.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/catalogue.h"
#include "varve/manage.h"

namespace varve::test::claim_test {
namespace {

constexpr const char* kPath = "runs/step-1";

Status SaveAs(Overwrite overwrite, const JobState& job, const std::string& path, Storage& storage) {
  SaveOptions options = SmallSave(false);
  options.overwrite = overwrite;
  return Save(job.rank(0), path, options, storage).status();
}

std::string DataFileOf(Storage& storage) {
  const auto entries = storage.List(kPath).value();
  for (const DirectoryEntry& entry : entries) {
    if (entry.name.starts_with("data-")) {
      return JoinPath(kPath, entry.name);
    }
  }
  return "none";
}

TEST(OverwriteDamaged, ReplacesOneWithAnyDamage) {
  const JobState old(1, 1);
  const JobState fresh(2, 1);
  MemoryStorage whole;
  ASSERT_TRUE(IsOk(SaveAlone(old, kPath, whole, false)));
  for (int kind = 0; kind < 4; ++kind) {
    const auto storage = whole.AfterKill();
    const std::string data = DataFileOf(*storage);
    std::string content = *ReadWholeFile(*storage, data, 1 << 20);
    content.back() = static_cast<char>(content.back() ^ 1);
    switch (kind) {
      case 0: ASSERT_TRUE(IsOk(WriteWholeFile(*storage, data, content, false))); break;
      case 1: ASSERT_TRUE(IsOk(storage->Remove(data))); break;
      case 2: ASSERT_TRUE(IsOk(storage->Remove("runs/step-1/varve.json"))); break;
      default: ASSERT_TRUE(IsOk(WriteWholeFile(*storage, "runs/step-1/manifest.bin", "", false)));
    }
    ASSERT_TRUE(IsOk(SaveAs(Overwrite::kDamaged, fresh, kPath, *storage))) << kind;
    EXPECT_TRUE(HoldsOneOf(kPath, *storage, {&fresh.content()})) << kind;
    EXPECT_TRUE(HoldsNothingBut({kPath}, *storage)) << kind;
  }
}

TEST(OverwriteDamaged, ReplacesAnIncompleteOne) {
  MemoryStorage storage;
  const JobState two(1, 2);
  ASSERT_TRUE(IsOk(SaveApart(two, 1, {0}, kPath, storage, false)));
  const JobState fresh(2, 1);
  ASSERT_TRUE(IsOk(SaveAs(Overwrite::kDamaged, fresh, kPath, storage)));
  EXPECT_TRUE(HoldsOneOf(kPath, storage, {&fresh.content()}));
}

TEST(OverwriteDamaged, SavesWhereThereIsNothingAndOnlyCoordinated) {
  MemoryStorage storage;
  const JobState job(1, 1);
  ASSERT_TRUE(IsOk(SaveAs(Overwrite::kDamaged, job, kPath, storage)));
  SaveOptions options = SmallSave(false);
  options.overwrite = Overwrite::kDamaged;
  options.coordinate = false;
  EXPECT_TRUE(FailsWith(Save(job.rank(0), "runs/other", options, storage),
                        StatusCode::kInvalidArgument, {"damaged"}));
}

TEST(SaveThroughALink, ReplacesWhatItLeadsTo) {
  const TempDir dir;
  Storage& storage = PosixStorage();
  SymbolicLinks* const links = storage.extras().symbolic_links;
  const JobState old(1, 1);
  const JobState fresh(2, 1);
  ASSERT_TRUE(IsOk(SaveAlone(old, dir / "ck-1", storage, false)));
  ASSERT_TRUE(IsOk(links->MakeLink("ck-1", dir / "latest")));
  ASSERT_TRUE(IsOk(links->MakeLink(dir / "latest", dir / "again")));
  EXPECT_TRUE(
      FailsWith(SaveAlone(fresh, dir / "again", storage, false), StatusCode::kAlreadyExists));
  ASSERT_TRUE(IsOk(SaveAlone(fresh, dir / "again/", storage, true)));
  EXPECT_EQ(*links->ReadLink(dir / "latest"), "ck-1");
  EXPECT_TRUE(HoldsOneOf(dir / "ck-1", storage, {&fresh.content()}));
  EXPECT_EQ(storage.List(dir / "")->size(), 3U);
}

TEST(SaveThroughALink, InACircleIsRefused) {
  const TempDir dir;
  SymbolicLinks* const links = PosixStorage().extras().symbolic_links;
  ASSERT_TRUE(IsOk(links->MakeLink("b", dir / "a")));
  ASSERT_TRUE(IsOk(links->MakeLink("a", dir / "b")));
  EXPECT_TRUE(FailsWith(SaveAlone(JobState(1, 1), dir / "a", PosixStorage(), true),
                        StatusCode::kInvalidArgument, {"circle"}));
}

TEST(SaveAsAHiddenName, IsRefused) {
  MemoryStorage storage;
  const JobState job(1, 1);
  for (const bool coordinate : {true, false}) {
    SaveOptions options = SmallSave(false);
    options.coordinate = coordinate;
    EXPECT_TRUE(FailsWith(Save(job.rank(0), "runs/.ck.varve-old", options, storage),
                          StatusCode::kInvalidArgument, {".ck.varve-old", "name that Varve uses"}));
  }
}

TEST(RemoveCheckpoint, RemovesTheDirectoryAndNamesWhatWasNotPartOfIt) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), kPath, storage, false)));
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, "runs/step-1/notes.txt", "mine")));
  const auto dry = RemoveCheckpoint(kPath, DryRun::kYes, storage);
  ASSERT_TRUE(IsOk(dry));
  EXPECT_EQ(dry->others, std::vector<std::string>{"notes.txt"});
  EXPECT_GT(dry->bytes, 4096U);
  ASSERT_TRUE(IsOk(CheckpointReader::Open(kPath, storage)));
  const auto report = RemoveCheckpoint(kPath, DryRun::kNo, storage);
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(report->bytes, dry->bytes);
  EXPECT_TRUE(storage.List("runs")->empty());
  EXPECT_TRUE(
      FailsWith(RemoveCheckpoint(kPath, DryRun::kNo, storage), StatusCode::kNotFound, {kPath}));
}

TEST(RemoveCheckpoint, RefusesWhatIsNoneAndWhatIsBeingSaved) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(MakeDirectories(storage, "runs/data")));
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, "runs/data/x", "")));
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, "runs/file", "")));
  EXPECT_TRUE(FailsWith(RemoveCheckpoint("runs/data", DryRun::kNo, storage),
                        StatusCode::kFailedPrecondition, {"not a checkpoint"}));
  EXPECT_TRUE(FailsWith(RemoveCheckpoint("runs/file", DryRun::kNo, storage),
                        StatusCode::kFailedPrecondition, {"is a file"}));
  ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), kPath, storage, false)));
  for (const std::string& lock : {LockPath(kPath), RankLockPath(kPath, 3)}) {
    const auto held = storage.Lock(lock);
    EXPECT_TRUE(FailsWith(RemoveCheckpoint(kPath, DryRun::kNo, storage),
                          StatusCode::kFailedPrecondition, {"under way"}))
        << lock;
  }
  EXPECT_TRUE(IsOk(CheckpointReader::Open(kPath, storage)));
}

TEST(UncoordinatedSave, DoesNotHideACheckpointThatAnInterruptedOverwriteHasDisplaced) {
  MemoryStorage storage;
  const JobState old(1, 1);
  ASSERT_TRUE(IsOk(SaveAlone(old, kPath, storage, false)));
  ASSERT_TRUE(IsOk(storage.Rename(kPath, DisplacedPath(kPath), RenameMode::kNoReplace)));
  SaveOptions options = SmallSave(true);
  options.coordinate = false;
  EXPECT_TRUE(FailsWith(Save(JobState(2, 1).rank(0), kPath, options, storage),
                        StatusCode::kAlreadyExists, {kPath, DisplacedPath(kPath), "varve gc"}));
  EXPECT_TRUE(HoldsOneOf(kPath, storage, {&old.content()}));
  ASSERT_TRUE(IsOk(CollectGarbage("runs", DryRun::kNo, storage)));
  EXPECT_TRUE(HoldsOneOf(kPath, storage, {&old.content()}));
  EXPECT_TRUE(HoldsNothingBut({kPath}, storage));
}

TEST(NewestCheckpoint, IsTheWholeOneWithTheHighestStep) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(storage.MakeDirectory("runs")));
  EXPECT_TRUE(FailsWith(NewestCheckpoint("runs", storage), StatusCode::kNotFound,
                        {"no whole checkpoint in runs"}));
  ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), "runs/b", storage, false)));
  ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), "runs/a", storage, false)));
  EXPECT_EQ(*NewestCheckpoint("runs", storage), "runs/a");
  for (const char* name : {"runs/step-9", "runs/step-10", "runs/step-11"}) {
    ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), name, storage, false)));
  }
  ASSERT_TRUE(IsOk(storage.Remove("runs/step-11/manifest.bin")));
  EXPECT_EQ(*NewestCheckpoint("runs", storage), "runs/step-10");
  EXPECT_EQ(*NewestCheckpoint("runs/step-9", storage), "runs/step-9");
  ASSERT_TRUE(
      IsOk(storage.Rename("runs/step-10", DisplacedPath("runs/step-10"), RenameMode::kNoReplace)));
  EXPECT_EQ(*NewestCheckpoint("runs", storage), "runs/step-10");
}

TEST(NewestCheckpoint, AndRemovalTakePathsAsAllFunctionsDo) {
  const TempDir dir;
  ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), dir / "step-1", PosixStorage(), false)));
  EXPECT_EQ(NewestCheckpoint("file://" + dir.path()).value(), dir / "step-1");
  EXPECT_TRUE(FailsWith(NewestCheckpoint("gs://bucket/run"), StatusCode::kInvalidArgument,
                        {"no storage serves gs://"}));
  EXPECT_TRUE(FailsWith(RemoveCheckpoint("gs://bucket/run/step-1", DryRun::kNo),
                        StatusCode::kInvalidArgument, {"no storage serves gs://"}));
  ASSERT_TRUE(IsOk(RemoveCheckpoint("file://" + (dir / "step-1"), DryRun::kNo)));
  EXPECT_EQ(PosixStorage().List(dir.path())->size(), 0U);

  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  EXPECT_TRUE(IsOk(SaveAlone(JobState(1, 1), "run/step-2", PosixStorage(), false)));
  EXPECT_EQ(NewestCheckpoint("run").value(), std::filesystem::current_path() / "run/step-2");
  std::filesystem::current_path(before);
}

TEST(MakeDirectories, SaysWhichDirectoryCannotBeMadeAndWhy) {
  const TempDir dir;
  std::filesystem::create_symlink("nowhere", dir / "link");
  const std::string file = dir / "file";
  ASSERT_TRUE(IsOk(WriteWholeFile(PosixStorage(), file, "x")));
  for (const char* path : {"/link/step-1", "/link/a/b/step-1"}) {
    EXPECT_TRUE(FailsWith(SaveAlone(JobState(1, 1), dir.path() + path, PosixStorage(), false),
                          StatusCode::kUnavailable,
                          {"the directory " + dir / "link", "cannot be made", "No such file"}));
  }
  EXPECT_TRUE(FailsWith(SaveAlone(JobState(1, 1), file + "/step-1", PosixStorage(), false),
                        StatusCode::kInvalidArgument,
                        {"the directory " + file + " cannot be made", "Not a directory"}));
}

TEST(Open, ADirectoryOfCheckpointsIsNamedAsOne) {
  MemoryStorage storage;
  for (const char* name : {"runs/step-9", "runs/step-10"}) {
    ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), name, storage, false)));
  }
  const std::initializer_list<std::string_view> says = {
      "runs is not a checkpoint but a directory of 2 checkpoints", "the newest is runs/step-10",
      "`varve latest runs`"};
  EXPECT_TRUE(
      FailsWith(CheckpointReader::Open("runs", storage).status(), StatusCode::kNotFound, says));
  EXPECT_TRUE(FailsWith(Verify("runs", storage).status(), StatusCode::kNotFound, says));
  ASSERT_TRUE(IsOk(storage.Remove("runs/step-9")));
  EXPECT_TRUE(FailsWith(CheckpointReader::Open("runs", storage).status(), StatusCode::kNotFound,
                        {"a directory of 1 checkpoint: runs/step-10;"}));
  ASSERT_TRUE(IsOk(storage.Remove("runs/step-10")));
  EXPECT_TRUE(FailsWith(CheckpointReader::Open("runs", storage).status(), StatusCode::kNotFound,
                        {"runs is not a checkpoint"}));
}

}  // namespace
}  // namespace varve::test::claim_test
