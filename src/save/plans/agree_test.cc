// Saves that follow each other by the same ranks, which keep what they have agreed on.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "save/plans/agreements.h"
#include "save/session.h"
#include "save/settled.h"
#include "support/counting_ranks.h"
#include "support/random.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/value.h"

namespace varve::agree_test {
namespace {

using test::CountingRank;
using test::FailsWith;
using test::IsOk;
using test::MakeCountingRanks;
using test::Random;
using test::TempDir;

constexpr std::uint64_t kColumns = 8;
constexpr int kLayers = 200;  // Half have one shape: a plan has more than kFewBytes.
constexpr std::size_t kFewBytes = 600;

/// The state of all ranks of a job, each of which has its rows of every layer.
class Job {
 public:
  explicit Job(std::size_t ranks) : ranks_(MakeCountingRanks(ranks)), states_(ranks) {
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      State& state = states_[rank];
      for (int i = 0; i < kLayers; ++i) {
        const std::uint64_t columns = kColumns + (i < kLayers / 2 ? 0U : static_cast<unsigned>(i));
        AddTensor(rank, "layer" + std::to_string(i), {ranks, columns}, {{rank, 0}, {1, columns}},
                  static_cast<float>(i));
      }
      AddTensor(rank, "norm", {kColumns}, {{0}, {kColumns}}, 1);
      state.objects.push_back({"step", EncodeValue(Value::Int(0))});
      state.objects.push_back({"random", EncodeValue(Value::Str(std::to_string(rank)))});
    }
  }

  void AddTensor(std::size_t rank, const std::string& name, Dims shape, Box box, float value) {
    auto& memory =
        memory_.emplace_back(std::make_unique<std::vector<float>>(Volume(box.sizes), value));
    states_[rank].tensors.push_back(
        {name, DType::kFloat32, std::move(shape), std::move(box), HostMemory{memory->data(), {}}});
  }
  [[nodiscard]] std::vector<float>& MemoryOf(std::size_t rank, std::size_t tensor) {
    const auto* const data = std::get<HostMemory>(states_[rank].tensors[tensor].source).data;
    for (const auto& memory : memory_) {
      if (memory->data() == data) {
        return *memory;
      }
    }
    return *memory_.front();
  }
  /// Changes a tensor of a rank.
  void Fill(std::size_t rank, std::size_t tensor, float value) {
    auto& memory = MemoryOf(rank, tensor);
    std::fill(memory.begin(), memory.end(), value);
  }
  void SetObject(std::size_t object, const Value& value) {
    for (State& state : states_) {
      state.objects[object].encoded = EncodeValue(value);
    }
  }
  [[nodiscard]] std::size_t size() const { return states_.size(); }
  [[nodiscard]] State& state(std::size_t rank) { return states_[rank]; }
  /// Makes a rank forget what earlier saves have told it.
  void Forget(std::size_t rank) { ranks_[rank] = ranks_[rank]->Anew(); }

  /// Saves on all ranks; a failure fails the test. Returns the report of rank 0.
  SaveReport SaveAll(const std::string& path, const SaveOptions& options = {}) {
    return SaveBy(ranks_, path, options);
  }
  /// Saves where there is a checkpoint.
  void ExpectFailure(const std::string& path) {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto in_step = MakeInStep({std::shared_ptr<void>(), ranks_[rank].get()});
        EXPECT_TRUE(
            FailsWith(Save(states_[rank], path, {}, *in_step), StatusCode::kAlreadyExists, {path}));
      });
    }
  }
  /// Settles a save on all ranks, and returns what rank 0 would submit.
  SettledSave SettledOfRank0(const std::string& path) {
    SettledSave settled;
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        const SaveOptions options;
        const auto session =
            MakeSaveSession(states_[rank], path, options, Claim::kApart, AnyStorage());
        EXPECT_TRUE(IsOk(session->Plan(*ranks_[rank], Status::Ok())));
        if (rank == 0) {
          settled = session->settled();
        }
      });
    }
    threads.clear();
    return settled;
  }
  /// Saves by ranks that have never saved.
  SaveReport SaveAnew(const std::string& path, const SaveOptions& options = {}) {
    return SaveBy(MakeCountingRanks(size()), path, options);
  }
  /// Returns the size of the first message of a rank in the save before, and how many there were.
  [[nodiscard]] std::size_t FirstMessage(std::size_t rank) const {
    return ranks_[rank]->sizes().front();
  }
  [[nodiscard]] int Messages(std::size_t rank) const { return ranks_[rank]->messages(); }

 private:
  SaveReport SaveBy(const std::vector<std::unique_ptr<CountingRank>>& ranks,
                    const std::string& path, const SaveOptions& options) {
    std::vector<Result<SaveReport>> reports(ranks.size(), Internal("not run"));
    {
      std::vector<std::jthread> threads;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        threads.emplace_back([&, rank] {
          ranks[rank]->Forget();
          reports[rank] = Save(states_[rank], path, options, *ranks[rank]);
        });
      }
    }
    for (const auto& report : reports) {
      EXPECT_TRUE(IsOk(report));
    }
    return reports[0].ok() ? *reports[0] : SaveReport();
  }

  std::vector<std::unique_ptr<CountingRank>> ranks_;
  std::vector<State> states_;
  std::vector<std::unique_ptr<std::vector<float>>> memory_;
};

