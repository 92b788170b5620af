// Rule B: how a checkpoint becomes visible where no directory can take its name in one step: in an
// object store, where nothing is renamed and no process holds a lock, and in a directory that
// stays. NAME is the directory. INDEX is the one file that makes the rest a checkpoint: no reader
// reads data files that it does not name. So data files get names that no other save uses, and one
// step puts INDEX in the place of the old one. How it does that is all that differs (index_slot.h):
//   numbered  Varve's record, varve-N.json, with the next number on condition that no save has it.
//             Readers take the highest number. It names the directory of its files.
//   compared  An index of another software has one name in an object store: DCP's `.metadata`, a
//             Hugging Face folder's `model.safetensors.index.json`. It is written on condition that
//             there is none, or read again and replaced. It says where each file is.
//   renamed   DCP's in a directory that stays: a part is written, synced, and renamed to INDEX.
//             Data files have numbers there (dcp_in_place.cc has locks and numbers, steps 0 to 3).
//
//  1. List NAME. What readers would open instead of INDEX ends the save here, before any work: an
//     index of another format, for an INDEX of one rank that of all. So does INDEX itself, if it
//     may not be replaced, and a pin. (A save by all ranks replaces the INDEX that each of some
//     ranks has, `__R.metadata`.) Side files of a Hugging Face folder have fixed names in NAME, for
//     tools look for `config.json` there: one that is there with another content ends the save, for
//     it could only be replaced apart from INDEX.
//  2. Remember what INDEX is, and what it names.
//  3. (All ranks) write data files into NAME/varve-data-<id>; in a directory that stays into NAME,
//     under numbers above all that are there or named. No save touches the files of another, and
//     nothing that is visible changes. A crash leaves files that no index names.
//  4. Check that every planned file is there with its exact size. Finds ranks that write elsewhere.
//  5. Write side files and the rest of the index (a manifest, checksums) beside the data files; a
//     Hugging Face folder's side files, but for a step's note, into NAME where they are not there
//     yet. A crash leaves these, and the next save takes them for its own.
//  6. Replace INDEX. A crash before leaves what was there; after it, the save has succeeded. Where
//     the answer never comes, INDEX may be the new one, now or later: the data of both stay, and
//     the save says so. Of two saves of one name at once
//       numbered  one gets AlreadyExists and removes its own files. Then it lists NAME again: while
//                 it wrote its data, another save may have published the same number, and a third
//                 may have replaced that and removed it; the number was free again, and is not the
//                 highest. Then no reader opens this save's record: it is taken back, and the save
//                 fails. It fails as well where its data have been removed.
//       compared  of two first saves one gets AlreadyExists. Of two overwrites both may find the
//                 old INDEX and then write: nothing makes that one step. INDEX is the later one, whole,
//                 for each removes what the OLD one named and never the other's files. The earlier
//                 save reads INDEX back and fails, its data stay, for a request that was repeated
//                 may still be carried out; or it has returned before and was overwritten. One case
//                 is not closed: a write that was given up and repeated, and that the server
//                 carries out after a later save has replaced INDEX and removed what it named. That
//                 needs a condition on the old content, which not all servers keep.
//       renamed   a lock has kept the second one from beginning.
//  7. Remove what the old INDEX named and the new one does not, and nothing else: indexes first,
//     then their files. A crash leaves files that no index names. `varve gc` removes data directories
//     when all in them is a day old: without locks a save that lives looks like one that died.

#include <algorithm>
#include <set>
#include <utility>

#include "base/retry_time.h"
#include "catalogue/family.h"
#include "catalogue/formats.h"
#include "catalogue/formats/dcp.h"
#include "catalogue/formats/hf.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "catalogue/side_files.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/index_slot.h"
#include "varve/step_note.h"

