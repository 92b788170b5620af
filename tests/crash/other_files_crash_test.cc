// Overwrites of a checkpoint that has the user's files beside it, stopped at each operation: no
// file is ever lost, and all of them are beside the checkpoint when the next save or gc is done.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "crash/saves.h"
#include "varve/catalogue.h"

namespace varve::test::other_files_crash_test {
namespace {

constexpr const char* kPath = "runs/step-1";
constexpr const char* kLink = "runs/step-1/newest";

using Files = std::map<std::string, std::string>;

/// Writes a file so that a power cut keeps it.
void Put(Storage& storage, const std::string& name, const std::string& content) {
  EXPECT_TRUE(IsOk(WriteWholeFile(storage, name, content)));
  EXPECT_TRUE(IsOk(storage.SyncDirectory(ParentPath(name))));
}

struct Case {
  const char* name;
  MemoryStorageOptions options;
  bool late = false;  ///< A file arrives just before the names are exchanged.
};

class OtherFilesCrash : public testing::TestWithParam<Case> {
 protected:
  OtherFilesCrash() {
    MemoryStorage memory(GetParam().options);
    EXPECT_TRUE(IsOk(SaveAlone(old_, kPath, memory, false)));
    EXPECT_TRUE(IsOk(memory.MakeDirectory(JoinPath(kPath, "tokenizer"))));
    EXPECT_TRUE(IsOk(memory.MakeDirectory(JoinPath(kPath, "tokenizer/extra"))));
    EXPECT_TRUE(IsOk(memory.MakeDirectory(JoinPath(kPath, "empty"))));
    EXPECT_TRUE(IsOk(memory.extras().symbolic_links->MakeLink("../step-0", kLink)));
    for (const auto& [name, content] : files_) {
      Put(memory, JoinPath(kPath, name), content);
    }
    base_ = memory.AfterPowerCut(PowerCut::kKeepAll);
    if (GetParam().late) {
      late_["late.log"] = "put there while the save ran";
    }
  }

  /// Overwrites the checkpoint; the late file, if there is one, arrives meanwhile.
  Status Overwrite(Storage& storage) {
    arrived_ = false;
    auto* const faulty = dynamic_cast<FaultyStorage*>(&storage);
    if (faulty != nullptr && GetParam().late) {
      faulty->SetObserver([this](Operation operation, const std::string&) {
        if (operation == Operation::kRename && !arrived_) {
          arrived_ = true;
          Put(*under_test_, JoinPath(kPath, "late.log"), late_.at("late.log"));
        }
      });
    }
    return SaveAlone(new_, kPath, storage, true);
  }

  [[nodiscard]] Files Expected() const {
    Files expected = files_;
    if (arrived_) {
      expected.insert(late_.begin(), late_.end());
    }
    return expected;
  }

  /// Checks that every file has its content under some name; `settled`: beside the checkpoint.
  [[nodiscard]] testing::AssertionResult HoldsFiles(Storage& storage, bool settled) const {
    std::vector<std::string> places{kPath};
    if (!settled) {
      const auto entries = storage.List("runs");
      for (std::size_t i = 0; entries.ok() && i < entries->size(); ++i) {
        places.push_back(JoinPath("runs", (*entries)[i].name));
      }
    }
    for (const auto& [name, content] : Expected()) {
      bool found = false;
      for (const std::string& place : places) {
        const auto there = ReadWholeFile(storage, JoinPath(place, name), 1 << 20);
        found = found || (there.ok() && *there == content);
      }
      if (!found) {
        return testing::AssertionFailure() << name << " is lost";
      }
    }
    return testing::AssertionSuccess();
  }

  [[nodiscard]] std::vector<std::string> OtherNames() const {
    std::vector<std::string> names{kLink, JoinPath(kPath, "tokenizer"),
                                   JoinPath(kPath, "tokenizer/extra"), JoinPath(kPath, "empty")};
    for (const auto& [name, content] : Expected()) {
      names.push_back(JoinPath(kPath, name));
    }
    return names;
  }

  /// Visits what is left of the overwrite after each crash and each power cut.
  void ForEachSurvivor(const std::function<void(MemoryStorage&, const Status&)>& visit) {
    for (std::uint64_t k = 0;; k += kEvery) {
      const auto memory = base_->AfterKill();
      under_test_ = memory.get();
      FaultyStorage faulty(*memory);
      faulty.StopAt(k);
      const Status outcome = Overwrite(faulty);
      const testing::ScopedTrace trace("", 0, "stopped after " + std::to_string(k) + " changes");
      for (const Survivor& survivor : Survivors(*memory, 4)) {
        const testing::ScopedTrace how("", 0, survivor.how);
        EXPECT_TRUE(HoldsFiles(*survivor.storage, false));
        visit(*survivor.storage, outcome);
        if (HasFailure()) {
          return;
        }
      }
      if (!faulty.stopped()) {
        EXPECT_TRUE(IsOk(outcome));
        EXPECT_TRUE(HoldsFiles(*memory, true));
        EXPECT_TRUE(HoldsNothingBut({kPath}, *memory, OtherNames()));
        EXPECT_GE(k, 25U);
        return;
      }
    }
  }

