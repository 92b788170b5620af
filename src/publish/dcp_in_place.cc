// What rule B (index_commit.cc) does beyond its own steps in a directory that stays, for a DCP
// checkpoint. NAME is the directory, INDEX is NAME/.metadata for a save by all ranks,
// NAME/__R.metadata for a save by rank R on its own.
//
//  0. If NAME is a symbolic link, all of this is about the directory that it leads to. Make NAME if
//     needed, each new level synced into the one above it. NAME and PARENT are synced into theirs
//     also where they exist: their maker may have died before it did so.
//  1. Lock. A second save of the name that is under way at once gets FailedPrecondition before it
//     has written a byte; the two would use the same numbers. All ranks: .NAME.varve-lock, which
//     saves that replace NAME as a whole (commit.cc) take too, and NAME/.in-place.varve-lock, which
//     machines see that have NAME mounted under another parent. Where the parent cannot be written,
//     the second lock alone: NAME cannot be replaced there. One rank: NAME/.rank-R.varve-lock. On a
//     file system without locks the save goes on; steps 3, 6 and 7 say what differs then.
//  2. List NAME, with the lock held, and check it as step 1 of rule B says.
//  3. The highest number N in any __R_N.distcp counts, there or named: this save's files are
//     numbered from N + 1. So no file that an index mentions is written to, not even one that it mentions
//     and that is missing. A file is created exclusively: a rank of a dead job that still writes,
//     or a second save where there are no locks, collides with an error instead of mixing bytes.
//  6. (a) Sync NAME: the names of the data files are durable before an index names them.
//     (b) Write INDEX.tmp, sync it, rename it to INDEX. At every instant INDEX is the old one or
//     the new one, and the files of both are there. From the rename on this save's files stay,
//     whatever it returned: on a network the rename may have happened although its answer was an
//     error. Before it, a save that fails removes its files; without locks they stay, for their
//     numbers may be another save's.
//     (c) Sync NAME: only now is the save reported as done. If this fails, a power cut may bring
//     the old INDEX back, so its files stay too.
//  7. Remove what step 3 found and the new INDEX does not name: files that the old one named, stale
//     files with names of DCP's, and for all ranks the __R.metadata that NAME had. One rank removes
//     files of its own number only. Nothing else in NAME is touched: no folder, and no file that
//     came since step 3. Without locks only what the old INDEX named goes; the rest may be a live
//     save's. A crash here leaves files that nothing names; the next save removes them.

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "catalogue/formats/dcp.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "interop/dcp/data_name.h"
#include "publish/claim.h"
#include "publish/index_slot.h"
#include "publish/replaced.h"
#include "varve/storage.h"

namespace varve {
namespace {

bool IsFile(const DirectoryEntry& entry) { return !entry.is_directory || entry.is_link; }

Status UnderWay(const std::string& path) {
  return FailedPrecondition("another save of " + path +
                            " is under way; wait for it or choose another name");
}

class Renamed final : public IndexSlot {
 public:
  Renamed(Storage& storage, const std::string& path, const IndexTerms& index)
      : IndexSlot(storage, path, path), rank_(index.rank), index_(index.name) {}

  /// Steps 1 to 3.
  Status Claim(Overwrite overwrite, std::vector<std::string>* conflicts);

  Status Replace(const std::string& content, bool* stays) override;
  Status RemoveReplaced(const std::vector<DataFile>& files) override;
  Status RemoveOwn() override;
  [[nodiscard]] std::uint64_t first() const override { return first_; }

 private:
  Status Lock(std::vector<std::string>* conflicts);
  [[nodiscard]] Status CheckPlace(const std::vector<DirectoryEntry>& entries,
                                  Overwrite overwrite) const;
  void TakeStock(const std::vector<DirectoryEntry>& entries);

  [[nodiscard]] std::string At(const std::string& name) const { return JoinPath(path_, name); }
  [[nodiscard]] std::string Part() const { return At(index_ + ".tmp"); }
  [[nodiscard]] bool IsIndexToReplace(const std::string& name) const {
    return rank_ ? name == index_ : IsDcpIndexName(name);
  }
  /// Returns true for a name that saves of this kind may remove.
  [[nodiscard]] bool IsOurs(const std::string& name) const {
    const auto data = ParseDcpDataName(name);
    return rank_ ? data && data->rank == *rank_ : IsDcpName(name);
  }