namespace varve {
namespace {

class IndexCommit final : public Commit {
 public:
  /// `name` is the index's last file. `below`: see Commit::below.
  IndexCommit(Storage& storage, std::unique_ptr<IndexSlot> slot, std::string name, Format format,
              std::string below)
      : storage_(storage),
        slot_(std::move(slot)),
        name_(std::move(name)),
        format_(format),
        below_(std::move(below)) {}
  IndexCommit(const IndexCommit&) = delete;
  IndexCommit& operator=(const IndexCommit&) = delete;
  ~IndexCommit() override {
    if (!stays_) {
      // What cannot be removed now is garbage a day later, or goes with the next save.
      BestEffort([&] { return slot_->RemoveOwn(); });
    }
  }

  [[nodiscard]] const std::string& staging() const override { return slot_->staging(); }
  [[nodiscard]] std::string below() const override { return below_; }
  [[nodiscard]] std::uint64_t first() const override { return slot_->first(); }
  Status MarkStaging() override { return Status::Ok(); }  // No other save has names like these.
  Status Publish(const std::vector<DataFile>& files, const std::vector<IndexFile>& index) override;
  void set_conflicts(std::vector<std::string> conflicts) { conflicts_ = std::move(conflicts); }

 private:
  Status WriteFiles(const std::vector<IndexFile>& index);

  Storage& storage_;
  const std::unique_ptr<IndexSlot> slot_;
  const std::string name_;
  const Format format_;
  const std::string below_;
  bool stays_ = false;  ///< The index may name this save's files.
};

/// Returns true for the side file of a Hugging Face folder that lies beside its data, and so is
/// replaced with them: the note of a manager's step, which no tool looks for.
bool IsWithData(std::string_view name) { return name == kStepNoteName; }

/// Returns true where a file holds `content`; false where there is none. Errors:
/// FailedPrecondition where it holds something else.
Result<bool> HoldsAlready(Storage& storage, const std::string& path, const std::string& content) {
  const auto file = storage.OpenForRead(path);
  if (file.status().code() == StatusCode::kNotFound) {
    return false;
  }
  VARVE_RETURN_IF_ERROR(file.status());
  if ((*file)->size() == content.size()) {
    VARVE_ASSIGN_OR_RETURN(const std::string there, ReadWholeFile(storage, path, content.size()));
    if (there == content) {
      return true;
    }
  }
  return FailedPrecondition(path +
                            " is there with another content. Its name is fixed, and on an object "
                            "store it cannot be replaced together with the tensors: remove the "
                            "folder (`varve rm`), or save under another name");
}

/// Step 5.
Status IndexCommit::WriteFiles(const std::vector<IndexFile>& index) {
  std::vector<SideFile> missing = side_files_;
  if (format_ == Format::kSafetensors) {
    missing.clear();
    for (const SideFile& file : side_files_) {
      if (IsWithData(file.name)) {
        VARVE_RETURN_IF_ERROR(WriteSideFiles(storage_, staging(), {file}));
        continue;
      }
      VARVE_ASSIGN_OR_RETURN(
          const bool there,
          HoldsAlready(storage_, JoinPath(slot_->path(), file.name), file.content));
      if (!there) {
        missing.push_back(file);
      }
    }
  }
  VARVE_RETURN_IF_ERROR(WriteSideFiles(
      storage_, format_ == Format::kSafetensors ? slot_->path() : staging(), missing));
  for (std::size_t i = 0; i + 1 < index.size(); ++i) {
    VARVE_RETURN_IF_ERROR(
        WriteWholeFile(storage_, JoinPath(staging(), index[i].name), index[i].content));
  }
  return Status::Ok();
}

Status IndexCommit::Publish(const std::vector<DataFile>& files,
                            const std::vector<IndexFile>& index) {
  VARVE_RETURN_IF_ERROR(CheckFilesAreThere(storage_, staging(), files));  // Step 4.
  if (index.empty() || index.back().name != name_) {
    return Internal(slot_->path() + ": a save with another index than it has begun with");
  }
  VARVE_RETURN_IF_ERROR(WriteFiles(index));
  VARVE_RETURN_IF_ERROR(slot_->Replace(index.back().content, &stays_));  // Step 6.
  stays_ = true;
  BestEffort([&] { return slot_->RemoveReplaced(files); });  // Step 7.
  return Status::Ok();
}

/// Refuses a directory in which readers would open something else than INDEX.
Status CheckNothingElse(Storage& storage, const std::string& path,
                        const std::vector<DirectoryEntry>& entries, const IndexTerms& index) {
  const auto format = ShownFormat(storage, path, entries);
  if (format && *format != index.format) {
    return FailedPrecondition(path + " holds a checkpoint of another format (" +
                              std::string(FormatName(*format)) +
                              "), which is not replaced on an object store: remove it (`varve "
                              "rm`), or save under another name");
  }
  if (index.rank && FindEntry(entries, kDcpIndexName) != nullptr) {
    return WouldNeverBeRead(path);
  }
  return Status::Ok();
}

/// Adds what an index names: data directories as such, and files that lie elsewhere by their names.
/// An index that cannot be read names nothing: an overwrite is the way to get rid of it.
Status AddNamed(Storage& storage, const std::string& directory, const std::string& index,
                std::set<std::string>* named) {
  const auto names = NamesInIndex(storage, JoinPath(directory, index));
  if (!names.ok() && names.status().code() == StatusCode::kUnavailable) {
    return names.status();
  }
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const std::string data = DataDirectoryOf(name);
    named->insert(data.empty() ? name : data);
  }
  return Status::Ok();
}

bool IsReplacedIndex(const std::string& name, const IndexTerms& index) {
  return name == index.name ||
         (index.format == Format::kDcp && !index.rank && IsDcpIndexName(name));
}

Result<ReplacedIndex> TakeStock(Storage& storage, const std::string& path,
                                const std::vector<DirectoryEntry>& entries,
                                const std::vector<BroughtFile>& brought, const IndexTerms& index) {
  ReplacedIndex found;
  std::set<std::string> named;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory || !IsReplacedIndex(entry.name, index)) {
      continue;
    }
    if (entry.name == index.name) {
      // Before its names: what is replaced in between is found out in step 6.
      VARVE_ASSIGN_OR_RETURN(found.digest, DigestOfFile(storage, JoinPath(path, entry.name)));
    } else {
      found.paths.push_back(entry.name);
    }
    VARVE_RETURN_IF_ERROR(AddNamed(storage, path, entry.name, &named));
  }
  for (const BroughtFile& file : brought) {
    if (file.content != nullptr) {  // Data files have their names elsewhere.
      named.erase(file.name);
    }
  }
  found.paths.insert(found.paths.end(), named.begin(), named.end());
  return found;
}

