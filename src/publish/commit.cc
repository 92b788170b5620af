// Rule A: how a checkpoint becomes visible where a directory can take its name in one step. NAME is
// its directory, PARENT the directory that is in. All else goes by rule B (index_commit.cc).
//
//  0. If NAME is a symbolic link, all of this is about the directory that it leads to.
//     Make PARENT if needed, each new level synced into the one above it. A PARENT that exists is
//     synced as well: its maker may have died before it did so.
//  1. Lock .NAME.varve-lock. Two saves of one name at once: the second gets FailedPrecondition
//     before it writes a byte. The lock ends with its holder, so a killed save blocks none. On a
//     file system without locks (kUnimplemented) the save goes on without: staging names are
//     unique, so nothing is ever mixed and step 9 decides who wins; only step 3 is then skipped.
//  2. If NAME is absent but .NAME.varve-old is there, a crash hit an overwrite between 9b and 9c:
//     the old checkpoint gets its name back.
//  3. Remove what dead saves of NAME left (we hold the lock: its maker has died), but no file of
//     the user's (replaced.cc). PARENT is synced first: if the dead save had published but not
//     synced (9 without 10), a power cut would give NAME back the directory that is being emptied.
//     A save that can be resumed keeps the staging directory of its own id and goes on in it: the
//     id is a digest of the source and the options. It trusts a file there by its name, which the
//     file gets only when it is whole and durable, and by its size. Without the mark of step 7 it
//     does not resume: after step 9 a directory of this name is the old checkpoint. Nor does it
//     without locks: the directory's maker may live.
//  4. Without overwrite, an existing NAME ends the save here, before any work. With overwrite,
//     NAME must be a checkpoint, ours or another software's, and not pinned: nothing else is ever
//     replaced. Where only a damaged one may be replaced, all its bytes are verified here, under
//     the lock. An empty directory is as good as nothing; it stays until step 9. Then make the
//     staging directory .NAME.varve-saving-<id>, hidden and unique. If NAME holds files that are
//     not part of the checkpoint, find out whether they can be kept (other_files.cc), as far as the
//     names that the new one will have are known.
//  5. (All ranks) write data files into it, each synced by its writer: a file that the commit
//     record counts on is durable before the record exists. A save that puts files into folders
//     gives the staging directory the mark of step 7 before the first of them.
//  6. Check that every planned file is there with its exact size. Finds ranks whose path is
//     another disk than the coordinator's, and files cut short by whatever cause.
//  7. Write and sync side files. Give each file that is in NAME and not part of the checkpoint a
//     second name in the staging directory (other_files.cc). If there is any of either, the
//     directory first gets the durable mark .varve-staging. Then write and sync manifest.bin, then
//     varve.json. The order means that a record never stands without its manifest, whatever the
//     crash. (A checkpoint in another format has that format's index instead.)
//  8. Sync the staging directory: the files' names are durable before the directory's name is.
//     Remove the mark, if there is one, and sync again. After a crash, a directory with the mark is
//     a dead save's; in one without it the index tells which files are the checkpoint's.
//  9. Publish. Nothing at NAME, or an empty directory: (a) rename, which replaces no more than an
//     empty directory. If another save published NAME since step 4 (possible only without locks)
//     this save fails and theirs stays.
//     Something at NAME: exchange the two names in one step, so that at every instant NAME is one
//     whole checkpoint. Where the system has no exchange: (b) move NAME to .NAME.varve-old, sync
//     PARENT, (c) rename staging to NAME. A crash between b and c leaves NAME absent; readers, ls
//     and the next save know .NAME.varve-old.
//     Without locks step 3 has left the .NAME.varve-old of a save that died between c and 11: it
//     would be in the way of every overwrite from then on. It is moved to a name of a staging
//     directory; if NAME is a checkpoint then, PARENT is synced, so that no power cut takes NAME
//     back, and it is removed as in step 11. If NAME is absent, a living save has just made step b,
//     and gets it back. (Should we die at that instant, and the other save before its c, the old
//     checkpoint is left under a hidden name that only a person finds: two saves of one name at
//     once, both killed, and neither locks nor exchange.)
// 10. Sync PARENT: only now is the save reported as done; a power cut cannot take it back.
// 11. Remove the old checkpoint, and nothing that is not part of it (replaced.cc). A crash here
//     leaves a part of it under a hidden name that the next save or `varve gc` removes; NAME is
//     already the new one.

#include "publish/commit.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/guarded.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/side_files.h"
#include "format/commit_record.h"
#include "format/manifest.h"
#include "publish/claim.h"
#include "publish/families.h"
#include "publish/replaced.h"
#include "publish/save_id.h"

