// How a DCP checkpoint comes into a directory that stays. NAME is the directory, INDEX is
// NAME/.metadata for a save by all ranks, NAME/__R.metadata for a save by rank R on its own. INDEX
// decides: no reader reads data files that it does not name. So a save prepares all its files
// beside the old data files, and one rename of INDEX makes the new ones the checkpoint.
//
//  0. If NAME is a symbolic link, all of this is about the directory that it leads to. Make NAME if
//     needed, each new level synced into the one above it. NAME and PARENT are synced into theirs
//     also where they exist: their maker may have died before it did so.
//  1. Lock. A second save of the name that is under way at once gets FailedPrecondition before it
//     has written a byte; the two would use the same numbers. All ranks: .NAME.varve-lock, which
//     saves that replace NAME as a whole (commit.cc) take too, and NAME/.in-place.varve-lock, which
//     machines see that have NAME mounted under another parent. Where the parent cannot be written,
//     the second lock alone: NAME cannot be replaced there. One rank: NAME/.rank-R.varve-lock. On a
//     file system without locks the save goes on; steps 4, 7 and 9 say what differs then.
//  2. Refuse a NAME where readers would open another checkpoint than this one: Varve's own format,
//     and for a rank on its own the `.metadata` of all. Without overwrite, refuse an INDEX that is
//     there; and one whose checkpoint is pinned in any case. Nothing has been written yet but
//     directories.
//  3. Take stock, before any file of this save exists: what INDEX names, what has a name of DCP's
//     (own_names.h), and the highest number N in any __R_N.distcp, there or named. This save's
//     files are numbered from N + 1. So no file that an index mentions is written to, not even one
//     that it mentions and that is missing.
//  4. (All ranks) write __R_N.distcp, each synced by its writer. A file is created exclusively: a
//     rank of a dead job that still writes, or a second save where there are no locks, collides
//     with an error instead of mixing bytes. A crash leaves files that no index names; step 9 of
//     the next save removes them.
//  5. Check that every planned file is there with its exact size. Finds ranks whose path is another
//     disk than the coordinator's, and files that were cut short.
//  6. Sync NAME: the names of the data files are durable before an index names them.
//  7. Write INDEX.tmp, sync it, rename it to INDEX. At every instant INDEX is the old one or the
//  new
//     one, and the files of both are there. From the rename on this save's files stay, whatever it
//     returned: on a network the rename may have happened although its answer was an error. Before
//     it, a save that fails removes its files; without locks they stay, for their numbers may be
//     another save's.
//  8. Sync NAME: only now is the save reported as done. If this fails, a power cut may bring the
//  old
//     INDEX back, so its files stay too.
//  9. Remove what step 3 found and the new INDEX does not name: files that the old one named, stale
//     files with names of DCP's, and for all ranks the __R.metadata that NAME had. One rank removes
//     files of its own number only. Nothing else in NAME is touched: no folder, and no file that
//     came since step 3. Without locks only what the old INDEX named goes; the rest may be a live
//     save's. A crash here leaves files that nothing names; the next save removes them.

#include "publish/dcp_in_place.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "base/guarded.h"
#include "catalogue/foreign.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "interop/dcp/data_name.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/replaced.h"
#include "varve/storage.h"

namespace varve {
namespace {

constexpr std::string_view kIndexName = ".metadata";

bool IsFile(const DirectoryEntry& entry) { return !entry.is_directory || entry.is_link; }

Status UnderWay(const std::string& path) {
  return FailedPrecondition("another save of " + path +
                            " is under way; wait for it or choose another name");
}

}  // namespace

struct DcpInPlaceCommit::Impl {
  Storage& storage;
  std::string path;
  std::optional<std::uint32_t> rank;
  std::string index;                                ///< Its name in `path`.
  std::vector<std::unique_ptr<StorageLock>> locks;  ///< Empty where there are none.
  std::uint64_t first = 0;
  std::vector<std::string> conflicts;
  std::set<std::string> replaced;  ///< In `path`, to be removed once the new index is durable.
  bool indexed = false;            ///< The index may name this save's files.

