// Runs on a real disk: which steps there are, which is the newest, what prune, pins, quarantine and
// the lock of a run do.

#include <chrono>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue/family.h"
#include "catalogue/names.h"
#include "format/commit_record.h"
#include "support/small_state.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/manage.h"

namespace varve::run_test {
namespace {

using test::FailsWith;
using test::IsOk;
using testing::ElementsAre;
using testing::IsEmpty;

class Run : public testing::Test {
 protected:
  [[nodiscard]] std::string Path(const std::string& name) const { return dir_ / name; }

  void Save(const std::string& name, std::uint64_t attempt = 0, std::uint64_t step = 0,
            std::vector<std::pair<std::string, double>> metrics = {}) {
    test::SmallState state;
    state.Floats("w", {1, 2, 3});
    if (attempt > 0) {
      state.File(std::string(kStepNoteName),
                 EncodeStepNote({step, attempt, std::nullopt, 1000, std::move(metrics)}).value());
    }
    ASSERT_TRUE(IsOk(state.Save(PosixStorage(), Path(name), {.overwrite = Overwrite::kAlways})));
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto steps = ListSteps(dir_.path());
    EXPECT_TRUE(IsOk(steps));
    for (const RunStep& step : steps.ok() ? *steps : std::vector<RunStep>{}) {
      names.push_back(step.name);
    }
    return names;
  }

  /// Returns the names of what was removed.
  std::vector<std::string> Prune(const KeepRules& rules, DryRun dry_run = DryRun::kNo) {
    const auto steps = PruneRun(dir_.path(), rules, {.dry_run = dry_run});
    EXPECT_TRUE(IsOk(steps));
    std::vector<std::string> removed;
    for (const PrunedStep& step : steps.ok() ? *steps : std::vector<PrunedStep>{}) {
      if (step.removed) {
        removed.push_back(step.step.name);
      }
    }
    return removed;
  }

