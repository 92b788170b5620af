/// A cell of the crash matrix: a way to write a checkpoint, on a storage, over what was there; and
/// the judge, who says for all of them what must be left.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "crash/copy_ways.h"
#include "crash/object_places.h"
#include "crash/places.h"
#include "crash/users_files.h"
#include "crash/ways.h"
#include "varve/catalogue.h"

namespace varve::test {

enum class Before : std::uint8_t {
  kNothing,
  kUsersFiles,  ///< A folder with files that are part of no checkpoint.
  kCheckpoint,
  kDamaged,           ///< Half of its largest file is lost.
  kBesideUsersFiles,  ///< A checkpoint, and other files beside it.
};

struct Cell {
  std::string way;
  std::string place;
  Before before;
};

inline std::string NameOf(const Cell& cell) {
  static constexpr const char* kNames[] = {"First", "FirstBesideFiles", "Overwrite", "OverDamaged",
                                           "OverwriteBesideFiles"};
  return cell.way + "_" + cell.place + "_" + kNames[static_cast<int>(cell.before)];
}

inline void PrintTo(const Cell& cell, std::ostream* stream) { *stream << NameOf(cell); }

inline std::unique_ptr<CellPlace> MakePlace(const std::string& name) {
  if (name == "Store") {
    return std::make_unique<Store>();
  }
  if (name == "S3" || name == "S3AtEachRequest") {
    return std::make_unique<S3>(name == "S3AtEachRequest");
  }
  const bool cached = name == "CachedDisk";
  return std::make_unique<Disk>(
      MemoryStorageOptions{.exchange = name != "DiskWithoutExchange" && name != "BareDisk",
                           .locks = name != "DiskWithoutLocks" && name != "BareDisk",
                           .direct = !cached,
                           .cached = !cached,
                           .links = name != "DiskWithoutLinks"});
}

inline std::unique_ptr<Way> MakeWay(const std::string& name, bool is_disk) {
  const std::uint64_t rows = is_disk ? 24 : 200;  // Object stores get files of several parts.
  const int ranks = is_disk ? 3 : 2;
  using Layout = LayoutWay::Layout;
  const Layout legacy{"rank0.pt", "rank1.pt"};
  const Layout torch{"model_and_optim/.metadata", "model_and_optim/__0_0.distcp", "train/rank0.pt"};
  const auto job = [&](Format format, int world, std::uint64_t of_rows) {
    return std::make_unique<JobWay>(name, format, world, of_rows);
  };
  const auto apart = [&](std::vector<int> order) {
    return std::make_unique<JobWay>(name, Format::kVarve, static_cast<int>(order.size()), rows,
                                    std::move(order));
  };
  const auto upload = [&](std::unique_ptr<Way> way, bool fixed_names) {
    return std::make_unique<UploadWay>(name, std::move(way), fixed_names && !is_disk);
  };
  const std::map<std::string, std::function<std::unique_ptr<Way>()>> ways{
      {"Varve", [&] { return job(Format::kVarve, 1, rows); }},
      {"VarveOfRanks", [&] { return job(Format::kVarve, ranks, rows); }},
      {"Dcp", [&] { return job(Format::kDcp, 1, rows); }},
      {"DcpOfRanks", [&] { return job(Format::kDcp, ranks, rows); }},
      {"Hf", [&] { return job(Format::kSafetensors, 1, is_disk ? 90 : 200); }},
      {"HfOfRanks", [&] { return job(Format::kSafetensors, ranks, is_disk ? 90 : 200); }},
      {"Hfai", [&] { return std::make_unique<HfaiWay>(name, 2, !is_disk); }},
      {"VarveWithSideFiles", [&] { return std::make_unique<SideFilesWay>(name, Format::kVarve); }},
      {"DcpWithSideFiles", [&] { return std::make_unique<SideFilesWay>(name, Format::kDcp); }},
      {"HfWithSideFiles",
       [&] { return std::make_unique<SideFilesWay>(name, Format::kSafetensors); }},
      {"Apart01", [&] { return apart({0, 1}); }},
      {"Apart012", [&] { return apart({0, 1, 2}); }},
      {"Apart201", [&] { return apart({2, 0, 1}); }},
      {"Apart120", [&] { return apart({1, 2, 0}); }},
      {"ApartThenNever",
       [&] {
         return std::make_unique<ApartThenNeverWay>(name, Format::kVarve, 3, rows,
                                                    std::vector<int>{2, 1, 0});
       }},
      {"ApartThenTogether",
       [&] {
         return std::make_unique<ApartThenTogetherWay>(name, Format::kVarve, 3, rows,
                                                       std::vector<int>{1, 0, 2});
       }},
      {"ApartThenTheOthers",
       [&] { return std::make_unique<ApartThenTheOthersWay>(name, Format::kVarve, rows); }},
      {"TogetherOverApart",
       [&] { return std::make_unique<TogetherOverApartWay>(name, Format::kVarve, 3, rows); }},
      {"DcpInPlace", [&] { return std::make_unique<InPlaceWay>(name, false); }},
      {"DcpInPlaceOfOneRank", [&] { return std::make_unique<InPlaceWay>(name, true); }},
      {"OlmoOfASmallerWorld",
       [&] { return std::make_unique<LayoutWay>(name, LayoutWay::Local(3), LayoutWay::Local(2)); }},
      {"OlmoLegacyOverLocal",
       [&] { return std::make_unique<LayoutWay>(name, LayoutWay::Local(2), legacy); }},
      {"OlmoLocalOverTorch",
       [&] { return std::make_unique<LayoutWay>(name, torch, LayoutWay::Local(1)); }},
      {"OlmoTorchOverLegacy", [&] { return std::make_unique<LayoutWay>(name, legacy, torch); }},
      {"ConvertToHf", [&] { return std::make_unique<ConvertWay>(name, false, !is_disk); }},
      {"Unshard", [&] { return std::make_unique<ConvertWay>(name, true, !is_disk); }},
      {"UploadOfVarve", [&] { return upload(job(Format::kVarve, 2, rows), false); }},
      {"UploadOfDcp", [&] { return upload(job(Format::kDcp, 2, rows), true); }},
      {"UploadOfHf", [&] { return upload(job(Format::kSafetensors, 2, rows), true); }},
      {"UploadOfHfai", [&] { return upload(std::make_unique<HfaiWay>(name, 2, false), true); }},
  };
  return ways.at(name)();
}

/// Halves the largest file of a checkpoint.
inline Status HalveTheLargest(Storage& storage, const std::string& path) {
  std::string largest;
  std::string content;
  std::vector<std::string> names;
  ListTree(storage, path, &names);
  for (const std::string& name : names) {
    const auto found = ReadWholeFile(storage, name, 1 << 24);
    if (found.ok() && found->size() > content.size()) {
      largest = name;
      content = *found;
    }
  }
  VARVE_RETURN_IF_ERROR(
      WriteWholeFile(storage, largest, content.substr(0, content.size() / 2), false));
  return storage.SyncDirectory(ParentPath(largest));
}

class CrashCell : public testing::TestWithParam<Cell> {
 protected:
  CrashCell()
      : place_(MakePlace(GetParam().place)), way_(MakeWay(GetParam().way, place_->is_disk())) {
    const Before before = GetParam().before;
    had_one_ = before != Before::kNothing && before != Before::kUsersFiles;
    damaged_ = before == Before::kDamaged;
    std::vector<Action>& actions = actions_;
    if (place_->is_disk()) {
      actions.emplace_back([](Storage& s) { return s.MakeDirectory("runs"); });
    }
    actions.emplace_back([this](Storage& s) { return way_->Prepare(s, place_->path()); });
    if (before == Before::kUsersFiles || before == Before::kBesideUsersFiles) {
      users_ = UsersFiles(place_->is_disk(), before == Before::kUsersFiles && !way_->stays,
                          way_->is_varve);
    }
    const auto write_users = [this](Storage& s) { return users_.Write(s, place_->path()); };
    const auto save_old = [this](Storage& s) {
      return way_->Save(OrderOf(s, 1, Overwrite::kNever));
    };
    if (had_one_ && !way_->takes_users) {
      actions.emplace_back(save_old);
    }
    actions.emplace_back(write_users);
    if (had_one_ && way_->takes_users) {
      actions.emplace_back(save_old);
    }
    if (damaged_) {
      actions.emplace_back([this](Storage& s) { return HalveTheLargest(s, place_->path()); });
    }
    place_->Begin(actions);
    place_->Coarsen(Stride());
  }