  Status Lock();
  Status CheckPlace(const std::vector<DirectoryEntry>& entries, bool overwrite) const;
  void TakeStock(const std::vector<DirectoryEntry>& entries);
  Status CheckFiles(const std::vector<std::pair<std::string, std::uint64_t>>& files) const;
  Status ReplaceIndex(const std::string& metadata);
  void RemoveReplaced(const std::vector<std::pair<std::string, std::uint64_t>>& files) const;
  void RemoveOwn() const;

 private:
  [[nodiscard]] std::string At(const std::string& name) const { return JoinPath(path, name); }
  [[nodiscard]] std::string Part() const { return At(index + ".tmp"); }
  [[nodiscard]] bool IsIndexToReplace(const std::string& name) const {
    return rank ? name == index : IsDcpIndexName(name);
  }
  /// Returns true for a name that saves of this kind may remove.
  [[nodiscard]] bool IsOurs(const std::string& name) const {
    const auto data = ParseDcpDataName(name);
    return rank ? data && data->rank == *rank : IsDcpName(name);
  }
};

Status DcpInPlaceCommit::Impl::Lock() {
  if (!rank) {
    auto outer = LockName(storage, path);
    if (outer.status().code() == StatusCode::kFailedPrecondition) {
      return UnderWay(path);
    }
    if (outer.ok()) {
      locks.push_back(std::move(*outer));
      VARVE_RETURN_IF_ERROR(RemoveStaleOf(storage, path, &conflicts));
    }
  }
  auto inner = TakeLock(storage, rank ? RankLockPath(path, *rank) : InPlaceLockPath(path));
  if (inner.status().code() == StatusCode::kFailedPrecondition) {
    return UnderWay(path);
  }
  if (inner.ok()) {
    locks.push_back(std::move(*inner));
    return Status::Ok();
  }
  locks.clear();
  return inner.status().code() == StatusCode::kUnimplemented ? Status::Ok() : inner.status();
}

Status DcpInPlaceCommit::Impl::CheckPlace(const std::vector<DirectoryEntry>& entries,
                                          bool overwrite) const {
  const auto format = ShownFormat(entries);
  const bool native = format == Format::kVarve;
  if (rank && (native || FindEntry(entries, kIndexName) != nullptr)) {
    return FailedPrecondition(path +
                              " holds a checkpoint that ranks saved together: what one rank saves "
                              "beside it would never be read; choose another name");
  }
  const bool taken = rank ? FindEntry(entries, index) != nullptr : native || format == Format::kDcp;
  if (taken && !overwrite) {
    return AlreadyExists(path + " already holds a checkpoint; pass overwrite to replace it");
  }
  VARVE_RETURN_IF_ERROR(taken ? CheckNotPinned(path, entries) : Status::Ok());
  if (native) {
    return FailedPrecondition(
        path +
        " holds a checkpoint in Varve's own format, which readers would open instead of what is "
        "saved there. It cannot be replaced as a whole, since its directory is a mount point or "
        "the one above cannot be written; remove it or choose another name");
  }
  return Status::Ok();
}

void DcpInPlaceCommit::Impl::TakeStock(const std::vector<DirectoryEntry>& entries) {
  std::set<std::string> named;
  for (const DirectoryEntry& entry : entries) {
    if (!IsFile(entry) || !IsIndexToReplace(entry.name)) {
      continue;
    }
    // An index that cannot be read names nothing: an overwrite is the way to get rid of it.
    if (auto names = NamesInDcpIndex(storage, At(entry.name)); names.ok()) {
      named.insert(names->begin(), names->end());
    }
  }
  const auto count = [this](const std::string& name) {
    const auto data = ParseDcpDataName(name);
    if (data && (!rank || data->rank == *rank)) {
      first = std::max(first, data->number + 1);
    }
  };
  std::for_each(named.begin(), named.end(), count);
  for (const DirectoryEntry& entry : entries) {
    count(entry.name);
    const auto data = ParseDcpDataName(entry.name);
    const bool of_another_rank = rank && data && data->rank != *rank;
    const bool was_named = named.contains(entry.name) && !of_another_rank;
    const bool stale = !locks.empty() && IsOurs(entry.name);
    if (was_named || stale || (!rank && IsDcpIndexName(entry.name))) {
      replaced.insert(entry.name);
    }
  }
  replaced.erase(index);
}

Status DcpInPlaceCommit::Impl::CheckFiles(
    const std::vector<std::pair<std::string, std::uint64_t>>& files) const {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  for (const auto& [name, size] : files) {
    const DirectoryEntry* const found = FindEntry(entries, name);
    if (found == nullptr) {
      return FailedPrecondition(At(name) +
                                " is not there as the coordinator sees it; all ranks must save to "
                                "one shared file system");
    }
    if (found->size != size) {
      return DataLoss(At(name) + " has " + std::to_string(found->size) +
                      " bytes, its writer reported " + std::to_string(size));
    }
  }
  return Status::Ok();
}

Status DcpInPlaceCommit::Impl::ReplaceIndex(const std::string& metadata) {
  VARVE_RETURN_IF_ERROR(storage.SyncDirectory(path));                                     // Step 6.
  VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, Part(), metadata, /*exclusive=*/false));  // Step 7.
  indexed = true;
  VARVE_RETURN_IF_ERROR(storage.Rename(Part(), At(index), RenameMode::kReplace));
  return storage.SyncDirectory(path).Annotate(  // Step 8.
      "the checkpoint is visible but may not survive a power cut");
}