namespace varve {
namespace {

class RenameCommit final : public Commit {
 public:
  static Result<std::unique_ptr<Commit>> Begin(Storage& storage, const std::string& name,
                                               const CommitTerms& terms);
  RenameCommit(const RenameCommit&) = delete;
  RenameCommit& operator=(const RenameCommit&) = delete;
  ~RenameCommit() override;

  [[nodiscard]] const std::string& staging() const override { return staging_; }
  Status MarkStaging() override;
  Status Publish(const std::vector<DataFile>& files, const std::vector<IndexFile>& index) override;

 private:
  RenameCommit(Storage& storage, std::string path, std::string staging,
               std::unique_ptr<StorageLock> lock, bool overwrite);
  Status MakeVisible(const std::vector<DataFile>& files, const std::vector<IndexFile>& index);
  Status SyncFolders(const std::vector<DataFile>& files);
  Status KeepOnly(const std::vector<BroughtFile>& brought);
  Status CheckOthers(const std::vector<BroughtFile>& brought);
  Status AddFiles();
  Status FinishStaging();
  Status Displace();
  Status Replace();

  Storage& storage_;
  std::string path_;
  std::string staging_;
  std::unique_ptr<StorageLock> lock_;
  bool overwrite_;       ///< A checkpoint stands at `path_`.
  bool marked_ = false;  ///< The staging directory has the mark.
  bool done_ = false;
};

RenameCommit::RenameCommit(Storage& storage, std::string path, std::string staging,
                           std::unique_ptr<StorageLock> lock, bool overwrite)
    : storage_(storage),
      path_(std::move(path)),
      staging_(std::move(staging)),
      lock_(std::move(lock)),
      overwrite_(overwrite) {}

RenameCommit::~RenameCommit() {
  if (!done_) {
    // Best effort: what cannot be removed now is recognised and removed later (step 3).
    (void)Guarded([&] { return storage_.Remove(staging_); });
  }
}

Result<std::unique_ptr<Commit>> RenameCommit::Begin(Storage& storage, const std::string& name,
                                                    const CommitTerms& terms) {
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(name));
  VARVE_ASSIGN_OR_RETURN(const std::string path, FollowLinks(storage, name));
  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, ParentPath(path)));  // Step 0.
  auto lock = LockName(storage, path);                                // Step 1.
  if (!lock.ok() && lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition("another save of " + path +
                              " is under way; wait for it or choose another name");
  }
  const bool locked = lock.ok();
  if (!locked && lock.status().code() != StatusCode::kUnimplemented) {
    return lock.status();
  }
  VARVE_RETURN_IF_ERROR(RecoverDisplaced(storage, path));  // Step 2.
  std::vector<std::string> conflicts;
  std::string staging = StagingPath(path, terms.id);
  const bool resumes = locked && terms.resume == Resume::kYes &&
                       storage.OpenForRead(JoinPath(staging, kStagingMark)).ok();
  if (locked) {
    const std::string kept = resumes ? staging : std::string();
    VARVE_RETURN_IF_ERROR(RemoveStaleOf(storage, path, &conflicts, kept));  // Step 3.
  }
  VARVE_ASSIGN_OR_RETURN(const Occupant occupant,
                         CheckOccupant(storage, path, terms.overwrite, terms.stop));  // Step 4.
  if (const Status made = storage.MakeDirectory(staging);
      !made.ok() && !(resumes && made.code() == StatusCode::kAlreadyExists)) {
    return made;
  }
  std::unique_ptr<RenameCommit> commit(new RenameCommit(storage, path, std::move(staging),
                                                        locked ? std::move(*lock) : nullptr,
                                                        occupant == Occupant::kCheckpoint));
  commit->conflicts_ = std::move(conflicts);
  VARVE_RETURN_IF_ERROR(resumes ? commit->KeepOnly(terms.brought) : Status::Ok());
  VARVE_RETURN_IF_ERROR(commit->CheckOthers(terms.brought));
  return std::unique_ptr<Commit>(std::move(commit));
}

/// Removes what the save that is resumed has put beside its files: second names of the user's
/// files, which may have changed since.
Status RenameCommit::KeepOnly(const std::vector<BroughtFile>& brought) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(staging_));
  for (const DirectoryEntry& entry : entries) {
    const bool wanted = entry.name == kStagingMark ||
                        std::any_of(brought.begin(), brought.end(), [&](const BroughtFile& file) {
                          return file.name == entry.name;
                        });
    VARVE_RETURN_IF_ERROR(wanted ? Status::Ok() : storage_.Remove(JoinPath(staging_, entry.name)));
  }
  return Status::Ok();
}