  /// Returns 1 where each step is tried: of Unshard beside other files, too, which it takes along.
  [[nodiscard]] std::uint64_t Stride() const {
    const std::string name = NameOf(GetParam());
    if (GetParam().place == "S3AtEachRequest" || name == "Unshard_Disk_OverwriteBesideFiles") {
      return 1;
    }
    return damaged_ ? 3 : way_->copies ? 2 : 1;  // The steps are those of an overwrite.
  }

  [[nodiscard]] Order OrderOf(Storage& storage, int number, Overwrite overwrite) const {
    return OrderFor(*way_, storage, place_->path(), number, overwrite);
  }
  [[nodiscard]] Overwrite overwrite() const {
    return !had_one_                              ? Overwrite::kNever
           : damaged_ && way_->takes_damaged_only ? Overwrite::kDamaged
                                                  : Overwrite::kAlways;
  }
  /// Returns true where the upload of a fixed name whose beginning got no answer stays.
  [[nodiscard]] bool keeps_uploads() const { return way_->has_gap && GetParam().place == "Store"; }
  Action SaveNew() {
    return [this](Storage& s) { return way_->Save(OrderOf(s, 2, overwrite())); };
  }
  Action SaveNext() {
    return
        [this](Storage& s) { return way_->SaveNext(OrderOf(s, way_->next(), Overwrite::kAlways)); };
  }
  Action Collect() {
    return [this](Storage& s) {
      const Status status = CollectGarbage(place_->run(), DryRun::kNo, s).status();
      return status.code() == StatusCode::kNotFound ? Status::Ok() : status;
    };
  }