/// Returns the metadata of a checkpoint without what differs between two saves of one state.
Metadata MetadataOf(const std::string& path) {
  const auto reader = CheckpointReader::Open(path);
  EXPECT_TRUE(IsOk(reader));
  Metadata metadata = reader.ok() ? (*reader)->metadata() : Metadata();
  for (DataFile& file : metadata.files) {
    file.header_crc32c = 0;  // Of the time, among others.
  }
  return metadata;
}

/// Checks that a checkpoint is as ranks would write it that have never saved.
void ExpectAsIfAnew(Job& job, const std::string& path, SaveOptions options) {
  options.save_id = {{1, 2, 3}};
  job.SaveAll(path, options);
  job.SaveAnew(path + "-anew", options);
  EXPECT_EQ(MetadataOf(path), MetadataOf(path + "-anew"));
  const auto verified = Verify(path);
  ASSERT_TRUE(IsOk(verified));
  EXPECT_TRUE(verified->damages.empty());
}

TEST(PlansAsBefore, AreAFewBytesAndStoreTheNewContents) {
  const TempDir dir;
  Job job(3);
  job.SaveAll(dir / "step-0");
  EXPECT_GT(job.FirstMessage(1), kFewBytes);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    job.Fill(rank, 7, 50 + static_cast<float>(rank));
    job.Fill(rank, kLayers, 2);
  }
  job.SetObject(0, Value::Int(1));
  ExpectAsIfAnew(job, dir / "step-1", {});
  for (std::size_t rank = 1; rank < 3; ++rank) {
    EXPECT_LT(job.FirstMessage(rank), kFewBytes);
    EXPECT_EQ(job.Messages(rank), 2) << "the plan and the receipt";
  }
  auto reader = CheckpointReader::Open(dir / "step-1");
  ASSERT_TRUE(IsOk(reader));
  std::vector<float> layer(3 * kColumns);
  const std::vector<TargetTensor> targets{
      {"layer7", DType::kFloat32, {3, kColumns}, WholeBox({3, kColumns}), layer.data(), {}}};
  ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
  EXPECT_EQ(layer.front(), 50);
  EXPECT_EQ(layer.back(), 52);
  const std::vector<std::string> names{"step"};
  const auto step = (*reader)->ReadObjects(names);
  ASSERT_TRUE(IsOk(step));
  EXPECT_EQ(EncodeValue((*step)[0]), EncodeValue(Value::Int(1)));
}

TEST(PlansAsBefore, StillFindAReplicaThatDiffersOnOneRank) {
  const TempDir dir;
  Job job(3);
  job.SaveAll(dir / "step-0");
  job.Fill(2, kLayers, -1);
  const SaveReport report = job.SaveAll(dir / "step-1");
  EXPECT_EQ(report.differing_tensors, std::vector<std::string>{"norm"});
  EXPECT_EQ(job.Messages(1), 3) << "the whole plan was asked for";
  const SaveReport again = job.SaveAll(dir / "step-2");
  EXPECT_EQ(again.differing_tensors, std::vector<std::string>{"norm"});
  EXPECT_LT(job.FirstMessage(1), kFewBytes);
  EXPECT_EQ(job.Messages(1), 2);
  job.Fill(2, kLayers, 1);
  EXPECT_TRUE(job.SaveAll(dir / "step-3").differing_tensors.empty());
}