  test::TempDir dir_;
};

TEST_F(Run, ANewestStepOfANewerVarveIsNotPassedOver) {
  Save("step-100");
  Save("step-200");
  Save("step-300");
  const auto write_as_newer = [&](const std::string& name) {
    auto record = ReadCommitRecord(PosixStorage(), Path(name));
    ASSERT_TRUE(IsOk(record));
    record->format_version = kFormatVersion + 1;
    ASSERT_TRUE(IsOk(
        test::Rewrite(PosixStorage(), Path(name) + "/varve.json", EncodeCommitRecord(*record))));
  };
  write_as_newer("step-200");
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-300")) << "an older one may be";
  write_as_newer("step-300");
  EXPECT_TRUE(FailsWith(NewestCheckpoint(dir_.path()), StatusCode::kUnimplemented,
                        {"newest checkpoint", "step-300", "use a newer Varve"}));
  EXPECT_THAT(Names(), ElementsAre("step-100", "step-200", "step-300"));
  EXPECT_EQ(ListSteps(dir_.path()).value().back().state, CheckpointState::kUnsupported);
  EXPECT_THAT(Prune({.last = 1}), IsEmpty()) << "nothing of them is removed or counted";
}

TEST(StepName, IsLettersAndANumberBehindThem) {
  for (const char* name : {"step-00001000", "checkpoint-500", "step500", "global_step120", "17"}) {
    EXPECT_TRUE(IsStepName(name)) << name;
  }
  for (const char* name : {"step-1000-backup", "pretrained", "", "step-", "epoch=3-step=400",
                           "v1.5", ".step-1", "step-1000.old"}) {
    EXPECT_FALSE(IsStepName(name)) << name;
  }
}

TEST(StepNote, ComesBackAsItWasAndRefusesWhatIsNone) {
  const StepNote note{7, 2, 5, 123, {{"accuracy", 0.1}, {"loss", -1e300}}};
  EXPECT_EQ(DecodeStepNote(EncodeStepNote(note).value()).value(), note);
  const auto odd = DecodeStepNote(
      EncodeStepNote({1, 1, {}, 0, {{"a", std::nan("")}, {"b", -INFINITY}}}).value());
  EXPECT_TRUE(std::isnan(odd->metrics[0].second));
  EXPECT_EQ(odd->metrics[1].second, -INFINITY);
  EXPECT_TRUE(FailsWith(EncodeStepNote({1, 1, {}, 0, {{"a", 1}, {"a", 2}}}),
                        StatusCode::kInvalidArgument, {"\"a\" is given twice"}));
  for (const char* text :
       {"", "[]", "{}", "{\"step\": 1, \"attempt\": -1, \"time_ns\": 0}",
        "{\"step\": 1, \"attempt\": 1, \"time_ns\": 0, \"metrics\": {\"a\": {}}}"}) {
    EXPECT_TRUE(FailsWith(DecodeStepNote(text), StatusCode::kDataLoss)) << text;
  }
}

TEST_F(Run, WithoutADirectoryHasNoSteps) {
  EXPECT_THAT(ListSteps(Path("none")).value(), IsEmpty());
  EXPECT_TRUE(FailsWith(ListSteps("gs://bucket/run"), StatusCode::kInvalidArgument));
}

TEST_F(Run, ListsStepsByAttemptThenByStepAndLeavesOthersOut) {
  Save("step-200", 1, 200);
  Save("step-100", 1, 100);
  Save("step-300", 1, 300);
  Save("step-150", 2, 150);
  Save("step-9");
  Save("step-100-backup");
  EXPECT_THAT(Names(), ElementsAre("step-100", "step-200", "step-300", "step-9", "step-150"));
}

TEST_F(Run, ACheckpointWhoseNoteHasAnotherStepIsNoStep) {
  Save("step-10", 1, 10);
  Save("step-30", 1, 30);
  std::filesystem::copy(Path("step-10"), Path("step-99"));
  EXPECT_THAT(Names(), ElementsAre("step-10", "step-30"));
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-30"));
  EXPECT_THAT(Prune({.last = 1}), ElementsAre("step-10"));
  const auto misnamed = ListMisnamedSteps(dir_.path());
  ASSERT_TRUE(IsOk(misnamed));
  ASSERT_EQ(misnamed->size(), 1U);
  EXPECT_EQ(misnamed->front().name, "step-99");
  EXPECT_EQ(misnamed->front().other_step, 10U);
}

TEST_F(Run, ACopyUnderAnotherNumberTakesNoDamagedStepsPlace) {
  Save("step-10", 1, 10);
  std::filesystem::copy(Path("step-10"), Path("step-99"));
  std::filesystem::remove(Path("step-10/data-00000-of-00001.safetensors"));
  EXPECT_TRUE(FailsWith(NewestCheckpoint(dir_.path()), StatusCode::kNotFound,
                        {"there is no whole checkpoint in"}));
  std::filesystem::remove_all(Path("step-10"));
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-99")) << "no step was lost";
}

TEST_F(Run, AStepThatNoManagerHasSavedIsAsNewAsWhatWasSavedThen) {
  Save("step-300", 1, 300);
  Save("step-400");
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-400"));
}

TEST_F(Run, ACopyWithAHigherNumberIsNotTheNewestStep) {
  Save("step-20");
  Save("step-99-backup");
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-20"));
}

TEST_F(Run, PruneTouchesNothingThatIsNotItsRuns) {
  for (const std::uint64_t step : {10, 20, 30}) {
    Save("step-" + std::to_string(step), 1, step);
  }
  Save("step-5");    // Of a script.
  Save("llama-3");   // A user's.
  Save("backup-1");  // A user's.
  EXPECT_TRUE(FailsWith(PruneRun(dir_.path(), {.last = 1}), StatusCode::kFailedPrecondition,
                        {"begin differently"}));
  const auto steps = PruneRun(dir_.path(), {.last = 1}, {.prefix = "step-"});
  ASSERT_TRUE(IsOk(steps));
  EXPECT_THAT(Names(), testing::UnorderedElementsAre("step-5", "llama-3", "backup-1", "step-30"));
}

TEST_F(Run, ASymbolicLinkIsItsUsers) {
  Save("step-1", 1, 1);
  Save("step-3", 1, 3);
  ASSERT_TRUE(IsOk(PosixStorage().extras().symbolic_links->MakeLink("step-1", Path("step-2"))));
  EXPECT_TRUE(FailsWith(QuarantineCheckpoint(Path("step-2"), ""), StatusCode::kFailedPrecondition));
  EXPECT_THAT(Prune({.last = 1}), ElementsAre("step-1"));
  EXPECT_TRUE(IsOk(PosixStorage().extras().symbolic_links->ReadLink(Path("step-2"))));
}

TEST_F(Run, ADisplacedStepKeepsItsPin) {
  Save("step-1");
  Save("step-2");
  ASSERT_TRUE(IsOk(PinCheckpoint(Path("step-1"), "paper")));
  ASSERT_TRUE(IsOk(PosixStorage().Rename(Path("step-1"), DisplacedPath(Path("step-1")),
                                         RenameMode::kNoReplace)));
  EXPECT_THAT(Prune({.last = 1}), IsEmpty());
  EXPECT_TRUE(
      FailsWith(PinCheckpoint(Path("step-1"), ""), StatusCode::kFailedPrecondition, {"varve gc"}));
}

TEST_F(Run, RemoveStepRefusesWhatIsPinnedOrRead) {
  Save("step-1");
  auto reader = CheckpointReader::Open(Path("step-1"));
  EXPECT_TRUE(FailsWith(RemoveStep(Path("step-1")), StatusCode::kFailedPrecondition, {"read"}));
  ASSERT_TRUE(IsOk(reader));
  reader->reset();
  ASSERT_TRUE(IsOk(PinCheckpoint(Path("step-1"), "paper")));
  EXPECT_TRUE(FailsWith(RemoveStep(Path("step-1")), StatusCode::kFailedPrecondition, {"paper"}));
  ASSERT_TRUE(IsOk(UnpinCheckpoint(Path("step-1"))));
  EXPECT_TRUE(IsOk(RemoveStep(Path("step-1"))));
}

TEST_F(Run, TheNewestIsWhatTheLastAttemptSavedEvenIfItsStepIsLower) {
  Save("step-300", 1, 300);
  Save("step-150", 2, 150);
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-150"));
}

TEST_F(Run, ANoteThatIsNoNoteMakesAStepWithoutAttempt) {
  test::SmallState state;
  state.Floats("w", {1}).File(std::string(kStepNoteName), "nonsense");
  ASSERT_TRUE(IsOk(state.Save(PosixStorage(), Path("step-1"))));
  EXPECT_EQ(ListSteps(dir_.path()).value().at(0).attempt, 0U);
}

TEST_F(Run, AStepWhoseNoteIsDamagedIsDamagedAndNotTakenForAnOldOne) {
  Save("step-100", 1, 100);
  Save("step-200", 2, 200);
  ASSERT_TRUE(IsOk(test::Rewrite(PosixStorage(), Path("step-200/" + std::string(kStepNoteName)),
                                 EncodeStepNote({200, 1, {}, 1000}).value())));
  const auto steps = ListSteps(dir_.path());
  ASSERT_TRUE(IsOk(steps));
  EXPECT_EQ(steps->at(1).state, CheckpointState::kDamaged);
  EXPECT_THAT(steps->at(1).detail, testing::HasSubstr(std::string(kStepNoteName)));
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-100"));
}

TEST_F(Run, PruneRemovesWhatNoRuleKeepsAndADryRunTellsTheTruth) {
  for (const std::uint64_t step : {10, 20, 30, 40}) {
    Save("step-" + std::to_string(step), 1, step, {{"loss", static_cast<double>(step)}});
  }
  Save("step-10-backup");
  const KeepRules rules{.last = 1, .best = KeepBest{1, "loss"}};
  const std::vector<std::string> would = Prune(rules, DryRun::kYes);
  EXPECT_THAT(would, ElementsAre("step-20", "step-30"));
  EXPECT_EQ(Names().size(), 4U);
  EXPECT_EQ(Prune(rules), would);
  EXPECT_THAT(Names(), ElementsAre("step-10", "step-40"));
  EXPECT_THAT(Prune(rules), IsEmpty());
  EXPECT_TRUE(IsOk(CheckpointReader::Open(Path("step-10-backup"))));
}

TEST_F(Run, AStepThatIsBeingReadStaysUntilTheReaderIsDone) {
  Save("step-1");
  Save("step-2");
  auto reader = CheckpointReader::Open(Path("step-1"));
  ASSERT_TRUE(IsOk(reader));
  const auto kept = PruneRun(dir_.path(), {.last = 1});
  ASSERT_TRUE(IsOk(kept));
  EXPECT_FALSE(kept->at(0).removed);
  EXPECT_THAT(kept->at(0).reasons, ElementsAre(testing::HasSubstr("is being read")));
  reader->reset();
  EXPECT_THAT(Prune({.last = 1}), ElementsAre("step-1"));
}

TEST_F(Run, SeveralReadersShareAStep) {
  Save("step-1");
  const auto one = CheckpointReader::Open(Path("step-1"));
  const auto two = CheckpointReader::Open(Path("step-1"));
  EXPECT_TRUE(IsOk(one));
  EXPECT_TRUE(IsOk(two));
}

TEST_F(Run, ARemovalOnRequestDoesNotAskForReaders) {
  Save("step-1");
  const auto reader = CheckpointReader::Open(Path("step-1"));
  EXPECT_TRUE(IsOk(RemoveCheckpoint(Path("step-1"), DryRun::kNo)));
}

TEST_F(Run, AStepThatIsBeingSavedStays) {
  Save("step-1");
  Save("step-2");
  const auto lock = PosixStorage().Lock(LockPath(Path("step-1")));
  ASSERT_TRUE(IsOk(lock));
  EXPECT_THAT(Prune({.last = 1}), IsEmpty());
}

TEST_F(Run, APinKeepsAStepUntilItIsTakenAway) {
  Save("step-1");
  Save("step-2");
  ASSERT_TRUE(IsOk(PinCheckpoint(Path("step-1"), "for the paper")));
  EXPECT_THAT(Prune({.last = 1}), IsEmpty());
  EXPECT_EQ(ListSteps(dir_.path()).value().at(0).pin, "for the paper");
  const auto verified = Verify(Path("step-1"));
  ASSERT_TRUE(IsOk(verified));
  EXPECT_TRUE(verified->clean());
  ASSERT_TRUE(IsOk(UnpinCheckpoint(Path("step-1"))));
  EXPECT_THAT(Prune({.last = 1}), ElementsAre("step-1"));
  EXPECT_TRUE(FailsWith(PinCheckpoint(Path("step-1"), ""), StatusCode::kNotFound));
  EXPECT_TRUE(FailsWith(PinCheckpoint(Path("step-2"), std::string(2000, 'x')),
                        StatusCode::kInvalidArgument));
}

TEST_F(Run, APinnedStepIsNeitherReplacedNorRemovedOnRequest) {
  Save("step-1");
  const auto before = ListSteps(dir_.path()).value().at(0).save_id;
  ASSERT_TRUE(IsOk(PinCheckpoint(Path("step-1"), "paper")));
  test::SmallState state;
  state.Floats("w", {4, 5, 6});
  EXPECT_TRUE(
      FailsWith(state.Save(PosixStorage(), Path("step-1"), {.overwrite = Overwrite::kAlways}),
                StatusCode::kFailedPrecondition, {Path("step-1"), "pinned", "varve unpin"}));
  EXPECT_TRUE(FailsWith(RemoveCheckpoint(Path("step-1"), DryRun::kNo),
                        StatusCode::kFailedPrecondition, {"pinned", "varve unpin"}));
  EXPECT_TRUE(
      FailsWith(RemoveCheckpoint(Path("step-1"), DryRun::kYes), StatusCode::kFailedPrecondition));
  EXPECT_EQ(ListSteps(dir_.path()).value().at(0).save_id, before);
  ASSERT_TRUE(IsOk(UnpinCheckpoint(Path("step-1"))));
  Save("step-1");
  EXPECT_NE(ListSteps(dir_.path()).value().at(0).save_id, before);
  EXPECT_TRUE(IsOk(RemoveCheckpoint(Path("step-1"), DryRun::kNo)));
}

TEST_F(Run, QuarantineTakesAStepOutOfTheWayAndRemovesNothingOfIt) {
  Save("step-1");
  Save("step-2");
  const auto hidden = QuarantineCheckpoint(Path("step-2"), "block 7 is damaged");
  ASSERT_TRUE(IsOk(hidden));
  EXPECT_THAT(Names(), ElementsAre("step-1"));
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-1"));
  const auto entries = ListCheckpoints(dir_.path());
  ASSERT_TRUE(IsOk(entries));
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_EQ(entries->at(1).state, CheckpointState::kQuarantined);
  EXPECT_EQ(entries->at(1).detail, "step-2: block 7 is damaged");
  EXPECT_EQ(entries->at(1).step, 2U);
  ASSERT_TRUE(IsOk(CollectGarbage(dir_.path(), DryRun::kNo)));
  EXPECT_TRUE(IsOk(CheckpointReader::Open(*hidden)));
  Save("step-2");  // The name is free.
  EXPECT_TRUE(IsOk(RemoveCheckpoint(*hidden, DryRun::kNo)));
  EXPECT_THAT(Names(), ElementsAre("step-1", "step-2"));
  EXPECT_TRUE(FailsWith(QuarantineCheckpoint(Path("step-7"), ""), StatusCode::kNotFound));
}

TEST_F(Run, HasOneJobAtATimeAndASecondLearnsWhoHasIt) {
  auto first = LockRun(Path("run"), "job 17 on node3, process 99");
  ASSERT_TRUE(IsOk(first));
  EXPECT_TRUE(FailsWith(LockRun(Path("run"), "me"), StatusCode::kFailedPrecondition,
                        {"job 17 on node3, process 99", Path("run")}));
  first->reset();
  EXPECT_TRUE(IsOk(LockRun(Path("run"), "me")));
  EXPECT_THAT(PosixStorage().List(Path("run")).value(), IsEmpty());
}

TEST_F(Run, WhoseDirectoryIsTakenAwayIsLockedAnewOrAnotherJobs) {
  namespace fs = std::filesystem;
  const auto lock = LockRun(Path("run"), "job 17");
  ASSERT_TRUE(IsOk(lock));
  fs::rename(Path("run"), Path("aside"));
  fs::rename(Path("aside"), Path("run"));
  EXPECT_TRUE(IsOk((*lock)->CheckHeld())) << "it is the same directory";
  fs::rename(Path("run"), Path("aside"));
  EXPECT_TRUE(
      FailsWith((*lock)->CheckHeld(), StatusCode::kUnavailable, {"was removed or renamed"}));
  EXPECT_TRUE(IsOk((*lock)->CheckHeld())) << "that is said once";
  EXPECT_TRUE(FailsWith(LockRun(Path("run"), "me"), StatusCode::kFailedPrecondition, {"job 17"}));
  fs::remove_all(Path("run"));
  const auto other = LockRun(Path("run"), "job 18");
  ASSERT_TRUE(IsOk(other));
  EXPECT_TRUE(FailsWith((*lock)->CheckHeld(), StatusCode::kFailedPrecondition, {"job 18"}));
  EXPECT_TRUE(IsOk((*other)->CheckHeld()));
}

TEST_F(Run, AFileThatAUserAddsLaterDoesNotMakeAStepNewer) {
  Save("step-1");
  const auto before = ListSteps(dir_.path());
  ASSERT_TRUE(IsOk(before));
  const std::string added = Path("step-1/config.yaml");
  ASSERT_TRUE(IsOk(test::Rewrite(PosixStorage(), added, "a: 1")));
  std::filesystem::last_write_time(
      added, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const auto after = ListSteps(dir_.path());
  ASSERT_TRUE(IsOk(after));
  EXPECT_EQ(after->at(0).time_ns, before->at(0).time_ns);
}

}  // namespace
}  // namespace varve::run_test
