// An uncoordinated save. NAME is a directory that fills up with one file per rank; every file says
// which save it belongs to, which rank wrote it and how many there are.
//
//  1. Refuse a NAME whose committed checkpoint an interrupted overwrite has displaced (commit.cc,
//     step 9): readers find it by NAME as long as nothing is there, and these files would hide it.
//     Make NAME if needed. Any rank may be first; each syncs PARENT, so that no rank's file can be
//     durable in a directory that is not.
//  2. Lock NAME/.rank-R.varve-lock: two processes that both think they are rank R, or two saves of
//     one name at once, do not write the same file.
//  3. Refuse a NAME that holds a committed checkpoint (it would hide these files) or one of another
//     format (these files would hide it), and without overwrite one that is complete; one that is
//     pinned in any case. File names carry the save id: the files of an older save stay untouched,
//     and a mix of two saves is two incomplete sets, never one complete one.
//  4. Write .FILE.varve-part and sync it. A crash leaves a part, which no reader reads and the next
//     save by rank R removes.
//  5. Rename it to FILE without replacing, then sync NAME. A file under its own name is whole. If
//     ranks that save together have published a checkpoint in NAME since step 3, it hides the file,
//     which is removed again.
//  6. NAME is a checkpoint as soon as the files of all ranks are there: readers count them. No
//     message is needed. A rank that finds its save complete removes the files of older ones: with
//     overwrite all, without it those of saves that died incomplete. Never those of ranks that
//     save together: a commit record may count on them. A crash before that leaves
//     both, and readers take the newest complete one.
//     Two saves of one name that overwrite at once may both become complete, and must not remove
//     each other. So which one is older is told by rank 0's file alone: more files do not change
//     it, as they would change the latest time of all, and the newest complete save loses nothing.
//     A save whose rank 0 has no file yet may turn out to be newer. Its files are removed under
//     rank 0's lock, with which none can come meanwhile, or without locks when they are a day older
//     than this save. Rank 0's file goes last. A damaged file does not tell its age, and readers
//     refuse the directory while its set may be the newer one. With overwrite it is removed, if it
//     was there in step 3.
//
// In an object store names cannot be changed and there are no locks, but a file appears whole or
// not at all, when its upload is completed (ConditionalWrites). There step 1 does nothing: nothing
// is ever displaced, and directories need not be made. Step 2 is a look: a FILE that is there ends
// the save, as the rename of step 5 would. Two processes that think they are rank R of the same
// save and upload at once are not found out; the file of the later one stays, whole. Step 4 writes
// FILE itself, and a crash leaves an upload that was not completed, which `varve gc` ends when it
// is a day old. Of step 5 the look for a checkpoint that was published meanwhile remains.

#include "save/local.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "base/guarded.h"
#include "base/trace.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/scan.h"
#include "format/commit_record.h"
#include "plan/index_size.h"
#include "publish/claim.h"
#include "publish/publisher.h"
#include "publish/save_id.h"
#include "save/data_writer.h"
#include "save/written_format.h"

