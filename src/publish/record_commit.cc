// How a checkpoint becomes visible where names cannot be changed and there are no locks, as in an
// object store. NAME is its directory; a file there appears whole, when it is complete.
//
//  1. List NAME. Without overwrite, an existing checkpoint ends the save here, before any work.
//  With
//     it, what is there must be a checkpoint of Varve's own: an index of another software has one
//     name alone, and could only be replaced by removing it first. Remember the number of the
//     newest record (0 where there is none).
//  2. (All ranks) write data files into NAME/varve-data-<id>. The id is unique, so no save touches
//  the
//     files of another, and nothing that is visible changes.
//  3. Check that every planned file is there with its exact size. Finds ranks that write elsewhere.
//  4. Write side files and manifest.bin into the same directory.
//  5. Publish: write the commit record, which names the directory, as varve-N.json with the next
//     number (varve.json for the first), on condition that nobody has. Readers take the highest
//     number. Two saves of one name at once: one of them gets AlreadyExists here and removes its
//     own files. A crash before leaves a directory that no record names; after it, the save has
//     succeeded. The answer may be lost and the request sent again: the storage compares what is
//     there with what was to be written, and the record holds the id. Where the answer never comes,
//     nobody knows whether the record is there or will be: the data stay, and the save says so.
//  6. List NAME again. While this save wrote its data, another may have published the same number,
//     and a third may have replaced that and removed it: the number was free again, and is not the
//     highest. Then nobody reads this save's record; it is taken back, and the save fails as in
//     step 5. It fails as well where its data are gone: somebody has removed the checkpoint.
//  7. Remove what is replaced: older records first, from the lowest number on, then their
//     directories. A crash in between leaves an old record below the new one, which nobody reads,
//     or a directory that no record names. `varve gc` removes both, and directories only when all
//     in them is a day old: without locks a save that lives looks like one that died.

#include <algorithm>
#include <utility>

#include "base/patience.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/side_files.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/records.h"

namespace varve {
namespace {

class RecordCommit final : public Commit {
 public:
  RecordCommit(Storage& storage, std::string path, const SaveId& id, std::uint64_t replaced)
      : storage_(storage),
        path_(std::move(path)),
        id_(id),
        staging_(JoinPath(path_, DataDirectoryName(id))),
        replaced_(replaced) {}
  RecordCommit(const RecordCommit&) = delete;
  RecordCommit& operator=(const RecordCommit&) = delete;
  ~RecordCommit() override {
    if (!done_) {
      // Best effort: what cannot be removed now is garbage a day later.
      BestEffort([&] { return storage_.Remove(staging_); });
    }
  }

  [[nodiscard]] const std::string& staging() const override { return staging_; }
  Status MarkStaging() override { return Status::Ok(); }  // No other save looks into it.
  Status Publish(const std::vector<DataFile>& files, const std::vector<IndexFile>& index) override;

 private:
  Status WriteRecord(const std::string& encoded);
  [[nodiscard]] Status AnotherWasFirst() const;
  Status CheckIsNewest(const std::string& name);