  const std::optional<std::uint32_t> rank_;
  const std::string index_;                          ///< Its name in `path_`.
  std::vector<std::unique_ptr<StorageLock>> locks_;  ///< Empty where there are none.
  std::uint64_t first_ = 0;
  std::set<std::string> replaced_;  ///< In `path_`, to be removed once the new index is durable.
};

Status Renamed::Lock(std::vector<std::string>* conflicts) {
  if (!rank_) {
    auto outer = LockName(storage_, path_);
    if (outer.status().code() == StatusCode::kFailedPrecondition) {
      return UnderWay(path_);
    }
    if (outer.ok()) {
      locks_.push_back(std::move(*outer));
      VARVE_RETURN_IF_ERROR(RemoveStaleOf(storage_, path_, conflicts));
    }
  }
  auto inner = TakeLock(storage_, rank_ ? RankLockPath(path_, *rank_) : InPlaceLockPath(path_));
  if (inner.status().code() == StatusCode::kFailedPrecondition) {
    return UnderWay(path_);
  }
  if (inner.ok()) {
    locks_.push_back(std::move(*inner));
    return Status::Ok();
  }
  locks_.clear();
  return inner.status().code() == StatusCode::kUnimplemented ? Status::Ok() : inner.status();
}

Status Renamed::CheckPlace(const std::vector<DirectoryEntry>& entries, Overwrite overwrite) const {
  const auto format = ShownFormat(storage_, path_, entries);
  const bool native = format == Format::kVarve;
  if (rank_ && (native || FindEntry(entries, kDcpIndexName) != nullptr)) {
    return WouldNeverBeRead(path_);
  }
  const bool taken =
      rank_ ? FindEntry(entries, index_) != nullptr : native || format == Format::kDcp;
  if (taken && overwrite == Overwrite::kNever) {
    return AlreadyExists(path_ + " already holds a checkpoint; pass overwrite to replace it");
  }
  VARVE_RETURN_IF_ERROR(taken ? CheckNotPinned(path_, entries) : Status::Ok());
  if (native) {
    return FailedPrecondition(
        path_ +
        " holds a checkpoint in Varve's own format, which readers would open instead of what is "
        "saved there. It cannot be replaced as a whole, since its directory is a mount point or "
        "the one above cannot be written; remove it or choose another name");
  }
  return Status::Ok();
}

void Renamed::TakeStock(const std::vector<DirectoryEntry>& entries) {
  std::set<std::string> named;
  for (const DirectoryEntry& entry : entries) {
    if (!IsFile(entry) || !IsIndexToReplace(entry.name)) {
      continue;
    }
    // An index that cannot be read names nothing: an overwrite is the way to get rid of it.
    if (auto names = NamesInDcpIndex(storage_, At(entry.name)); names.ok()) {
      named.insert(names->begin(), names->end());
    }
  }
  const auto count = [this](const std::string& name) {
    const auto data = ParseDcpDataName(name);
    if (data && (!rank_ || data->rank == *rank_)) {
      first_ = std::max(first_, data->number + 1);
    }
  };
  std::for_each(named.begin(), named.end(), count);
  for (const DirectoryEntry& entry : entries) {
    count(entry.name);
    const auto data = ParseDcpDataName(entry.name);
    const bool of_another_rank = rank_ && data && data->rank != *rank_;
    const bool was_named = named.contains(entry.name) && !of_another_rank;
    const bool stale = !locks_.empty() && IsOurs(entry.name);
    if (was_named || stale || (!rank_ && IsDcpIndexName(entry.name))) {
      replaced_.insert(entry.name);
    }
  }
  replaced_.erase(index_);
}

Status Renamed::Replace(const std::string& content, bool* stays) {
  VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(path_));                                   // (a)
  VARVE_RETURN_IF_ERROR(WriteWholeFile(storage_, Part(), content, /*exclusive=*/false));  // (b)
  *stays = true;
  VARVE_RETURN_IF_ERROR(storage_.Rename(Part(), At(index_), RenameMode::kReplace));
  return storage_.SyncDirectory(path_).Annotate(  // (c)
      "the checkpoint is visible but may not survive a power cut");
}

Status Renamed::RemoveReplaced(const std::vector<DataFile>& files) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(path_));
  for (const DataFile& file : files) {
    replaced_.erase(file.name);
  }
  for (const DirectoryEntry& entry : entries) {
    if (IsFile(entry) && replaced_.contains(entry.name)) {
      (void)storage_.Remove(At(entry.name));  // What stays goes with the next save.
    }
  }
  return Status::Ok();
}

/// The numbers are the save's own while it holds its locks.
Status Renamed::RemoveOwn() {
  if (locks_.empty()) {
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(path_));
  (void)storage_.Remove(Part());
  for (const DirectoryEntry& entry : entries) {
    const auto data = ParseDcpDataName(entry.name);
    if (data && IsFile(entry) && IsOurs(entry.name) && data->number >= first_) {
      (void)storage_.Remove(At(entry.name));
    }
  }
  return Status::Ok();
}

Status Renamed::Claim(Overwrite overwrite, std::vector<std::string>* conflicts) {
  VARVE_RETURN_IF_ERROR(Lock(conflicts));  // Step 1.
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(path_));
  VARVE_RETURN_IF_ERROR(CheckPlace(entries, overwrite));  // Step 2.
  TakeStock(entries);                                     // Step 3.
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<IndexSlot>> RenamedSlot(Storage& storage, const std::string& path,
                                               const CommitTerms& terms,
                                               std::vector<std::string>* conflicts) {
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path));
  VARVE_ASSIGN_OR_RETURN(const std::string where, FollowLinks(storage, path));
  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, ParentPath(where)));  // Step 0.
  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, where));
  auto slot = std::make_unique<Renamed>(storage, where, terms.index);
  VARVE_RETURN_IF_ERROR(slot->Claim(terms.overwrite, conflicts));
  return std::unique_ptr<IndexSlot>(std::move(slot));
}

}  // namespace varve