namespace varve {
namespace {

/// Reads the header of one file of a set that is to be replaced. Errors: those of a file that is
/// neither damaged nor removed, as one of a newer version: the save could not remove it, and
/// readers would not know which set is the newer one.
Status CheckKnown(Storage& storage, const std::string& path, const NamedSet& set) {
  const Status read = TryHeader(storage, path, set.files.begin()->second);
  const bool may_go =
      read.ok() || read.code() == StatusCode::kDataLoss || read.code() == StatusCode::kNotFound;
  return may_go ? Status::Ok() : read.Annotate("a file of the checkpoint that is to be replaced");
}

/// Returns the names of data files of other saves in the directory. Goes by names: decoding headers
/// would cost each rank a read of every file that the others have published.
Result<std::set<std::string>> CheckTarget(Storage& storage, const std::string& path,
                                          const SaveId& id, bool overwrite) {
  std::set<std::string> others;
  const auto listed = storage.List(path);
  if (listed.status().code() == StatusCode::kNotFound) {
    return others;  // In an object store the first file makes the directory.
  }
  VARVE_RETURN_IF_ERROR(listed.status());
  const auto& entries = *listed;
  for (const DirectoryEntry& entry : entries) {
    if (RecordNumber(entry.name)) {
      return AlreadyExists(path +
                           " holds a committed checkpoint; a save without coordination "
                           "cannot replace it, choose another name");
    }
  }
  if (const auto format = ShownFormat(storage, path, entries);
      format && *format != Format::kVarve && IsCheckpoint(storage, path, entries)) {
    return AlreadyExists(path + " holds a checkpoint of another format (" +
                         std::string(FormatName(*format)) +
                         "); a save without coordination cannot replace it: remove it (`varve "
                         "rm`), or choose another name");
  }
  for (const NamedSet& set : GroupByName(entries)) {
    const bool other = set.save != NamedSave(id);
    for (const auto& [rank, name] : set.files) {
      if (other) {
        others.insert(name);
      }
    }
    if (other && set.complete() && !overwrite) {
      return AlreadyExists(path + " already holds a checkpoint; pass overwrite to replace it");
    }
    if (other && set.complete()) {
      VARVE_RETURN_IF_ERROR(CheckNotPinned(path, entries));
      VARVE_RETURN_IF_ERROR(CheckKnown(storage, path, set));
    }
  }
  return others;
}

/// Errors: AlreadyExists when readers take a displaced checkpoint for the one at `path`.
Status CheckDisplaced(Storage& storage, const std::string& path) {
  for (const std::string& displaced : DisplacedPaths(storage, path)) {
    if (HoldsCheckpoint(storage, displaced)) {
      std::string message = path;
      message +=
          " is the name of a committed checkpoint, which an interrupted overwrite has left at ";
      message += displaced;
      message +=
          "; a save without coordination cannot replace it. `varve gc` gives it its name back; "
          "choose another name";
      return AlreadyExists(std::move(message));
    }
  }
  return Status::Ok();
}

/// Removes the parts that earlier saves of this rank left when they died. The rank's lock is held.
Status RemoveDeadParts(Storage& storage, const std::string& path, std::uint32_t rank) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  for (const DirectoryEntry& entry : entries) {
    if (PartRank(entry.name) == rank) {
      VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(path, entry.name)));
    }
  }
  return Status::Ok();
}

/// Returns true where no file of rank 0 can come to a save that has none, so that it never becomes
/// complete: while `lock` is held, which this call takes, or for its age where there are no locks.
/// A save by rank 0 that begins while the lock is held is refused.
bool NeverCompletes(Storage& storage, const std::string& path, const FileGroup& group,
                    std::uint64_t ours_ns, std::unique_ptr<StorageLock>* lock) {
  auto locked = storage.Lock(RankLockPath(path, 0));
  if (!locked.ok()) {
    constexpr std::uint64_t kDay = std::uint64_t{24} * 3600 * 1'000'000'000;
    return locked.status().code() == StatusCode::kUnimplemented &&
           group.created_ns + kDay < ours_ns;
  }
  *lock = *std::move(locked);
  const auto entries = storage.List(path);
  if (!entries.ok()) {
    return false;
  }
  const std::vector<NamedSet> sets = GroupByName(*entries);
  return std::none_of(sets.begin(), sets.end(), [&](const NamedSet& set) {
    return set.save == NamedSave(group.save_id) && set.files.contains(0);
  });
}

/// Removes the files of a save, that of rank 0 last: it tells the save's age.
Status RemoveGroup(Storage& storage, const std::string& path, const FileGroup& group) {
  for (auto file = group.files.rbegin(); file != group.files.rend(); ++file) {
    VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(path, DataFileName(file->header))));
  }
  return Status::Ok();
}

