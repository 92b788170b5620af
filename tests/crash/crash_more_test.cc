// Crashes beyond one save: a second one in what follows, of one rank alone, of gc, rm and repair.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "crash/cells.h"

namespace varve::test::crash_more_test {
namespace {

const auto kName = [](const auto& test) { return NameOf(test.param); };
const std::vector<Before> kOver{Before::kCheckpoint};
const std::vector<Before> kFirstAndOver{Before::kNothing, Before::kCheckpoint};

/// A save that dies anywhere on a disk, and what follows it and dies as well.
class CrashTwice : public CrashCell {
 protected:
  void Twice(const Action& second, bool is_save) {
    auto& disk = dynamic_cast<Disk&>(*place_);
    std::uint64_t points = 0;
    std::uint64_t seed = 0;
    const std::uint64_t slow = GetParam().before == Before::kBesideUsersFiles ? 5
                               : way_->apart                                  ? 2
                                                                              : 1;
    ForEachCrash(
        disk.base(), SaveNew(),
        [&](MemoryStorage& left, const Status& outcome) {
          points +=
              ForEachCrash(*left.AfterKill(), second, [&](MemoryStorage& twice, const Status&) {
                for (const Survivor& survivor : Survivors(twice, 1, seed++)) {
                  const testing::ScopedTrace trace("", 0, survivor.how);
                  const int seen = Seen(*survivor.storage);
                  EXPECT_TRUE(seen == 2 || (seen == 3 && is_save) ||
                              (seen == (had_one_ ? 1 : 0) && (!outcome.ok() || way_->saves_a_part)))
                      << "seen: " << seen;
                  EXPECT_TRUE(
                      users_.AreSomewhere(*survivor.storage, place_->run(), place_->path()));
                  if (HasFailure()) {
                    return;
                  }
                }
              });
        },
        kEvery * slow);
    RecordProperty("points", std::to_string(points));
    EXPECT_GE(points, is_save ? 50 / kEvery : 0);  // gc has nothing to do where it knows no files.
  }
};

TEST_P(CrashTwice, ASecondCrashInTheNextSaveHarmsNothing) { Twice(SaveNext(), true); }

TEST_P(CrashTwice, ACrashOfTheCollectorHarmsNothing) { Twice(Collect(), false); }

INSTANTIATE_TEST_SUITE_P(
    Disk, CrashTwice,
    Join(CellsOf({"Varve"}, {"Disk", "DiskWithoutExchange", "BareDisk"}, kFirstAndOver),
         CellsOf({"Varve"}, {"Disk", "DiskWithoutExchange", "DiskWithoutLinks"},
                 {Before::kBesideUsersFiles}),
         CellsOf({"Apart201", "ApartThenTheOthers"}, {"Disk"}, kOver),
         CellsOf({"DcpInPlace", "DcpInPlaceOfOneRank"}, {"Disk", "DiskWithoutLocks"},
                 {Before::kBesideUsersFiles}),
         CellsOf({"Unshard", "OlmoLegacyOverLocal"}, {"Disk"}, kOver)),
    kName);

/// A save that dies anywhere on a disk, when the user has put a file beside the old checkpoint just
/// before the names were exchanged.
class CrashAfterALateFile : public CrashCell {
 protected:
  // One in four loses the first of two renames alone.
  static constexpr std::uint64_t kSeeds = kSanitized ? 2 : 12;
};

TEST_P(CrashAfterALateFile, LosesNoFile) {
  auto& disk = dynamic_cast<Disk&>(*place_);
  const UsersFiles early = users_;
  std::uint64_t k = 0;
  for (bool stopped = true; stopped && !HasFailure(); k += kEvery) {
    const testing::ScopedTrace trace("", 0, "stopped after " + std::to_string(k) + " changes");
    const auto memory = disk.base().AfterKill();
    FaultyStorage faulty(*memory);
    faulty.StopAt(k);
    users_ = early;
    bool arrived = false;
    faulty.SetObserver([&](Operation operation, const std::string& name) {
      if (operation == Operation::kRename && name.find(".varve-saving-") != std::string::npos &&
          !std::exchange(arrived, true)) {
        EXPECT_TRUE(IsOk(WriteWholeFile(*memory, place_->path() + "/late.log", "late")));
        EXPECT_TRUE(IsOk(memory->SyncDirectory(place_->path())));
        users_.Add("late.log", "late");
      }
    });
    const Status outcome = SaveNew()(faulty);
    stopped = faulty.stopped();
    const auto expect = [&](MemoryStorage& storage, int state) {
      EXPECT_EQ(Seen(storage), state);
      EXPECT_TRUE(users_.Are(storage, place_->path()));
      Names names = NamesOf(state);
      if (arrived) {
        names.insert(place_->path() + "/late.log");
      }
      EXPECT_EQ(Disk::NamesIn(storage), names);
    };
    if (!stopped) {
      EXPECT_TRUE(IsOk(outcome));
      EXPECT_TRUE(arrived);
      expect(*memory, 2);
    }
    for (const bool collects : {true, false}) {
      for (const Survivor& survivor : Survivors(*memory, kSeeds)) {
        const testing::ScopedTrace how("", 0, survivor.how);
        MemoryStorage& storage = *survivor.storage;
        const int seen = Seen(storage);
        EXPECT_TRUE(seen == 2 || (seen == 1 && !outcome.ok())) << "seen: " << seen;
        EXPECT_TRUE(users_.AreSomewhere(storage, place_->run(), place_->path()));
        EXPECT_TRUE(IsOk((collects ? Collect() : SaveNext())(storage)));
        expect(storage, collects ? seen : way_->next());
        EXPECT_TRUE(users_.Are(*storage.AfterPowerCut(PowerCut::kKeepSynced), place_->path()));
      }
    }
  }
  EXPECT_GE(k, 25U);
}

INSTANTIATE_TEST_SUITE_P(Disk, CrashAfterALateFile,
                         Join(CellsOf({"Varve"},
                                      {"Disk", "DiskWithoutExchange", "DiskWithoutLinks"},
                                      {Before::kBesideUsersFiles})),
                         kName);

/// Ranks that save together, one of which dies alone.
class CrashOfARank : public CrashCell {
 protected:
  void Dies(std::size_t victim) {
    auto& disk = dynamic_cast<Disk&>(*place_);
    std::uint64_t k = 0;
    for (bool stopped = true; stopped && !HasFailure(); k += kEvery) {
      const testing::ScopedTrace trace("", 0, "it dies after " + std::to_string(k));
      const auto memory = disk.base().AfterKill();
      FaultyStorage mortal(*memory);
      mortal.StopAt(k);
      Order order = OrderOf(*memory, 2, overwrite());
      order.storages[victim] = &mortal;
      order.mortal = true;
      const auto outcomes = way_->SaveAll(order);
      stopped = mortal.stopped();
      const bool one_ok = std::any_of(outcomes.begin(), outcomes.end(),
                                      [](const Status& outcome) { return outcome.ok(); });
      if (stopped && victim != 0) {
        EXPECT_TRUE(
            FailsWith(outcomes[0], StatusCode::kUnavailable, {"rank " + std::to_string(victim)}));
        EXPECT_FALSE(one_ok);
        EXPECT_EQ(Seen(*memory), 1);
        EXPECT_EQ(Disk::NamesIn(*memory), NamesOf(1));
      }
      // Rank 0 may have published, and died before it told the others.
      const Status outcome = one_ok ? Status::Ok() : outcomes[0];
      for (const Survivor& survivor : Survivors(*memory, 2)) {
        const testing::ScopedTrace how("", 0, survivor.how);
        Disk::Show(*survivor.storage, Left::Fate::kDied, outcome, {},
                   [this](Left& left) { JudgeSave(left); });
      }
    }
    EXPECT_GE(k, 3U);
  }
};

TEST_P(CrashOfARank, TheOldOneStaysWhenAWriterDies) {
  Dies(static_cast<std::size_t>(way_->ranks() - 1));
}

TEST_P(CrashOfARank, TheOldOrTheNewStaysWhenTheCoordinatorDies) { Dies(0); }

INSTANTIATE_TEST_SUITE_P(Disk, CrashOfARank,
                         Join(CellsOf({"VarveOfRanks", "HfOfRanks", "DcpOfRanks", "Hfai"}, {"Disk"},
                                      kOver),
                              CellsOf({"VarveOfRanks"}, {"DiskWithoutExchange"}, kOver)),
                         kName);

/// A verb that takes place where a checkpoint is.
class CrashOfVerbs : public CrashCell {
 protected:
  CrashOfVerbs() { place_->CorruptAnswers(); }

