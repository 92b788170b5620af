// Saves of DCP checkpoints into a directory that stays, stopped or failing at each operation: the
// old or the new checkpoint is loaded, and no file of the user's is lost.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "support/dcp_in_place.h"
#include "varve/catalogue.h"

namespace varve::test::dcp_in_place_crash_test {
namespace {

constexpr const char* kPath = "runs/step-1";
constexpr const char* kFolder = "runs/step-1/__0_7.distcp";  // The name of a data file.
constexpr const char* kLink = "runs/step-1/newest";

struct Case {
  const char* name;
  bool locks = true;
  bool one_rank = false;  ///< Rank 0 saves without a coordinator, beside what rank 1 has saved.
};

class DcpInPlaceCrash : public testing::TestWithParam<Case> {
 protected:
  DcpInPlaceCrash() {
    MemoryStorage memory({.locks = GetParam().locks});
    EXPECT_TRUE(IsOk(memory.MakeDirectory("runs")));
    EXPECT_TRUE(IsOk(memory.MakeDirectory(kPath)));
    EXPECT_TRUE(IsOk(memory.MakeDirectory(kFolder)));
    EXPECT_TRUE(IsOk(memory.extras().symbolic_links->MakeLink("../step-0", kLink)));
    for (const auto& [name, content] : files_) {
      EXPECT_TRUE(IsOk(WriteWholeFile(memory, JoinPath(kPath, name), content)));
    }
    if (GetParam().one_rank) {
      EXPECT_TRUE(IsOk(SaveRankInPlace(memory, kPath, 1, 'B')));
    }
    without_ = memory.AfterPowerCut(PowerCut::kKeepAll);
    EXPECT_TRUE(IsOk(SaveOne(memory, 'o')));
    with_old_ = memory.AfterPowerCut(PowerCut::kKeepSynced);
    old_ = Saved('o');
    new_ = Saved('n');
    next_ = Saved('x');
  }

  [[nodiscard]] static Status SaveOne(Storage& storage, char seed) {
    return GetParam().one_rank ? SaveRankInPlace(storage, kPath, 0, seed)
                               : SaveInPlace(storage, kPath, seed);
  }

  [[nodiscard]] Content Saved(char seed) const {
    const auto storage = without_->AfterKill();
    EXPECT_TRUE(IsOk(SaveOne(*storage, seed)));
    auto content = ReadContent(kPath, *storage);
    EXPECT_TRUE(IsOk(content));
    return content.ok() ? *content : Content();
  }

  [[nodiscard]] testing::AssertionResult HoldsFiles(Storage& storage) const {
    for (const auto& [name, content] : files_) {
      const auto there = ReadWholeFile(storage, JoinPath(kPath, name), 1 << 20);
      if (!there.ok() || *there != content) {
        return testing::AssertionFailure() << name << " is lost";
      }
    }
    const auto link = storage.extras().symbolic_links->ReadLink(kLink);
    if (!link.ok() || *link != "../step-0" || !storage.List(kFolder).ok()) {
      return testing::AssertionFailure() << "the link or the folder is lost";
    }
    return testing::AssertionSuccess();
  }

  [[nodiscard]] std::vector<std::string> OtherNames() const {
    std::vector<std::string> names{kLink, kFolder};
    for (const auto& [name, content] : files_) {
      names.push_back(JoinPath(kPath, name));
    }
    for (const char* index : {"__0.metadata", "__1.metadata"}) {
      if (GetParam().one_rank) {
        names.push_back(JoinPath(kPath, index));
      }
    }
    if (!GetParam().one_rank) {
      names.push_back(JoinPath(kPath, ".metadata"));
    }
    return names;
  }

  /// Checks the promise for the files that a save of 'n' has left, and for the next save.
  void Check(MemoryStorage& storage, const Status& outcome, bool had_old) {
    std::vector<const Content*> allowed{&new_};
    if (!outcome.ok() && had_old) {
      allowed.push_back(&old_);
    }
    EXPECT_TRUE(HoldsOneOf(kPath, storage, allowed, !outcome.ok() && !had_old));
    EXPECT_TRUE(HoldsFiles(storage));
    EXPECT_TRUE(IsOk(SaveOne(storage, 'x')));
    EXPECT_TRUE(HoldsOneOf(kPath, storage, {&next_}));
    EXPECT_TRUE(HoldsFiles(storage));
    if (GetParam().locks) {
      EXPECT_TRUE(HoldsNothingBut({kPath}, storage, OtherNames()));
    }
    EXPECT_TRUE(HoldsOneOf(kPath, *storage.AfterPowerCut(PowerCut::kKeepSynced), {&next_}));
  }