/// Removes older saves once this one is complete; complete ones only if they may be overwritten.
/// `before` names the files of others that were there before this rank wrote its own. `is_rank_0`:
/// the caller holds rank 0's lock.
Status RemoveOlderSaves(Storage& storage, const std::string& path, const SaveId& id, bool overwrite,
                        const std::set<std::string>& before, bool is_rank_0) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  const std::vector<NamedSet> sets = GroupByName(entries);
  const bool complete = std::any_of(sets.begin(), sets.end(), [&](const NamedSet& set) {
    return set.save == NamedSave(id) && set.complete();
  });
  if (!complete || sets.size() == 1) {
    return Status::Ok();
  }
  // Headers tell which saves are older, and that this one is as complete as its names say.
  VARVE_ASSIGN_OR_RETURN(const ScanResult scan, ScanDataFiles(storage, path));
  for (const UnreadFile& unread : scan.unread) {
    const StatusCode code = unread.why.code();
    if (code != StatusCode::kDataLoss && code != StatusCode::kNotFound) {
      return unread.why;  // Not damage: a save that lacks a file here may be complete.
    }
  }
  const auto ours = std::find_if(scan.groups.begin(), scan.groups.end(),
                                 [&](const FileGroup& group) { return group.save_id == id; });
  if (ours == scan.groups.end() || !ours->complete()) {
    return Status::Ok();
  }
  // The other ranks' names must be as durable as ours before older files go.
  VARVE_RETURN_IF_ERROR(storage.SyncDirectory(path));
  for (const UnreadFile& unread : scan.unread) {  // First: those of its save are then incomplete.
    // Read again: a host that reads badly once must not remove what is good.
    if (overwrite && unread.why.code() == StatusCode::kDataLoss && IsRankFileName(unread.name) &&
        before.contains(unread.name) &&
        TryHeader(storage, path, unread.name).code() == StatusCode::kDataLoss) {
      VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(path, unread.name)));
    }
  }
  for (auto group = std::next(ours); group != scan.groups.end(); ++group) {  // Newest first.
    const bool wanted = group->complete() && !overwrite;
    // Never a file of ranks that saved together: a commit record may count on it by now.
    const bool theirs = !group->files.empty() && group->files[0].header.identity.coordinated;
    if (wanted || theirs) {
      continue;
    }
    std::unique_ptr<StorageLock> lock;
    if (group->has_rank_0() || is_rank_0 ||
        NeverCompletes(storage, path, *group, ours->created_ns, &lock)) {
      VARVE_RETURN_IF_ERROR(RemoveGroup(storage, path, *group));
    }
  }
  return Status::Ok();
}

class RankLocalSave final : public SaveSession {
 public:
  RankLocalSave(const State& state, const std::string& path, const SaveOptions& options,
                Storage& storage)
      : state_(&state), path_(path), options_(options), storage_(storage) {}

  /// Resumes a save that was planned by another process.
  RankLocalSave(SettledSave settled, const std::string& path, const SaveOptions& options,
                Storage& storage)
      : path_(path),
        options_(options),
        storage_(storage),
        start_(std::chrono::steady_clock::now()) {
    settled_ = std::move(settled);
  }

  Status Resume() {
    VARVE_ASSIGN_OR_RETURN(const FilePlan file,
                           PlanFile(settled_.plan(), settled_.assignment(), identity()));
    file_name_ = DataFileName(file.header);
    VARVE_ASSIGN_OR_RETURN(work_, DescribeDataFile(file));
    return Status::Ok();
  }

  Status Plan(Coordinator& coordinator, const Status& ready) override {
    start_ = std::chrono::steady_clock::now();
    settled_.identity.rank = static_cast<std::uint32_t>(coordinator.rank());
    settled_.identity.world_size = static_cast<std::uint32_t>(coordinator.size());
    const PhaseTimer timer(&phases_, "plan");
    prepared_ = Guarded([&] { return (ready.ok() ? MakePlan() : ready).Annotate(What()); });
    return prepared_;
  }

  Result<SaveReport> Write(Coordinator& /*coordinator*/, StagedFile* staged,
                           const Status& ready) override {
    return Guarded([&] {
      return (ready.ok() ? Publish(staged) : Result<SaveReport>(ready)).Annotate(What());
    });
  }

 private:
  [[nodiscard]] const FileIdentity& identity() const { return settled_.identity; }
  [[nodiscard]] bool overwrite() const { return options_.overwrite != Overwrite::kNever; }
  [[nodiscard]] std::string What() const {
    return "save " + path_ + " without coordination: rank " + std::to_string(identity().rank);
  }

  Status MakePlan() {
    VARVE_RETURN_IF_ERROR(CheckSaveOptions(options_, path_));
    if (!state_->files.empty()) {
      return InvalidArgument(
          "files cannot be saved without coordination: no rank knows when the checkpoint is whole");
    }
    FileIdentity& mine = settled_.identity;
    mine.coordinated = false;
    mine.created_ns = UnixTimeNs();
    mine.block_bytes = options_.block_bytes;
    if (options_.save_id) {
      mine.save_id = *options_.save_id;
    } else if (mine.world_size == 1) {
      VARVE_ASSIGN_OR_RETURN(mine.save_id, RandomSaveId());
    } else {
      return InvalidArgument("give save_id, the same on every rank and new for every attempt");
    }
    VARVE_RETURN_IF_ERROR(CheckPickles(*state_, options_.format));
    VARVE_ASSIGN_OR_RETURN(LocalPlan plan, MakeLocalPlan(*state_));
    VARVE_RETURN_IF_ERROR(CheckOwnHeaderSize(plan, 1));
    settled_.settled.ranks = {AssignEverything(plan)};
    settled_.plans.push_back(std::move(plan));
    VARVE_ASSIGN_OR_RETURN(const FilePlan file,
                           PlanFile(settled_.plan(), settled_.assignment(), mine));
    file_name_ = DataFileName(file.header);
    VARVE_ASSIGN_OR_RETURN(work_, PrepareDataFile(*state_, file, settled_.assignment().structure));
    return Status::Ok();
  }