Status RenameCommit::CheckOthers(const std::vector<BroughtFile>& brought) {
  if (!overwrite_) {
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(const Inventory found, TakeInventory(storage_, path_));
  VARVE_RETURN_IF_ERROR(CheckNoneIsTaken(storage_, path_, found.others, brought));
  return CheckCanKeep(storage_, path_, found.others, staging_);
}

Status RenameCommit::MarkStaging() {
  VARVE_RETURN_IF_ERROR(
      WriteWholeFile(storage_, JoinPath(staging_, kStagingMark), "", /*exclusive=*/false));
  marked_ = true;
  return storage_.SyncDirectory(staging_);
}

/// Makes the names of files in folders durable, and those of the folders in their parents.
Status RenameCommit::SyncFolders(const std::vector<DataFile>& files) {
  std::set<std::string> folders;
  for (const DataFile& file : files) {
    for (std::size_t end = file.name.rfind('/'); end != std::string::npos;
         end = end == 0 ? std::string::npos : file.name.rfind('/', end - 1)) {
      folders.insert(file.name.substr(0, end));
    }
  }
  for (const std::string& folder : folders) {
    VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(JoinPath(staging_, folder)));
  }
  return Status::Ok();
}

Status RenameCommit::AddFiles() {
  Inventory found;
  if (overwrite_) {
    VARVE_ASSIGN_OR_RETURN(found, TakeInventory(storage_, path_));
  }
  if (found.others.empty() && side_files_.empty()) {
    return Status::Ok();
  }
  if (!marked_) {
    VARVE_RETURN_IF_ERROR(MarkStaging());
  }
  VARVE_RETURN_IF_ERROR(WriteSideFiles(storage_, staging_, side_files_));
  return KeepOtherFiles(storage_, path_, found.others, staging_);
}

Status RenameCommit::FinishStaging() {
  VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(staging_));
  if (!marked_) {
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(staging_, kStagingMark)));
  return storage_.SyncDirectory(staging_);
}

Status RenameCommit::Displace() {
  const std::string displaced = DisplacedPath(path_);
  Status moved = storage_.Rename(path_, displaced, RenameMode::kNoReplace);
  if (moved.code() != StatusCode::kAlreadyExists) {
    return moved;
  }
  VARVE_ASSIGN_OR_RETURN(const SaveId other, RandomSaveId());  // Not our own staging directory.
  const std::string away = StagingPath(path_, other);
  VARVE_RETURN_IF_ERROR(storage_.Rename(displaced, away, RenameMode::kNoReplace));
  if (!HoldsCheckpoint(storage_, path_)) {
    (void)storage_.Rename(away, displaced, RenameMode::kNoReplace);
    return FailedPrecondition("another save of " + path_ +
                              " is under way, or what it has moved to " + displaced +
                              " is the only checkpoint of that name; `varve gc` gives it the name");
  }
  // What has just been published at NAME is durable before the only other copy goes.
  VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(ParentPath(path_)));
  std::erase_if(conflicts_, [&](const std::string& kept) {
    return kept.starts_with(displaced);  // Named again below, under its new name.
  });
  VARVE_RETURN_IF_ERROR(RemoveReplaced(storage_, away, path_, &conflicts_));
  return storage_.Rename(path_, displaced, RenameMode::kNoReplace);
}

Status RenameCommit::Replace() {
  Status exchanged = storage_.Rename(staging_, path_, RenameMode::kExchange);
  if (exchanged.code() != StatusCode::kUnimplemented) {
    return exchanged;
  }
  VARVE_RETURN_IF_ERROR(Displace());  // 9b.
  Status status = storage_.SyncDirectory(ParentPath(path_));
  if (status.ok()) {
    status = storage_.Rename(staging_, path_, RenameMode::kNoReplace);  // 9c.
  }
  if (!status.ok()) {
    (void)RecoverDisplaced(storage_, path_);  // If this fails too, readers still find it.
  }
  return status;
}

Status RenameCommit::Publish(const std::vector<DataFile>& files,
                             const std::vector<IndexFile>& index) {
  return WithoutNotFound(MakeVisible(files, index));
}