/// Checks side files that get their names in NAME. Errors: as HoldsAlready.
Status CheckBrought(Storage& storage, const std::string& path,
                    const std::vector<BroughtFile>& brought) {
  for (const BroughtFile& file : brought) {
    if (file.content != nullptr && !IsWithData(file.name)) {
      VARVE_RETURN_IF_ERROR(
          HoldsAlready(storage, JoinPath(path, file.name), *file.content).status());
    }
  }
  return Status::Ok();
}

/// Returns true for what dead saves leave: data directories, and side files that this save brings.
bool AreLeftovers(const std::vector<DirectoryEntry>& entries,
                  const std::vector<BroughtFile>& brought) {
  return std::all_of(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) {
    return entry.is_directory
               ? IsDataDirectoryName(entry.name)
               : std::any_of(brought.begin(), brought.end(), [&](const BroughtFile& file) {
                   return file.content != nullptr && file.name == entry.name;
                 });
  });
}

/// Steps 1 and 2 for Varve's record.
Result<std::unique_ptr<IndexSlot>> SlotOfRecord(Storage& storage, const std::string& path,
                                                const std::vector<DirectoryEntry>& entries,
                                                const CommitTerms& terms) {
  const std::uint64_t replaced = NewestRecord(entries);
  const bool leftovers =
      std::all_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
        return entry.is_directory ? IsDataDirectoryName(entry.name)
                                  : entry.name.starts_with(kQuarantinedRecord);
      });
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
  return NumberedSlot(storage, path, DataDirectoryName(terms.id), replaced);
}