  /// Steps 1 to 4, and the renaming of step 5. Sets `others`: the files of other saves that are
  /// there; and `lock`, where there are locks.
  Result<WrittenShare> WriteFile(StagedFile* staged, std::set<std::string>* others,
                                 std::unique_ptr<StorageLock>* lock) {
    VARVE_RETURN_IF_ERROR(CheckDisplaced(storage_, path_));  // Step 1.
    VARVE_RETURN_IF_ERROR(MakeDirectories(storage_, path_));
    auto locked = storage_.Lock(RankLockPath(path_, identity().rank));  // Step 2.
    if (locked.status().code() == StatusCode::kFailedPrecondition) {
      return FailedPrecondition("another save of " + path_ + " by this rank is under way");
    }
    if (!locked.ok() && locked.status().code() != StatusCode::kUnimplemented) {
      return locked.status();
    }
    *lock = locked.ok() ? *std::move(locked) : nullptr;
    VARVE_ASSIGN_OR_RETURN(*others,  // Step 3.
                           CheckTarget(storage_, path_, identity().save_id, overwrite()));
    if (*lock != nullptr) {
      VARVE_RETURN_IF_ERROR(RemoveDeadParts(storage_, path_, identity().rank));
    }
    Result<WrittenShare> written = Internal("not written");
    const auto write = [&](const std::string& file) {  // Step 4.
      written = WriteFileWork(storage_, file, work_, staged, options_, &phases_);
      return written.status();
    };
    const Status published =
        PublisherOf(storage_, path_)->PublishFile(JoinPath(path_, file_name_), {}, write);
    const StatusCode code = published.code();
    const bool unanswered = code == StatusCode::kUnavailable || code == StatusCode::kCancelled;
    if (unanswered && TellsNothing(storage_, path_, published)) {
      return Status(code,
                    published.message() + "; this rank's file may be there, and is whole then")
          .With(published.details());
    }
    VARVE_RETURN_IF_ERROR(published);
    return written;
  }

  Result<SaveReport> Publish(StagedFile* staged) {
    std::set<std::string> others;
    std::unique_ptr<StorageLock> lock;  // To the end of step 6.
    VARVE_ASSIGN_OR_RETURN(const WrittenShare written, WriteFile(staged, &others, &lock));
    std::optional<PhaseTimer> timer(std::in_place, &phases_, "commit");
    // A record that cannot be read now may be another's fault: the files of the others would be
    // incomplete without this one.
    const StatusCode record = ReadCommitRecord(storage_, path_).status().code();
    if (record == StatusCode::kOk || record == StatusCode::kDataLoss) {
      (void)storage_.Remove(JoinPath(path_, file_name_));
      return AlreadyExists("another save has published a committed checkpoint meanwhile");
    }
    if (overwrite() || !others.empty()) {  // Step 6.
      const bool is_rank_0 = lock != nullptr && identity().rank == 0;
      VARVE_RETURN_IF_ERROR(
          RemoveOlderSaves(storage_, path_, identity().save_id, overwrite(), others, is_rank_0));
    }
    timer.reset();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    SaveReport report{identity().save_id, written.bytes, seconds.count(), written.direct};
    report.device_bytes = written.device_bytes;
    report.pageable_bytes = written.pageable_bytes;
    report.phases = std::move(phases_);
    return report;
  }

  const State* const state_ = nullptr;  // Null where it was planned elsewhere.
  const std::string& path_;
  const SaveOptions& options_;
  Storage& storage_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

std::unique_ptr<SaveSession> MakeRankLocalSave(const State& state, const std::string& path,
                                               const SaveOptions& options, Storage& storage) {
  return std::make_unique<RankLocalSave>(state, path, options, storage);
}

Result<std::unique_ptr<SaveSession>> ResumeRankLocalSave(SettledSave settled,
                                                         const std::string& path,
                                                         const SaveOptions& options,
                                                         Storage& storage) {
  auto save = std::make_unique<RankLocalSave>(std::move(settled), path, options, storage);
  VARVE_RETURN_IF_ERROR(save->Resume());
  return std::unique_ptr<SaveSession>(std::move(save));
}

}  // namespace varve