  void RunCrashes(const MemoryStorage& base, bool had_old) {
    const auto save = [](Storage& storage) { return SaveOne(storage, 'n'); };
    const auto visit = [&](MemoryStorage& left, const Status& outcome) {
      for (const Survivor& survivor : Survivors(left, 4)) {
        const testing::ScopedTrace trace("", 0, survivor.how);
        // Rank 1 has saved before: without rank 0 the checkpoint is incomplete, not absent.
        Check(*survivor.storage, outcome, had_old);
        if (HasFailure()) {
          return;
        }
      }
    };
    EXPECT_GE(ForEachCrash(base, save, visit), 10U);
  }

  const std::map<std::string, std::string> files_{{"config.json", "{}"},
                                                  {"notes.distcp.txt", "no data file"},
                                                  {"__0_0.distcp.bak", "nor this"},
                                                  {"my.metadata", "nor an index"}};
  std::unique_ptr<MemoryStorage> without_;
  std::unique_ptr<MemoryStorage> with_old_;
  Content old_;
  Content new_;
  Content next_;
};

TEST_P(DcpInPlaceCrash, FirstSaveIsWholeOrAbsent) { RunCrashes(*without_, false); }

TEST_P(DcpInPlaceCrash, OverwriteLeavesTheOldOrTheNew) { RunCrashes(*with_old_, true); }

TEST_P(DcpInPlaceCrash, ASecondCrashInTheNextSaveHarmsNothing) {
  const auto save = [](Storage& storage) { return SaveOne(storage, 'n'); };
  const auto next = [](Storage& storage) { return SaveOne(storage, 'x'); };
  ForEachCrash(*with_old_, save, [&](MemoryStorage& left, const Status& /*outcome*/) {
    ForEachCrash(*left.AfterKill(), next, [&](MemoryStorage& twice, const Status& /*outcome*/) {
      for (const Survivor& survivor : Survivors(twice, 1)) {
        EXPECT_TRUE(HoldsOneOf(kPath, *survivor.storage, {&old_, &new_, &next_})) << survivor.how;
        EXPECT_TRUE(HoldsFiles(*survivor.storage)) << survivor.how;
      }
    });
  });
}

TEST_P(DcpInPlaceCrash, AFailureOfAnyOperationLeavesTheOldOrTheNew) {
  for (const Operation operation :
       {Operation::kOpenForWrite, Operation::kWrite, Operation::kSync, Operation::kMakeDirectory,
        Operation::kSyncDirectory, Operation::kRename, Operation::kRemove, Operation::kLock,
        Operation::kOpenForRead, Operation::kRead, Operation::kList}) {
    for (const bool forever : {false, true}) {
      for (std::uint64_t number = 0;; number += kEvery) {
        const testing::ScopedTrace trace(
            "", 0, std::string(OperationName(operation)) + " " + std::to_string(number));
        const auto memory = with_old_->AfterKill();
        FaultyStorage faulty(*memory);
        faulty.FailAt({operation, number, forever, Unavailable("I/O error")});
        const Status outcome = SaveOne(faulty, 'n');
        const bool happened = faulty.count(operation) > number;
        Check(*memory, outcome, true);
        if (!happened || HasFailure()) {
          break;
        }
      }
    }
  }
}

TEST_P(DcpInPlaceCrash, CollectorHarmsNothing) {
  const auto save = [](Storage& storage) { return SaveOne(storage, 'n'); };
  ForEachCrash(*with_old_, save, [&](MemoryStorage& left, const Status& /*outcome*/) {
    const auto storage = left.AfterKill();
    ASSERT_TRUE(IsOk(CollectGarbage("runs", DryRun::kNo, *storage)));
    EXPECT_TRUE(HoldsOneOf(kPath, *storage, {&old_, &new_}));
    EXPECT_TRUE(HoldsFiles(*storage));
  });
}

INSTANTIATE_TEST_SUITE_P(Saves, DcpInPlaceCrash,
                         testing::Values(Case{"OfAllRanks"}, Case{"OfAllRanksWithoutLocks", false},
                                         Case{"OfOneRank", true, true},
                                         Case{"OfOneRankWithoutLocks", false, true}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace varve::test::dcp_in_place_crash_test
