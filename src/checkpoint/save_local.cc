// A save without talking. NAME is a directory that fills up with one file per rank; every file says
// which save it belongs to, which rank wrote it and how many there are.
//
//  1. Make NAME if needed. Any rank may be first; each syncs PARENT, so that no rank's file can be
//     durable in a directory that is not.
//  2. Lock NAME/.rank-R.varve-lock: two processes that both think they are rank R, or two saves of
//     one name at once, do not write the same file.
//  3. Refuse a NAME that holds a committed checkpoint (it would hide these files), and without
//     overwrite one that is complete. File names carry the save id: the files of an older save
//     stay untouched, and a mix of two saves is two incomplete sets, never one complete one.
//  4. Write .FILE.varve-part and sync it. A crash leaves a part, which nobody reads and the next
//     save by rank R removes.
//  5. Rename it to FILE without replacing, then sync NAME. A file under its own name is whole.
//  6. NAME is a checkpoint as soon as the files of all ranks are there: readers count them. No rank
//     has to be told. Whoever sees its save complete removes the files of older ones: with
//     overwrite all, without it those of saves that died incomplete. A crash before that leaves
//     both, and readers take the newest complete one.

#include "checkpoint/save_local.h"

#include <chrono>

#include "checkpoint/commit.h"
#include "checkpoint/data_writer.h"
#include "checkpoint/names.h"
#include "checkpoint/scan.h"
#include "format/commit_record.h"

namespace varve {
namespace {

/// Returns whether the directory holds files of other saves.
Result<bool> CheckTarget(Storage& storage, const std::string& path, const SaveId& id,
                         bool overwrite) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  for (const DirectoryEntry& entry : entries) {
    if (entry.name == kCommitRecordName) {
      return AlreadyExists(path +
                           " holds a committed checkpoint; a save without coordination "
                           "cannot replace it, choose another name");
    }
  }
  VARVE_ASSIGN_OR_RETURN(const ScanResult scan, ScanDataFiles(storage, path));
  bool others = false;
  for (const FileGroup& group : scan.groups) {
    others = others || group.save_id != id;
    if (group.complete() && group.save_id != id && !overwrite) {
      return AlreadyExists(path + " already holds a checkpoint; pass overwrite to replace it");
    }
  }
  return others;
}

/// Removes what earlier saves of this rank were writing when they died. The rank's lock is held.
Status RemoveDeadParts(Storage& storage, const std::string& path, std::uint32_t rank) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  for (const DirectoryEntry& entry : entries) {
    if (PartRank(entry.name) == rank) {
      VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(path, entry.name)));
    }
  }
  return Status::Ok();
}

/// Once this save is complete, the older ones are no longer wanted; complete ones only go if they
/// may be overwritten.
Status RemoveOlderSaves(Storage& storage, const std::string& path, const SaveId& id,
                        bool overwrite) {
  VARVE_ASSIGN_OR_RETURN(const ScanResult scan, ScanDataFiles(storage, path));
  bool found = false;
  for (const FileGroup& group : scan.groups) {  // Newest first.
    if (group.save_id == id) {
      if (!group.complete()) {
        return Status::Ok();
      }
      found = true;
      // The other ranks' names must be as durable as ours before older files go.
      VARVE_RETURN_IF_ERROR(storage.SyncDirectory(path));
      continue;
    }
    const bool wanted = group.complete() && !overwrite;
    for (std::size_t i = 0; found && !wanted && i < group.files.size(); ++i) {
      VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(path, DataFileName(group.files[i].header))));
    }
  }
  return Status::Ok();
}

Result<SaveReport> SaveOwnFile(const State& state, const std::string& path,
                               const SaveOptions& options, int rank, int world_size) {
  const auto start = std::chrono::steady_clock::now();
  Storage& storage = options.storage != nullptr ? *options.storage : PosixStorage();
  FileIdentity identity;
  identity.rank = static_cast<std::uint32_t>(rank);
  identity.world_size = static_cast<std::uint32_t>(world_size);
  identity.coordinated = false;
  identity.created_ns = UnixTimeNs();
  identity.block_bytes = options.block_bytes;
  if (options.save_id) {
    identity.save_id = *options.save_id;
  } else if (world_size == 1) {
    VARVE_ASSIGN_OR_RETURN(identity.save_id, RandomSaveId());
  } else {
    return InvalidArgument("give save_id, the same on every rank and new for every attempt");
  }
  VARVE_ASSIGN_OR_RETURN(const LocalPlan plan, MakeLocalPlan(state));

  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, path));        // Step 1.
  auto lock = storage.Lock(RankLockPath(path, identity.rank));  // Step 2.
  if (lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition("another save of " + path + " by rank " + std::to_string(rank) +
                              " is under way");
  }
  if (!lock.ok() && lock.status().code() != StatusCode::kUnimplemented) {
    return lock.status();
  }
  VARVE_ASSIGN_OR_RETURN(const bool others,  // Step 3.
                         CheckTarget(storage, path, identity.save_id, options.overwrite));
  if (lock.ok()) {
    VARVE_RETURN_IF_ERROR(RemoveDeadParts(storage, path, identity.rank));
  }
  const RankAssignment assignment = AssignEverything(plan);
  VARVE_ASSIGN_OR_RETURN(FilePlan file, PlanFile(plan, assignment, identity));
  const std::string name = DataFileName(file.header);
  const std::string part = PartPath(path, name);
  VARVE_RETURN_IF_ERROR(storage.Remove(part));                         // A dead save's.
  auto written = WriteDataFile(storage, part, state, std::move(file),  // Step 4.
                               assignment.structure, options);
  Status status = written.status();
  if (status.ok()) {
    status = storage.Rename(part, JoinPath(path, name), RenameMode::kNoReplace);  // Step 5.
  }
  if (!status.ok()) {
    (void)storage.Remove(part);
    return status;
  }
  VARVE_RETURN_IF_ERROR(storage.SyncDirectory(path));
  if (options.overwrite || others) {  // Step 6.
    VARVE_RETURN_IF_ERROR(RemoveOlderSaves(storage, path, identity.save_id, options.overwrite));
  }
  return SaveReport{identity.save_id,
                    written->bytes,
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                    written->direct,
                    {}};
}

}  // namespace

Result<SaveReport> SaveRankLocal(const State& state, const std::string& path,
                                 const SaveOptions& options, int rank, int world_size) {
  return SaveOwnFile(state, path, options, rank, world_size)
      .Annotate("save " + path + " without coordination: rank " + std::to_string(rank));
}

}  // namespace varve