/// Steps 1 and 2 for an index of one name.
Result<std::unique_ptr<IndexSlot>> SlotOfIndex(Storage& storage, const std::string& path,
                                               const std::vector<DirectoryEntry>& entries,
                                               const CommitTerms& terms) {
  const IndexTerms& index = terms.index;
  const std::string directory = DataDirectoryName(terms.id);
  if (entries.empty()) {
    return ComparedSlot(storage, path, directory, index.name, {});
  }
  if (FindEntry(entries, kUploadClaim) != nullptr) {
    return FailedPrecondition(path +
                              ": an upload or save of files with fixed names is under way "
                              "there, or has died. If it has, remove " +
                              JoinPath(path, kUploadClaim));
  }
  VARVE_RETURN_IF_ERROR(CheckNothingElse(storage, path, entries, index));
  const bool taken =
      index.rank ? FindEntry(entries, index.name) != nullptr : IsCheckpoint(storage, path, entries);
  const bool free = index.beside_others || AreLeftovers(entries, terms.brought);
  if (taken && index.rank && terms.overwrite == Overwrite::kNever) {
    return AlreadyExists(path + " already holds a checkpoint; pass overwrite to replace it");
  }
  if (!index.rank && (taken || !free)) {
    VARVE_RETURN_IF_ERROR(CheckOccupant(storage, path, terms.overwrite, terms.stop).status());
  }
  if (index.format != Format::kDcp) {
    VARVE_RETURN_IF_ERROR(CheckBrought(storage, path, terms.brought));
  }
  VARVE_ASSIGN_OR_RETURN(auto replaced, TakeStock(storage, path, entries, terms.brought, index));
  if (std::find(replaced.paths.begin(), replaced.paths.end(), directory) != replaced.paths.end()) {
    return FailedPrecondition(path + ": this save has been published already");
  }
  return ComparedSlot(storage, path, directory, index.name, std::move(replaced));
}

}  // namespace

std::vector<StoredFile> SideFilesOfFolder(const std::vector<SideFile>& files,
                                          const std::string& below) {
  std::vector<StoredFile> described = DescribeSideFiles(files);
  if (!below.empty()) {
    std::erase_if(described, [](const StoredFile& file) { return IsWithData(file.name); });
  }
  return described;
}

Result<std::unique_ptr<Commit>> BeginIndexCommit(Storage& storage, const std::string& path,
                                                 const CommitTerms& terms) {
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path));
  VARVE_ASSIGN_OR_RETURN(const bool exclusive,
                         storage.extras().conditional_writes->Prepare(ParentPath(path)));
  auto entries = storage.List(path);  // Step 1.
  if (entries.status().code() == StatusCode::kNotFound) {
    entries = std::vector<DirectoryEntry>();
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  VARVE_RETURN_IF_ERROR(CheckNotPinned(path, *entries));
  const bool is_record = terms.index.name.empty();
  VARVE_ASSIGN_OR_RETURN(auto slot, is_record ? SlotOfRecord(storage, path, *entries, terms)
                                              : SlotOfIndex(storage, path, *entries, terms));
  auto commit = std::make_unique<IndexCommit>(
      storage, std::move(slot), is_record ? std::string(kCommitRecordName) : terms.index.name,
      is_record ? Format::kVarve : terms.index.format,
      is_record ? "" : DataDirectoryName(terms.id) + "/");
  commit->set_weak_publish(!exclusive);
  return std::unique_ptr<Commit>(std::move(commit));
}

Result<std::unique_ptr<Commit>> BeginInPlaceCommit(Storage& storage, const std::string& path,
                                                   const CommitTerms& terms) {
  std::vector<std::string> conflicts;
  VARVE_ASSIGN_OR_RETURN(auto slot, RenamedSlot(storage, path, terms, &conflicts));
  auto commit =
      std::make_unique<IndexCommit>(storage, std::move(slot), terms.index.name, Format::kDcp, "");
  commit->set_conflicts(std::move(conflicts));
  return std::unique_ptr<Commit>(std::move(commit));
}

}  // namespace varve
