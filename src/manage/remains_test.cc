// Checkpoints that have lost their index and their data, on a real disk.

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "support/small_state.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/manage.h"

namespace varve::remains_test {
namespace {

using test::FailsWith;
using test::IsOk;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

class Remains : public testing::Test {
 protected:
  [[nodiscard]] std::string Path(const std::string& name) const { return dir_ / name; }

  Status Save(const std::string& name, Overwrite overwrite = Overwrite::kNever) {
    test::SmallState state;
    state.Floats("w", {1, 2, 3});
    state.File(std::string(kStepNoteName),
               EncodeStepNote({StepFromName(name).value_or(0), 1, {}, 1000}).value());
    return state.Save(PosixStorage(), Path(name), {.overwrite = overwrite});
  }

  /// Removes all files of a checkpoint but those named.
  void Purge(const std::string& name, const std::vector<std::string>& kept = {}) {
    for (const auto& file : std::filesystem::directory_iterator(Path(name))) {
      if (std::find(kept.begin(), kept.end(), file.path().filename()) == kept.end()) {
        std::filesystem::remove(file.path());
      }
    }
  }

  void Make(const std::string& name) { std::filesystem::create_directory(Path(name)); }

  void Write(const std::string& name) { std::ofstream(Path(name)) << "mine"; }

  std::vector<std::pair<std::string, CheckpointState>> States() {
    std::vector<std::pair<std::string, CheckpointState>> states;
    const auto entries = ListCheckpoints(dir_.path());
    EXPECT_TRUE(IsOk(entries));
    for (const CheckpointEntry& one : entries.ok() ? *entries : std::vector<CheckpointEntry>{}) {
      states.emplace_back(one.name, one.state);
    }
    return states;
  }

  test::TempDir dir_;
};

TEST_F(Remains, OfACheckpointAreDamagedByEachFileThatVarveAloneWrites) {
  for (const char* const kept : {"manifest.bin", "varve-step.json", "varve-pinned.txt"}) {
    ASSERT_TRUE(IsOk(Save("final")));
    ASSERT_TRUE(IsOk(PinCheckpoint(Path("final"), "why")));
    Write("final/mine.txt");
    Purge("final", {kept, "mine.txt"});
    EXPECT_THAT(States(), ElementsAre(Pair("final", CheckpointState::kDamaged))) << kept;
    const auto of_itself = ListCheckpoints(Path("final"));
    ASSERT_EQ(of_itself->size(), 1U);
    EXPECT_THAT(of_itself->front().detail, HasSubstr(kept));
    std::filesystem::remove_all(Path("final"));
  }
}

TEST_F(Remains, AreNoneInADirectoryOfTheUsers) {
  Make("step-00000010");
  Write("step-00000010/notes.txt");
  Write("varve-history.jsonl");
  Make("step-00000020");
  Make("step-00000020/data");
  EXPECT_THAT(States(), IsEmpty());
  EXPECT_TRUE(FailsWith(Save("step-00000010", Overwrite::kAlways), StatusCode::kFailedPrecondition,
                        {"is not a checkpoint"}));
  EXPECT_TRUE(FailsWith(QuarantineCheckpoint(Path("step-00000010"), "why"), StatusCode::kNotFound));
}

TEST_F(Remains, OfAnEmptyStepNeedSomethingThatTellsOfARun) {
  Make("checkpoint-10");
  Make("runs");
  EXPECT_THAT(States(), IsEmpty()) << "other software makes such directories";
  EXPECT_TRUE(FailsWith(QuarantineCheckpoint(Path("checkpoint-10"), "why"), StatusCode::kNotFound));
  Make("step-00000030");
  EXPECT_THAT(States(), ElementsAre(Pair("step-00000030", CheckpointState::kDamaged)));
  ASSERT_TRUE(IsOk(Save("checkpoint-20")));
  EXPECT_THAT(States(), ElementsAre(Pair("checkpoint-10", CheckpointState::kDamaged),
                                    Pair("checkpoint-20", CheckpointState::kWhole),
                                    Pair("step-00000030", CheckpointState::kDamaged)));
  Purge("checkpoint-20");
  EXPECT_EQ(States().size(), 1U);
  Make("figures-1");
  Write("varve-history.jsonl");
  EXPECT_EQ(States().size(), 3U) << "but the figures";
}

TEST_F(Remains, AreNoneWhileASaveHasTheName) {
  Make("step-00000030");
  const auto lock = PosixStorage().Lock(LockPath(Path("step-00000030")));
  ASSERT_TRUE(IsOk(lock));
  EXPECT_THAT(States(), IsEmpty());
}

TEST_F(Remains, AreNoneWhereADisplacedCheckpointGetsTheNameBack) {
  ASSERT_TRUE(IsOk(Save("step-00000030")));
  std::filesystem::rename(Path("step-00000030"), DisplacedPath(Path("step-00000030")));
  Make("step-00000030");
  const auto steps = ListSteps(dir_.path());
  ASSERT_TRUE(IsOk(steps));
  EXPECT_TRUE(steps->empty());
}

TEST_F(Remains, AreNeitherTheNewestNorCountedNorRemovedByRules) {
  for (const char* const name : {"step-00000010", "step-00000020", "step-00000030"}) {
    ASSERT_TRUE(IsOk(Save(name)));
  }
  Purge("step-00000020");
  Purge("step-00000030", {"manifest.bin"});
  EXPECT_EQ(NewestCheckpoint(dir_.path()).value(), Path("step-00000010"));
  const auto pruned = PruneRun(dir_.path(), {.last = 1});
  ASSERT_TRUE(IsOk(pruned));
  for (const PrunedStep& step : *pruned) {
    EXPECT_FALSE(step.removed) << step.step.name;
  }
  Purge("step-00000010");
  EXPECT_TRUE(FailsWith(NewestCheckpoint(dir_.path()), StatusCode::kNotFound));
}

TEST_F(Remains, AreReplacedByASaveThatMayAndKeepTheUsersFiles) {
  ASSERT_TRUE(IsOk(Save("step-00000010")));
  Purge("step-00000010", {"manifest.bin", "varve-step.json"});
  Write("step-00000010/mine.txt");
  EXPECT_TRUE(FailsWith(Save("step-00000010"), StatusCode::kAlreadyExists, {"pass overwrite"}));
  ASSERT_TRUE(IsOk(Save("step-00000010", Overwrite::kDamaged)));
  EXPECT_THAT(States(), ElementsAre(Pair("step-00000010", CheckpointState::kWhole)));
  EXPECT_TRUE(std::filesystem::exists(Path("step-00000010/mine.txt")));
}

TEST_F(Remains, AreQuarantinedAndRemovedOnRequest) {
  for (const char* const name : {"step-00000010", "step-00000020", "step-00000030"}) {
    ASSERT_TRUE(IsOk(Save(name)));
  }
  Purge("step-00000020");
  Purge("step-00000030", {"manifest.bin"});
  for (const char* const name : {"step-00000020", "step-00000030"}) {
    const auto hidden = QuarantineCheckpoint(Path(name), "it is empty");
    ASSERT_TRUE(IsOk(hidden));
    EXPECT_FALSE(std::filesystem::exists(Path(name)));
    std::filesystem::rename(*hidden, Path(name));  // As a user brings it back.
    EXPECT_TRUE(IsOk(RemoveCheckpoint(Path(name), DryRun::kNo))) << name;
    EXPECT_FALSE(std::filesystem::exists(Path(name)));
  }
}

}  // namespace
}  // namespace varve::remains_test