/// Removes replaced files. Best effort: no index names a file that stays, and the next save removes
/// it.
void DcpInPlaceCommit::Impl::RemoveReplaced(
    const std::vector<std::pair<std::string, std::uint64_t>>& files) const {
  const auto entries = storage.List(path);
  if (!entries.ok()) {
    return;
  }
  std::set<std::string> left = replaced;
  for (const auto& [name, size] : files) {
    left.erase(name);
  }
  for (const DirectoryEntry& entry : *entries) {
    if (IsFile(entry) && left.contains(entry.name)) {
      (void)storage.Remove(At(entry.name));
    }
  }
}

/// Removes what this save has written, as well as it can. The numbers are its own while it holds
/// its locks.
void DcpInPlaceCommit::Impl::RemoveOwn() const {
  const auto entries = storage.List(path);
  if (locks.empty() || !entries.ok()) {
    return;
  }
  (void)storage.Remove(Part());
  for (const DirectoryEntry& entry : *entries) {
    const auto data = ParseDcpDataName(entry.name);
    if (data && IsFile(entry) && IsOurs(entry.name) && data->number >= first) {
      (void)storage.Remove(At(entry.name));
    }
  }
}

DcpInPlaceCommit::DcpInPlaceCommit(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

DcpInPlaceCommit::~DcpInPlaceCommit() {
  if (!impl_->indexed) {
    (void)Guarded([&] {
      impl_->RemoveOwn();
      return Status::Ok();
    });
  }
}

Result<std::unique_ptr<DcpInPlaceCommit>> DcpInPlaceCommit::Begin(const std::string& path,
                                                                  const DcpInPlaceOptions& options,
                                                                  Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string resolved, ResolvePath(path, storage));
  VARVE_RETURN_IF_ERROR(NeedsRenames(storage, resolved, "a checkpoint in DCP's format"));
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(resolved));
  VARVE_ASSIGN_OR_RETURN(std::string where, FollowLinks(storage, resolved));
  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, ParentPath(where)));  // Step 0.
  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, where));
  std::string index(kIndexName);
  if (options.rank) {
    index = "__" + std::to_string(*options.rank) + index;
  }
  auto impl =
      std::make_unique<Impl>(Impl{storage, std::move(where), options.rank, std::move(index)});
  VARVE_RETURN_IF_ERROR(impl->Lock());  // Step 1.
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(impl->path));
  VARVE_RETURN_IF_ERROR(impl->CheckPlace(entries, options.overwrite));  // Step 2.
  impl->TakeStock(entries);                                             // Step 3.
  return std::unique_ptr<DcpInPlaceCommit>(new DcpInPlaceCommit(std::move(impl)));
}

const std::string& DcpInPlaceCommit::directory() const { return impl_->path; }

std::uint64_t DcpInPlaceCommit::first() const { return impl_->first; }

const std::vector<std::string>& DcpInPlaceCommit::conflicts() const { return impl_->conflicts; }

Status DcpInPlaceCommit::Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                                 const std::string& metadata) {
  VARVE_RETURN_IF_ERROR(impl_->CheckFiles(files));  // Step 5.
  VARVE_RETURN_IF_ERROR(impl_->ReplaceIndex(metadata));
  impl_->RemoveReplaced(files);  // Step 9.
  return Status::Ok();
}

}  // namespace varve