Status RenameCommit::MakeVisible(const std::vector<DataFile>& files,
                                 const std::vector<IndexFile>& index) {
  VARVE_RETURN_IF_ERROR(CheckFilesAreThere(storage_, staging_, files));  // Step 6.
  VARVE_RETURN_IF_ERROR(SyncFolders(files));
  VARVE_RETURN_IF_ERROR(AddFiles());  // Step 7.
  for (const IndexFile& file : index) {
    VARVE_RETURN_IF_ERROR(WriteWholeFile(storage_, JoinPath(staging_, file.name), file.content));
  }
  VARVE_RETURN_IF_ERROR(FinishStaging());  // Step 8.
  if (overwrite_) {                        // Step 9.
    VARVE_RETURN_IF_ERROR(Replace());
  } else {
    VARVE_RETURN_IF_ERROR(storage_.Rename(staging_, path_, RenameMode::kReplace));
  }
  // From here on the new checkpoint is what readers see: whatever happens, it must not be removed
  // as an abandoned staging directory.
  done_ = true;
  if (Status status = storage_.SyncDirectory(ParentPath(path_)); !status.ok()) {  // Step 10.
    return status.Annotate("the checkpoint is visible but may not survive a power cut");
  }
  if (overwrite_) {  // Step 11.
    (void)RemoveReplaced(storage_, staging_, path_, &conflicts_);
    (void)RemoveReplaced(storage_, DisplacedPath(path_), path_, &conflicts_);
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Commit>> Commit::Begin(Storage& storage, const std::string& name,
                                              const CommitTerms& terms) {
  return PublisherOf(storage, name)->Begin(name, terms);
}

Result<std::unique_ptr<Commit>> FileSystemPublisher::Begin(const std::string& path,
                                                           const CommitTerms& terms) {
  auto commit = terms.index.stays ? BeginInPlaceCommit(storage_, path, terms)
                                  : RenameCommit::Begin(storage_, path, terms);
  return commit.ok() ? std::move(commit) : WithoutNotFound(commit.status());
}

Status WithoutNotFound(const Status& status) {
  if (status.code() != StatusCode::kNotFound) {
    return CopyOf(status);
  }
  return Status(StatusCode::kUnavailable,
                status.message() + "; a directory was removed or renamed during the save")
      .With(status.details());
}

Status MayBeVisible(const Status& written) {
  ErrorDetails details = written.details();
  details.reason = ErrorReason::kMayBeVisible;
  return Status(written.code(),
                written.message() + "; the checkpoint may be visible: its data were kept")
      .With(std::move(details));
}

Status CheckFilesAreThere(Storage& storage, const std::string& directory,
                          const std::vector<DataFile>& files) {
  using Entries = std::vector<DirectoryEntry>;
  std::map<std::string, Entries> folders;
  std::string missing;
  for (const DataFile& file : files) {
    const std::string folder = ParentPath(JoinPath(directory, file.name));
    auto entries = folders.find(folder);
    if (entries == folders.end()) {
      auto listed = storage.List(folder);
      const bool is_gone = listed.status().code() == StatusCode::kNotFound;
      if (is_gone && folder == directory) {
        return Unavailable(directory +
                           " was removed while the save wrote there, by another program or by "
                           "`varve gc` on another machine; save again");
      }
      if (!listed.ok() && !is_gone) {
        return listed.status();
      }
      entries = folders.emplace(folder, Entries()).first;
      if (listed.ok()) {
        entries->second = *std::move(listed);
      }
    }
    const std::string_view name = std::string_view(file.name).substr(file.name.rfind('/') + 1);
    const DirectoryEntry* const found = FindEntry(entries->second, name);
    if (found == nullptr) {
      missing += missing.empty() ? "" : ", ";
      missing += "rank " + std::to_string(file.rank);
    } else if (found->size != file.size) {
      return DataLoss(JoinPath(directory, file.name) + " of rank " + std::to_string(file.rank) +
                      " has " + std::to_string(found->size) + " bytes instead of " +
                      std::to_string(file.size));
    }
  }
  if (!missing.empty()) {
    return FailedPrecondition("data files of " + missing + " are not in " + directory +
                              " as the coordinator sees it; all ranks must save to one shared "
                              "file system");
  }
  return Status::Ok();
}

Result<std::vector<IndexFile>> NativeIndex(const Metadata& metadata) {
  VARVE_ASSIGN_OR_RETURN(EncodedManifest manifest, EncodeManifest(metadata));
  Bytes record = EncodeCommitRecord(MakeCommitRecord(metadata, manifest));
  return std::vector<IndexFile>{{std::string(kManifestName), std::move(manifest.bytes)},
                                {std::string(kCommitRecordName), std::move(record)}};
}

Status ReplaceIndex(Storage& storage, const std::string& directory, const Metadata& metadata) {
  VARVE_ASSIGN_OR_RETURN(const auto index, NativeIndex(metadata));
  for (const IndexFile& file : index) {
    const std::string path = JoinPath(directory, file.name);
    const auto present = ReadWholeFile(storage, path, file.content.size());
    if (present.ok() && *present == file.content) {
      continue;  // Readers hold their locks on the record that is there.
    }
    VARVE_RETURN_IF_ERROR(  // Durable before the next: a record needs its manifest.
        PublisherOf(storage, path)
            ->PublishFile(path, {.replaces = true}, [&](const std::string& part) {
              return WriteWholeFile(storage, part, file.content, /*exclusive=*/false);
            }));
  }
  return Status::Ok();
}

}  // namespace varve