  /// Returns which state is there, 0 for none, and checks that what is none is reported so.
  int Seen(Storage& storage) {
    const auto seen = way_->Seen(storage, place_->path());
    if (seen.ok()) {
      return *seen;
    }
    const StatusCode code = seen.status().code();
    const bool is_none =
        code == StatusCode::kNotFound ||
        (code == StatusCode::kFailedPrecondition && (way_->apart || way_->has_gap)) ||
        (damaged_ && (code == StatusCode::kDataLoss || !way_->is_listed ||
                      code == StatusCode::kFailedPrecondition));
    EXPECT_TRUE(is_none) << seen.status().ToString();
    return 0;
  }

  /// Checks that `ls` says what readers find.
  void CheckList(Storage& storage, int seen) {
    const auto listed = ListCheckpoints(place_->run(), storage);
    if (!listed.ok()) {
      EXPECT_EQ(listed.status().code(), StatusCode::kNotFound) << listed.status().ToString();
      EXPECT_EQ(seen, 0);
      return;
    }
    bool is_whole = false;
    for (const CheckpointEntry& entry : *listed) {
      is_whole =
          is_whole || (entry.name == "step-1" && (entry.state == CheckpointState::kWhole ||
                                                  entry.state == CheckpointState::kDisplaced));
      EXPECT_TRUE(!place_->has_locks() || entry.state != CheckpointState::kSaving) << entry.name;
    }
    EXPECT_TRUE(!way_->is_listed || is_whole == (seen != 0)) << "seen: " << seen;
  }

  /// Returns what is stored once the state is there, or nothing new. Checks that an overwrite
  /// without faults leaves no old data.
  const Names& NamesOf(int state) {
    auto& names = names_[state];
    if (names.empty()) {
      names = state == 2   ? place_->After({SaveNew()})
              : state == 3 ? place_->After({SaveNew(), SaveNext()})
                           : place_->After({});
      if (!way_->other_names.contains(state) &&
          (state == 3 || (state == 2 && had_one_ && !damaged_))) {
        EXPECT_EQ(names, NamesOf(state - 1));
      }
    }
    return names;
  }

  /// Checks that nothing is stored beyond what a save without faults would leave. Without locks no
  /// save knows whose files are stale.
  void CheckNames(const Left& left, int state) {
    // Where an index could not be read, what it named stays under a hidden name.
    const bool unread = left.fault && !IsChange(left.fault->operation);
    if (!unread && (!place_->is_disk() || place_->has_locks())) {
      Names names = left.names();
      // The upload of a fixed name whose beginning got no answer stays until the checkpoint of
      // these names is replaced.
      if (keeps_uploads() && !(left.outcome.ok() && state == 3)) {
        names.erase("(an upload)");
      }
      EXPECT_EQ(names, NamesOf(state));
    }
  }

  void JudgeSave(Left& left) {
    const int seen = Seen(left.storage);
    const int before = had_one_ && !damaged_ ? 1 : 0;
    std::set<int> allowed{2};
    if (left.fate == Left::Fate::kTold && IsVisible(left.outcome)) {
      EXPECT_TRUE(left.fault && left.fault->operation == Operation::kSyncDirectory);
    } else if (!left.outcome.ok()) {
      allowed.insert(before);
      if (way_->has_gap) {
        allowed.insert(0);
      }
      if (left.fate == Left::Fate::kTold && !IsOpen(left.outcome) && !way_->apart) {
        allowed.erase(2);
      }
    }
    EXPECT_TRUE(allowed.contains(seen)) << "seen: " << seen;
    EXPECT_TRUE(left.outcome.ok() || left.fate != Left::Fate::kPasses);
    CheckList(left.storage, seen);
    EXPECT_TRUE(users_.AreSomewhere(left.storage, place_->run(), place_->path()));
    if (left.fate == Left::Fate::kTold && !left.outcome.ok()) {
      CheckError(left);
    }
    if (left.disk != nullptr) {
      CheckNamesAfterError(left, seen);
      if (++shown_ % 3 != 0) {
        const auto copy = left.disk->AfterKill();
        Disk::Show(*copy, left.fate, left.outcome, left.fault,
                   [&](Left& other) { CheckGarbage(other, seen); });
      }
      CheckNext(left);
      const auto cut = left.disk->AfterPowerCut(PowerCut::kKeepSynced);
      EXPECT_EQ(Seen(*cut), way_->next());
      EXPECT_TRUE(users_.Are(*cut, place_->path()));
      return;
    }
    if (left.fate == Left::Fate::kDied) {
      CheckGarbage(left, seen);
    }
    CheckNext(left);
  }