TEST(PlansAsBefore, AreNotThoseOfOtherOptions) {
  const TempDir dir;
  Job job(2);
  job.SaveAll(dir / "step-0");
  job.SaveAll(dir / "step-1", {.block_bytes = 4096});
  EXPECT_GT(job.FirstMessage(1), kFewBytes);
}

TEST(PlansAsBefore, MayHaveValuesOfOtherSizes) {
  const TempDir dir;
  Job job(3);
  for (std::size_t i = 0; i <= kMostChangedSizes; ++i) {
    job.state(2).objects.push_back({"value" + std::to_string(i), EncodeValue(Value::Int(0))});
  }
  job.SaveAll(dir / "step-0");
  job.state(2).objects[1].encoded = EncodeValue(Value::Str(std::string(100'000, 'r')));
  job.SetObject(0, Value::Int(1'000'000));
  ExpectAsIfAnew(job, dir / "step-1", {});
  EXPECT_LT(job.FirstMessage(2), kFewBytes);
  EXPECT_EQ(job.Messages(2), 2);
  for (std::size_t i = 0; i <= kMostChangedSizes; ++i) {
    job.state(2).objects[2 + i].encoded = EncodeValue(Value::Str("longer than it was"));
  }
  ExpectAsIfAnew(job, dir / "step-2", {});
  EXPECT_GT(job.FirstMessage(2), kFewBytes) << "they would be as many as the plan has";
}

/// Headers are padded to 4 KiB. The numbers in one take 240 bytes more than before: with names of
/// some lengths it grows, and all data of the file lies elsewhere.
TEST(PlansAsBefore, MayHaveAHeaderThatGrowsWithItsValues) {
  const TempDir dir;
  bool grew = false;
  for (std::size_t length = 1; length < 4096; length += 120) {
    Job job(2);
    std::vector<SourceObject>& objects = job.state(1).objects;
    job.state(0).tensors.resize(2);
    job.state(1).tensors.resize(2);
    job.AddTensor(1, std::string(length, 'n'), {1}, {{0}, {1}}, 1);
    while (objects.size() <= kMostChangedSizes) {
      objects.push_back({std::to_string(objects.size()), EncodeValue(Value::Int(0))});
    }
    const std::string path = dir / std::to_string(length);
    job.SaveAll(path + "-0");
    for (std::size_t i = 2; i < objects.size(); ++i) {
      objects[i].encoded = EncodeValue(Value::Str(std::string(9000, 'r')));
    }
    ExpectAsIfAnew(job, path + "-1", {});
    EXPECT_EQ(job.Messages(1), 2) << "the plan and the receipt";
    const auto begin = [&](const char* save) {
      return MetadataOf(path + save).files[1].data_begin;
    };
    grew = grew || begin("-0") != begin("-1");
  }
  EXPECT_TRUE(grew);
}

TEST(PlansAsBefore, AreSentWholeWhereOneRankHasAnotherPlan) {
  const TempDir dir;
  Job job(3);
  job.SaveAll(dir / "step-0");
  job.AddTensor(1, "new", {4}, {{0}, {4}}, 5);
  ExpectAsIfAnew(job, dir / "step-1", {});
  EXPECT_LT(job.FirstMessage(2), kFewBytes) << "it cannot know of it";
  EXPECT_EQ(job.Messages(2), 3);
  ExpectAsIfAnew(job, dir / "step-2", {});
  EXPECT_LT(job.FirstMessage(1), kFewBytes);
  EXPECT_EQ(job.Messages(1), 2);
}

TEST(PlansAsBefore, AreSentWholeAfterARankHasForgottenThem) {
  const TempDir dir;
  for (std::size_t forgetful = 0; forgetful < 3; ++forgetful) {
    Job job(3);
    const std::string path = dir / std::to_string(forgetful);
    job.SaveAll(path + "-0");
    job.Forget(forgetful);
    ExpectAsIfAnew(job, path + "-1", {});
    ExpectAsIfAnew(job, path + "-2", {});
    EXPECT_EQ(job.Messages(2), 2);
    EXPECT_LT(job.FirstMessage(2), kFewBytes);
  }
}

TEST(PlansAsBefore, HoldForEachFormatThatPlacesNothingItself) {
  const TempDir dir;
  for (const Format format : {Format::kVarve, Format::kDcp, Format::kSafetensors}) {
    Job job(2);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      job.state(rank).objects.clear();
    }
    const std::string path = dir / std::string(FormatName(format));
    const SaveOptions options{.format = format};
    job.SaveAll(path + "-0", options);
    job.Fill(1, 3, 77);
    job.SaveAll(path + "-1", options);
    EXPECT_EQ(job.FirstMessage(1) < kFewBytes, format != Format::kSafetensors);
    auto reader = CheckpointReader::Open(path + "-1");
    ASSERT_TRUE(IsOk(reader));
    std::vector<float> layer(2 * kColumns);
    const std::vector<TargetTensor> targets{
        {"layer3", DType::kFloat32, {2, kColumns}, WholeBox({2, kColumns}), layer.data(), {}}};
    ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
    EXPECT_EQ(layer.front(), 3);
    EXPECT_EQ(layer.back(), 77);
  }
}

TEST(PlansAsBefore, AreKnownForSeveralStatesInTurns) {
  const TempDir dir;
  Job job(2);
  for (int step = 0; step < 6; ++step) {
    const bool with_more = step % 2 == 1;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      if (with_more) {
        job.AddTensor(rank, "optimizer", {4}, {{0}, {4}}, 5);
      }
    }
    ExpectAsIfAnew(job, dir / ("step-" + std::to_string(step)), {});
    EXPECT_EQ(job.FirstMessage(1) < kFewBytes, step >= 2);
    for (std::size_t rank = 0; rank < 2 && with_more; ++rank) {
      job.state(rank).tensors.pop_back();
    }
  }
}

TEST(PlansAsBefore, AreKnownWhereARankHasTheSameInSeveralStates) {
  const TempDir dir;
  Job job(3);
  for (int step = 0; step < 8; ++step) {
    const bool with_more = step % 2 == 1;
    for (std::size_t rank = 0; rank < 2 && with_more; ++rank) {
      job.AddTensor(rank, "optimizer", {4}, {{0}, {4}}, 5);
    }
    ExpectAsIfAnew(job, dir / ("step-" + std::to_string(step)), {});
    if (step >= 2) {
      EXPECT_EQ(job.Messages(2), 2) << step;
      EXPECT_LT(job.FirstMessage(1), kFewBytes);
    }
    for (std::size_t rank = 0; rank < 2 && with_more; ++rank) {
      job.state(rank).tensors.pop_back();
    }
  }
}

/// Counts the saves of so many that ask for plans in a second exchange, after the first one.
int SecondExchanges(Job& job, const std::string& path, int saves,
                    const std::function<void(int step)>& change) {
  int second = 0;
  for (int step = 0; step < saves; ++step) {
    change(step);
    job.SaveAll(path + std::to_string(step));
    second += step > 0 && job.Messages(1) > 2 ? 1 : 0;
  }
  return second;
}

constexpr int kManySaves = test::kSanitized ? 12 : 60;
constexpr int kMostMisses = Agreements::kMostWeight / Agreements::kMissWeight;

TEST(PlansAsBefore, AreNotNamedForNothingAgainAndAgain) {
  const TempDir dir;
  Job another(3);  // Rank 0 has another plan at each save.
  const auto change = [&](int step) { another.state(0).structure = EncodeValue(Value::Int(step)); };
  EXPECT_LE(SecondExchanges(another, dir / "another-", 30, change), kMostMisses);
  // And then it has the same one.
  const auto stay = [](int) {};
  SecondExchanges(another, dir / "stable-", Agreements::kPause, stay);
  EXPECT_EQ(SecondExchanges(another, dir / "again-", 5, stay), 0);
  EXPECT_LT(another.FirstMessage(1), kFewBytes);
}

TEST(PlansAsBefore, OfMoreThanSumsMayTellAreNotKept) {
  const TempDir dir;
  Job job(3);
  const auto diverge = [&](int step) {
    for (std::size_t i = 0; i < 20 && step < 2; ++i) {
      for (std::size_t rank = 0; rank < 3; ++rank) {
        if (step == 0) {
          job.AddTensor(rank, "b" + std::to_string(i), {2}, {{0}, {2}}, 0);
        } else {
          job.Fill(rank, kLayers + 1 + i, static_cast<float>(rank));
        }
      }
    }
  };
  EXPECT_LE(SecondExchanges(job, dir / "step-", kManySaves, diverge), kMostMisses);
}

TEST(PlansAsBefore, CostLittleWhereEverySecondSaveHasAnotherPlan) {
  const TempDir dir;
  Job job(3);
  const std::string structure = EncodeValue(Value::Int(-1));
  const auto every_second = [&](int step) {
    job.state(0).structure = step % 2 == 0 ? structure : EncodeValue(Value::Int(step));
  };
  constexpr int kSaves = test::kSanitized ? 40 : 200;
  EXPECT_LE(SecondExchanges(job, dir / "step-", kSaves, every_second), kSaves / 6);
}

TEST(PlansAsBefore, AreFoundAgainWhenReplicasDifferNowAndThen) {
  const TempDir dir;
  Job job(3);
  const auto diverge = [&](int step) { job.Fill(2, kLayers, step % 3 == 2 ? -1.0F : 1.0F); };
  EXPECT_LE(SecondExchanges(job, dir / "step-", kManySaves, diverge), 1);
}

TEST(PlansAsBefore, GoToAnotherProcessWithTheSizesOfTheirValues) {
  const TempDir dir;
  Job job(2);
  job.SaveAll(dir / "step-0");
  job.state(1).objects[1].encoded = EncodeValue(Value::Str("much longer than before"));
  const SettledSave settled = job.SettledOfRank0(dir / "step-1");
  ASSERT_EQ(settled.sizes.size(), 1U);
  const auto sent = DecodeFields<SettledSave>(EncodeFields(settled));
  ASSERT_TRUE(IsOk(sent));
  std::vector<LocalPlan> plans;
  for (const SettledSave* one : {&settled, &*sent}) {
    EXPECT_TRUE(IsOk(one->ForEachRank(
        [&](std::uint32_t, const LocalPlan& plan, const RankAssignment& assignment) {
          EXPECT_FALSE(assignment.chunks.empty());
          plans.push_back(plan);
          return Status::Ok();
        })));
  }
  ASSERT_EQ(plans.size(), 4U);
  EXPECT_EQ(plans[1].objects[1].bytes, job.state(1).objects[1].encoded.size());
  EXPECT_EQ(plans[3].objects, plans[1].objects);
  EXPECT_EQ(plans[3].tensors, plans[1].tensors);
}

TEST(PlansAsBefore, OutlastSavesThatFail) {
  const TempDir dir;
  Job job(3);
  job.SaveAll(dir / "step-0");
  job.ExpectFailure(dir / "step-0");  // It is there.
  ExpectAsIfAnew(job, dir / "step-1", {});
  EXPECT_EQ(job.Messages(2), 2);
  EXPECT_LT(job.FirstMessage(2), kFewBytes);
  job.AddTensor(1, "new", {4}, {{0}, {4}}, 5);
  job.ExpectFailure(dir / "step-0");  // Settled anew, and not kept by all.
  ExpectAsIfAnew(job, dir / "step-2", {});
  ExpectAsIfAnew(job, dir / "step-3", {});
  EXPECT_EQ(job.Messages(2), 2);
}

/// Whatever changes between saves, each is as if there had been none before.
TEST(PlansAsBefore, NeverShowInWhatIsStored) {
  const TempDir dir;
  Random random(11);
  Job job(3);
  for (int step = 0; step < kManySaves; ++step) {
    const std::size_t rank = random.Below(3);
    SaveOptions options;
    switch (random.Below(9)) {
      case 0: job.Fill(rank, random.Below(kLayers + 1), static_cast<float>(step)); break;
      case 1:
        job.SetObject(0, Value::Int(static_cast<std::int64_t>(step) << random.Below(40)));
        break;
      case 2: job.SetObject(1, Value::Int(0)); break;
      case 3:
        job.state(rank).objects[1].encoded =
            EncodeValue(Value::Str(std::string(random.Below(300), 'x')));
        break;
      case 4:
        job.AddTensor(rank, "of" + std::to_string(rank) + "." + std::to_string(step), {2},
                      {{0}, {2}}, 1);
        break;
      case 5: job.Forget(rank); break;
      case 6: job.state(rank).structure = EncodeValue(Value()); break;
      case 7: options.block_bytes = std::uint64_t{4096} << random.Below(3); break;
      default: options.on_difference = OnDifference::kFirst; break;
    }
    ExpectAsIfAnew(job, dir / ("step-" + std::to_string(step)), options);
  }
}

}  // namespace
}  // namespace varve::agree_test