  const Files files_{{"config.json", "{}"},
                     {"tokenizer/vocab.txt", "a b c"},
                     {"tokenizer/extra/merges.txt", "ab c"},
                     {"tokenizer/extra/x.distcp", "of another checkpoint"},
                     {"model.safetensors", "exported"},
                     {"data-train.safetensors", "not a data file's name"}};
  Files late_;
  bool arrived_ = false;
  JobState old_{1, 1};
  JobState new_{2, 1};
  JobState next_{3, 1};
  std::unique_ptr<MemoryStorage> base_;
  Storage* under_test_ = nullptr;
};

TEST_P(OtherFilesCrash, NextSaveFindsThemAll) {
  ForEachSurvivor([this](MemoryStorage& storage, const Status& outcome) {
    std::vector<const Content*> allowed{&new_.content()};
    if (!outcome.ok()) {
      allowed.push_back(&old_.content());
    }
    EXPECT_TRUE(HoldsOneOf(kPath, storage, allowed));
    EXPECT_TRUE(IsOk(SaveAlone(next_, kPath, storage, true)));
    EXPECT_TRUE(HoldsOneOf(kPath, storage, {&next_.content()}));
    EXPECT_TRUE(HoldsFiles(storage, true));
    EXPECT_TRUE(HoldsNothingBut({kPath}, storage, OtherNames()));
    EXPECT_TRUE(HoldsFiles(*storage.AfterPowerCut(PowerCut::kKeepSynced), true));
  });
}

TEST_P(OtherFilesCrash, CollectorFindsThemAll) {
  ForEachSurvivor([this](MemoryStorage& storage, const Status& /*outcome*/) {
    const auto report = CollectGarbage("runs", DryRun::kNo, storage);
    ASSERT_TRUE(IsOk(report));
    EXPECT_EQ(report->conflicts, std::vector<std::string>{});
    EXPECT_TRUE(HoldsOneOf(kPath, storage, {&old_.content(), &new_.content()}));
    EXPECT_TRUE(HoldsFiles(storage, true));
    EXPECT_TRUE(HoldsNothingBut({kPath}, storage, OtherNames()));
  });
}

TEST_P(OtherFilesCrash, ASecondCrashInTheNextSaveLosesNone) {
  for (std::uint64_t first = 0;; first += 5) {
    const auto memory = base_->AfterKill();
    under_test_ = memory.get();
    FaultyStorage faulty(*memory);
    faulty.StopAt(first);
    (void)Overwrite(faulty);
    const auto next = [this](Storage& s) { return SaveAlone(next_, kPath, s, true); };
    ForEachCrash(*memory, next, [&](MemoryStorage& left, const Status& /*outcome*/) {
      for (const Survivor& survivor : Survivors(left, 1)) {
        EXPECT_TRUE(HoldsFiles(*survivor.storage, false)) << survivor.how << ", " << first;
      }
    });
    if (!faulty.stopped() || HasFailure()) {
      return;
    }
  }
}

/// A folder of a tokenizer that has no checkpoint yet, with a file system's options.
class ConfigurationCrash : public testing::TestWithParam<Case> {};

TEST_P(ConfigurationCrash, OfTheFirstSaveLosesNoFile) {
  const std::string tokenizer = JoinPath(kPath, "tokenizer.json");
  MemoryStorage memory(GetParam().options);
  ASSERT_TRUE(IsOk(MakeDirectories(memory, kPath)));
  Put(memory, tokenizer, "{}");
  ASSERT_TRUE(IsOk(memory.SyncDirectory("runs")));
  const auto base = memory.AfterPowerCut(PowerCut::kKeepAll);
  const JobState state(1, 1);
  const auto save = [&](Storage& storage) { return SaveAlone(state, kPath, storage, false); };
  const auto holds = [&](Storage& storage) {
    const auto content = ReadWholeFile(storage, tokenizer, 100);
    return content.ok() && *content == "{}";
  };
  ForEachCrash(*base, save, [&](MemoryStorage& left, const Status& /*outcome*/) {
    for (const bool collects : {false, true}) {
      for (const Survivor& survivor : Survivors(left, 4)) {
        const testing::ScopedTrace how("", 0, survivor.how);
        MemoryStorage& storage = *survivor.storage;
        if (collects) {
          ASSERT_TRUE(IsOk(CollectGarbage("runs", DryRun::kNo, storage)));
          EXPECT_TRUE(holds(storage));
        }
        EXPECT_TRUE(IsOk(SaveAlone(state, kPath, storage, true)));
        EXPECT_TRUE(HoldsOneOf(kPath, storage, {&state.content()}));
        EXPECT_TRUE(holds(storage));
        EXPECT_TRUE(HoldsNothingBut({kPath}, storage, {tokenizer}));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(FileSystems, ConfigurationCrash,
                         testing::Values(Case{"WithExchange", {}},
                                         Case{"WithoutExchange", {.exchange = false}},
                                         Case{"WithoutHardLinks", {.links = false}}),
                         [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    FileSystems, OtherFilesCrash,
    testing::Values(Case{"WithExchange", {}}, Case{"WithoutExchange", {.exchange = false}},
                    Case{"WithoutHardLinks", {.links = false}}, Case{"LateArrival", {}, true},
                    Case{"LateArrivalWithoutExchange", {.exchange = false}, true},
                    Case{"LateArrivalWithoutHardLinks", {.links = false}, true}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace varve::test::other_files_crash_test