  void CheckError(const Left& left) {
    const std::string& message = left.outcome.message();
    // What cannot be read may be taken for no checkpoint.
    const bool reads = left.fault && !IsChange(left.fault->operation);
    EXPECT_TRUE(reads || message.find(left.fault ? "injected" : "://bucket/") != std::string::npos)
        << message;
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
    if (way_->is_save && left.fault && IsChange(left.fault->operation)) {
      EXPECT_TRUE(FailsWith(left.outcome, left.fault->status.code(), {place_->path()}));
    }
  }

  /// A save on a disk that was told of an error has left nothing, but what it could not remove.
  void CheckNamesAfterError(const Left& left, int seen) {
    if (!left.fault || !IsChange(left.fault->operation) || way_->apart || way_->stays) {
      return;
    }
    const bool displaced = left.fault->operation == Operation::kRename && left.fault->forever &&
                           left.storage.List(DisplacedPath(place_->path())).ok();
    // Visible, but it may not survive; or the old one stays until files beside it are looked after.
    const bool beside = GetParam().before == Before::kUsersFiles ||
                        GetParam().before == Before::kBesideUsersFiles || way_->has_folders;
    const bool kept = seen == 2 && (!left.outcome.ok() || beside || way_->copies);
    if (left.fault->operation != Operation::kRemove && !displaced && !kept) {
      CheckNames(left, seen);
    }
  }

  /// Checks that gc harms nothing, and leaves nothing else where it knows whose files are stale.
  void CheckGarbage(Left& left, int seen) {
    const testing::ScopedTrace trace("", 0, "after gc");
    EXPECT_TRUE(IsOk(Collect()(left.storage)));
    EXPECT_EQ(Seen(left.storage), seen);
    CheckList(left.storage, seen);
    if (place_->is_disk() && !place_->has_locks()) {
      return;
    }
    EXPECT_TRUE(users_.Are(left.storage, place_->path()));
    if (way_->has_gap && seen == 0) {
      const std::string claim = JoinPath(place_->path(), std::string(kUploadClaim));
      EXPECT_TRUE(FailsWith(left.storage.OpenForRead(claim), StatusCode::kNotFound));
      EXPECT_TRUE(keeps_uploads() || !left.names().contains("(an upload)"));
    }
    if (!way_->stays && !way_->apart && !(way_->has_gap && seen == 0) &&
        !(way_->leaves_side_files && seen == 0)) {
      CheckNames(left, seen);
    }
  }

  void CheckNext(Left& left) {
    const testing::ScopedTrace trace("", 0, "after the next save");
    EXPECT_TRUE(IsOk(SaveNext()(left.storage)));
    EXPECT_EQ(Seen(left.storage), way_->next());
    EXPECT_TRUE(users_.Are(left.storage, place_->path()) ||
                (place_->is_disk() && !place_->has_locks()));
    if (!place_->is_disk()) {
      // What the failed save could not remove, or does not know to be there, is a day old.
      EXPECT_TRUE(IsOk(Collect()(left.storage)));
      EXPECT_EQ(Seen(left.storage), way_->next());
    }
    CheckList(left.storage, way_->next());
    CheckNames(left, 3);
  }

  std::vector<Action> actions_;  ///< That lead to what is there.
  std::unique_ptr<CellPlace> place_;
  std::unique_ptr<Way> way_;
  bool had_one_ = false;
  bool damaged_ = false;
  UsersFiles users_;
  std::map<int, Names> names_;
  std::uint64_t shown_ = 0;  ///< gc looks at two of three states.
};

inline std::vector<Cell> CellsOf(const std::vector<std::string>& ways,
                                 const std::vector<std::string>& places,
                                 const std::vector<Before>& befores) {
  std::vector<Cell> cells;
  for (const std::string& way : ways) {
    for (const std::string& place : places) {
      for (const Before before : befores) {
        cells.push_back({way, place, before});
      }
    }
  }
  return cells;
}

template <class... Rows>
auto Join(const Rows&... rows) {
  std::vector<Cell> all;
  (all.insert(all.end(), rows.begin(), rows.end()), ...);
  return testing::ValuesIn(all);
}

}  // namespace varve::test