  /// Lets `act` die and fail at each of its operations.
  void Everywhere(const Action& act, const Judge& judge) {
    EXPECT_GE(place_->Kill(act, judge), 2U);
    EXPECT_GE(place_->Fail(act, judge), 2U);
  }
  Action Remove() {
    return [this](Storage& s) { return RemoveCheckpoint(place_->path(), DryRun::kNo, s).status(); };
  }
};

TEST_P(CrashOfVerbs, ARemovalLeavesTheCheckpointOrNone) {
  const Names gone = place_->After({Remove(), Collect()});
  Everywhere(Remove(), [&](Left& left) {
    const int seen = Seen(left.storage);
    EXPECT_TRUE(seen == 0 || (seen == 1 && !left.outcome.ok())) << "seen: " << seen;
    EXPECT_TRUE(left.outcome.ok() || left.fate != Left::Fate::kPasses);
    CheckList(left.storage, seen);
    EXPECT_TRUE(IsOk(Collect()(left.storage)));
    EXPECT_EQ(Seen(left.storage), seen);
    if (!way_->has_gap && !way_->apart && (seen == 1 || place_->is_disk())) {
      EXPECT_EQ(left.names(), seen == 1 ? NamesOf(1) : gone);
    }
    EXPECT_TRUE(IsOk(SaveNext()(left.storage)));
    EXPECT_EQ(Seen(left.storage), way_->next());
  });
}

TEST_P(CrashOfVerbs, ACollectorHarmsNoCheckpoint) {
  NamesOf(1);
  const std::string id(32, 'a');
  const std::string dead = place_->is_disk() ? place_->run() + "/.step-%31.varve-saving-" + id
                                             : place_->path() + "/varve-data-" + id;
  std::vector<Action> actions = actions_;
  actions.emplace_back([&](Storage& s) {
    VARVE_RETURN_IF_ERROR(place_->is_disk() ? s.MakeDirectory(dead) : Status::Ok());
    VARVE_RETURN_IF_ERROR(WriteWholeFile(s, dead + "/data-00000-of-00001.safetensors", "this too"));
    VARVE_RETURN_IF_ERROR(place_->is_disk() ? s.SyncDirectory(dead) : Status::Ok());
    return place_->is_disk() ? s.SyncDirectory(place_->run()) : Status::Ok();
  });
  place_->Begin(std::move(actions), /*keeps_garbage=*/true);
  Everywhere(Collect(), [this](Left& left) {
    EXPECT_EQ(Seen(left.storage), 1);
    EXPECT_TRUE(left.outcome.ok() || left.fate != Left::Fate::kPasses);
    EXPECT_TRUE(IsOk(Collect()(left.storage)));
    EXPECT_EQ(Seen(left.storage), 1);
    EXPECT_EQ(left.names(), NamesOf(1));
  });
}

INSTANTIATE_TEST_SUITE_P(All, CrashOfVerbs,
                         Join(CellsOf({"Varve", "Dcp", "Hf"}, {"Disk", "Store", "S3"}, kOver),
                              CellsOf({"Hfai"}, {"Disk"}, kOver),
                              CellsOf({"Apart01"}, {"Disk", "Store"}, kOver)),
                         kName);

/// A collector beside saves on a disk.
class Collector : public CrashCell {
 protected:
  [[nodiscard]] const MemoryStorage& base() const { return dynamic_cast<Disk&>(*place_).base(); }
};

TEST_P(Collector, TakesNothingOfALiveSave) {
  const auto memory = base().AfterKill();
  FaultyStorage watched(*memory);
  std::uint64_t collections = 0;
  watched.SetObserver([&](Operation, const std::string&) {
    ++collections;
    EXPECT_TRUE(IsOk(Collect()(*memory)));
  });
  EXPECT_TRUE(IsOk(SaveNew()(watched)));
  EXPECT_GE(collections, 20U);
  EXPECT_EQ(Seen(*memory), 2);
  EXPECT_EQ(Disk::NamesIn(*memory), NamesOf(2));
}

TEST_P(Collector, ADryRunChangesNothing) {
  ForEachCrash(base(), SaveNew(), [this](MemoryStorage& left, const Status& /*outcome*/) {
    const auto survivor = left.AfterKill();
    std::vector<std::string> before;
    std::vector<std::string> after;
    ListTree(*survivor, ".", &before);
    const auto would = CollectGarbage(place_->run(), DryRun::kYes, *survivor);
    ASSERT_TRUE(IsOk(would));
    ListTree(*survivor, ".", &after);
    // A probe of a dead save's lock removes the lock's file, which no save needs.
    std::erase_if(before, [](const std::string& name) { return name.ends_with(".varve-lock"); });
    EXPECT_EQ(before, after);
    const auto does = CollectGarbage(place_->run(), DryRun::kNo, *survivor);
    ASSERT_TRUE(IsOk(does));
    EXPECT_EQ(would->recovered, does->recovered);
  });
}

INSTANTIATE_TEST_SUITE_P(Disk, Collector,
                         Join(CellsOf({"Varve"}, {"Disk", "DiskWithoutExchange"}, kOver),
                              CellsOf({"VarveWithSideFiles", "Dcp", "Hf", "Apart201", "DcpInPlace",
                                       "Unshard", "OlmoLegacyOverLocal"},
                                      {"Disk"}, {Before::kBesideUsersFiles})),
                         kName);

/// Repair makes the index again from data files, of ranks apart their first one.
class CrashOfRepair : public CrashCell {};

TEST_P(CrashOfRepair, ARepairLeavesTheCheckpointOrCanBeRepeated) {
  for (const char* const lost : {"manifest.bin", ".json"}) {
    std::vector<Action> actions = actions_;
    actions.emplace_back([&](Storage& s) {
      std::vector<std::string> names;
      ListTree(s, place_->path(), &names);
      for (const std::string& name : names) {
        VARVE_RETURN_IF_ERROR(name.ends_with(lost) ? s.Remove(name) : Status::Ok());
      }
      return s.SyncDirectory(place_->path());
    });
    place_->Begin(std::move(actions));
    damaged_ = true;
    const Action repair = [this](Storage& s) { return Repair(place_->path(), s).status(); };
    const Names repaired = place_->After({repair, Collect()});
    const Judge judge = [&](Left& left) {
      const int seen = Seen(left.storage);
      EXPECT_TRUE(seen == 1 || (!left.outcome.ok() && !way_->apart)) << "seen: " << seen;
      EXPECT_TRUE(left.outcome.ok() || left.fate != Left::Fate::kPasses);
      EXPECT_TRUE(IsOk(repair(left.storage)));
      EXPECT_EQ(Seen(left.storage), 1);
      EXPECT_TRUE(IsOk(Collect()(left.storage)));
      Names names = left.names();
      names.erase(place_->path() + "/.varve.json.varve-part");  // Neither repair nor gc knows it.
      names.erase(place_->path() + "/.manifest.bin.varve-part");
      EXPECT_EQ(names, repaired);
      if (!way_->apart) {  // Ranks apart do not replace what is committed now.
        EXPECT_TRUE(IsOk(way_->Save(OrderOf(left.storage, 3, Overwrite::kAlways))));
        EXPECT_EQ(Seen(left.storage), 3);
      }
    };
    EXPECT_GE(place_->Kill(repair, judge), 2U);
    EXPECT_GE(place_->Fail(repair, judge), 2U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CrashOfRepair,
                         Join(CellsOf({"VarveOfRanks"}, {"Disk", "Store", "S3"}, kOver),
                              CellsOf({"Apart012"}, {"Disk"}, kOver)),
                         kName);

/// A save that is refused by design.
struct Refusal {
  std::string place;
  std::string before;  ///< The way that has saved; empty: other files lie there.
  std::string after;
  Overwrite overwrite;
  StatusCode code;
  std::vector<std::string> words;
};

class CrashRefusals : public testing::TestWithParam<Refusal> {
 protected:
  static std::map<std::string, std::string> Contents(Storage& storage, const std::string& path) {
    std::vector<std::string> names;
    ListTree(storage, path, &names);
    std::map<std::string, std::string> contents;
    for (const std::string& name : names) {
      const auto content = ReadWholeFile(storage, name, 1 << 24);
      contents[name] = content.ok() ? *content : "";
    }
    return contents;
  }
};

TEST_P(CrashRefusals, ChangeNothing) {
  const Refusal& refusal = GetParam();
  const auto place = MakePlace(refusal.place);
  place->Begin({});
  (void)place->After({[&](Storage& storage) {
    if (refusal.before.empty()) {
      VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, place->path() + "/notes.txt", "mine"));
    } else {
      const auto before = MakeWay(refusal.before, place->is_disk());
      VARVE_RETURN_IF_ERROR(before->Save(OrderFor(*before, storage, place->path(), 1)));
    }
    const auto after = MakeWay(refusal.after, place->is_disk());
    const auto contents = Contents(storage, place->run());
    EXPECT_FALSE(contents.empty());
    const Status refused =
        after->Save(OrderFor(*after, storage, place->path(), 2, refusal.overwrite));
    EXPECT_TRUE(FailsWith(refused, refusal.code));
    for (const std::string& word : refusal.words) {
      EXPECT_NE(refused.message().find(word), std::string::npos) << refused.ToString();
    }
    EXPECT_TRUE(Contents(storage, place->run()) == contents);
    return Status::Ok();
  }});
}

std::vector<Refusal> Refusals() {
  using enum StatusCode;
  constexpr auto kNever = Overwrite::kNever;
  constexpr auto kAlways = Overwrite::kAlways;
  std::vector<Refusal> all{
      {"Disk", "Varve", "Varve", kNever, kAlreadyExists, {"runs/step-1"}},
      {"Disk", "Varve", "Varve", Overwrite::kDamaged, kAlreadyExists, {"not damaged"}},
      {"Disk", "VarveOfRanks", "Apart012", kAlways, kAlreadyExists, {"committed"}},
      {"Disk", "Varve", "DcpInPlace", kAlways, kFailedPrecondition, {"Varve's own"}}};
  for (const char* const place : {"Store", "S3"}) {
    const std::vector<Refusal> objects{
        {place, "", "Hfai", kAlways, kFailedPrecondition, {"step-1"}},
        {place, "VarveOfRanks", "Apart01", kAlways, kAlreadyExists, {"committed"}},
        {place,
         "Apart01",
         "VarveOfRanks",
         kAlways,
         kFailedPrecondition,
         {"ranks that saved apart", "varve rm"}},
        {place, "DcpOfRanks", "VarveOfRanks", kAlways, kFailedPrecondition, {"varve rm"}},
        {place, "VarveOfRanks", "DcpOfRanks", kAlways, kFailedPrecondition, {"varve rm"}},
        {place, "VarveOfRanks", "HfOfRanks", kAlways, kFailedPrecondition, {"varve rm"}},
        {place,
         "VarveOfRanks",
         "UploadOfDcp",
         kAlways,
         kFailedPrecondition,
         {"Varve's own format"}},
        {place, "UploadOfVarve", "UploadOfVarve", kNever, kAlreadyExists, {"step-1"}},
        {place, "UploadOfDcp", "UploadOfDcp", kNever, kAlreadyExists, {"in place"}},
        {place, "UploadOfHfai", "UploadOfHfai", kNever, kAlreadyExists, {"in place"}},
        {place, "Hfai", "Hfai", kNever, kAlreadyExists, {"PART_000.pt is there", "in place"}},
        {place,
         "VarveOfRanks",
         "OlmoLegacyOverLocal",
         kAlways,
         kUnimplemented,
         {"a folder of another software's files"}}};
    all.insert(all.end(), objects.begin(), objects.end());
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CrashRefusals, testing::ValuesIn(Refusals()), [](const auto& test) {
  return test.param.after + "_" + test.param.place + "_Over" + test.param.before +
         (test.param.overwrite == Overwrite::kNever ? "_Never" : "");
});

}  // namespace
}  // namespace varve::test::crash_more_test