  Storage& storage_;
  const std::string path_;
  const SaveId id_;
  const std::string staging_;
  const std::uint64_t replaced_;  ///< The number of the newest record before; 0: none.
  bool done_ = false;
};

Status RecordCommit::Publish(const std::vector<DataFile>& files,
                             const std::vector<IndexFile>& index) {
  VARVE_RETURN_IF_ERROR(CheckFilesAreThere(storage_, staging_, files));    // Step 3.
  VARVE_RETURN_IF_ERROR(WriteSideFiles(storage_, staging_, side_files_));  // Step 4.
  for (const IndexFile& file : index) {
    if (file.name != kCommitRecordName) {
      VARVE_RETURN_IF_ERROR(WriteWholeFile(storage_, JoinPath(staging_, file.name), file.content));
    }
  }
  if (index.empty() || index.back().name != kCommitRecordName) {
    return Internal(path_ + ": a save with another index than it has begun with");
  }
  VARVE_RETURN_IF_ERROR(WriteRecord(index.back().content));  // Steps 5 and 6.
  done_ = true;
  if (replaced_ > 0) {  // Step 7. What is left is below the new record, and garbage.
    BestEffort([&] { return RemoveRecordsBelow(storage_, path_, replaced_ + 1); });
  }
  return Status::Ok();
}

Status RecordCommit::AnotherWasFirst() const {
  return replaced_ == 0
             ? AlreadyExists(path_ +
                             " already holds a checkpoint: another save of this name was published "
                             "meanwhile")
             : FailedPrecondition(path_ +
                                  ": another save of this name was published meanwhile; its "
                                  "checkpoint stays");
}

/// Step 6. Takes the record `name` back where it is not the newest.
Status RecordCommit::CheckIsNewest(const std::string& name) {
  const auto entries = storage_.List(path_);
  if (entries.ok() && NewestRecord(*entries) > replaced_ + 1) {
    VARVE_RETURN_IF_ERROR(storage_.Remove(name));
    return AnotherWasFirst();
  }
  if (const auto files = storage_.List(staging_); files.status().code() == StatusCode::kNotFound) {
    VARVE_RETURN_IF_ERROR(storage_.Remove(name));
    return FailedPrecondition(path_ + ": what this save had written was removed meanwhile");
  }
  return Status::Ok();
}

Status RecordCommit::WriteRecord(const std::string& encoded) {
  VARVE_ASSIGN_OR_RETURN(CommitRecord record, DecodeCommitRecord(encoded));
  record.directory = DataDirectoryName(id_);
  const std::string name = JoinPath(path_, RecordName(replaced_ + 1));
  Status written =
      storage_.extras().conditional_writes->WriteIfAbsent(name, EncodeCommitRecord(record));
  if (written.ok()) {
    return CheckIsNewest(name);
  }
  if (written.code() == StatusCode::kAlreadyExists) {
    return AnotherWasFirst();
  }
  if (written.code() == StatusCode::kUnavailable || written.code() == StatusCode::kCancelled) {
    // The record may be there, or come yet: looking once would not prove its absence. The data
    // stay; where no record names them, they are garbage a day later.
    done_ = true;
    return MayBeVisible(written);
  }
  return written;
}

}  // namespace

Result<std::unique_ptr<Commit>> BeginRecordCommit(Storage& storage, const std::string& path,
                                                  const CommitTerms& terms) {
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path));
  VARVE_ASSIGN_OR_RETURN(const bool exclusive,
                         storage.extras().conditional_writes->Prepare(ParentPath(path)));
  const auto entries = storage.List(path);  // Step 1.
  if (!entries.ok() && entries.status().code() != StatusCode::kNotFound) {
    return entries.status();
  }
  std::uint64_t replaced = 0;
  if (entries.ok()) {
    replaced = NewestRecord(*entries);
    const bool leftovers =
        std::all_of(entries->begin(), entries->end(), [](const DirectoryEntry& entry) {
          return entry.is_directory ? IsDataDirectoryName(entry.name)
                                    : entry.name.starts_with(kQuarantinedRecord);
        });
    VARVE_RETURN_IF_ERROR(CheckNotPinned(path, *entries));
    if (!leftovers) {
      VARVE_RETURN_IF_ERROR(CheckOccupant(storage, path, terms.overwrite, terms.stop).status());
      if (replaced == 0) {
        return FailedPrecondition(
            path +
            " holds a checkpoint of another format or of ranks that saved apart, which is not "
            "replaced by a save of all ranks together on an object store: remove it (`varve rm`), "
            "or save under another name");
      }
    }
  }
  auto commit = std::make_unique<RecordCommit>(storage, path, terms.id, replaced);
  commit->set_weak_publish(!exclusive);
  return std::unique_ptr<Commit>(std::move(commit));
}

}  // namespace varve
