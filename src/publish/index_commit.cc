// How a checkpoint becomes visible where names cannot be changed and there are no locks, in a
// format of another software: its readers look for an index of one fixed name, DCP's `.metadata` or
// a Hugging Face folder's `model.safetensors.index.json`. NAME is the checkpoint's directory, INDEX
// the index in it. INDEX decides: no reader reads data files that it does not name. It says of each
// file where it is, so the files have names of their own.
//
//  1. List NAME. What readers would open instead of INDEX ends the save here, before any work:
//     Varve's own record, an index of another format. So does INDEX without overwrite. With it,
//     remember INDEX's digest and what it names. (Ranks that save without each other have an INDEX
//     each, `__R.metadata`; a save by all ranks replaces all of those.) Side files of a Hugging
//     Face folder have fixed names in NAME, for tools look for `config.json` there. One that is
//     there with another content ends the save: it could only be replaced apart from INDEX.
//  2. (All ranks) write data files into NAME/varve-data-<id>. The id is unique, so no save touches
//     the files of another, and nothing that is visible changes.
//  3. Check that every planned file is there with its exact size. Finds ranks that write elsewhere.
//  4. Write side files into the same directory, and a Hugging Face folder's checksums; that one's
//     side files, but for a step's note, into NAME where they are not there yet. A crash leaves
//     these, and the next save takes them for its own.
//  5. Publish INDEX, which names the files as varve-data-<id>/FILE.
//     Nothing was there: on condition that there is none. Of two first saves one gets AlreadyExists
//     and removes its own files.
//     An overwrite: read INDEX again. If it is not the one of step 1, another save has been
//     published: this one fails and removes its own files. If it is, replace it by one write, which
//     readers see whole: the old checkpoint stays until the new one is durable.
//     A crash before leaves a directory that no index names; after it, the save has succeeded.
//     Where the answer never comes, nobody knows whether INDEX is the new one or will be: the data
//     of both stay, and the save says so.
//  6. After an overwrite read INDEX back. Another save may have replaced it since step 5. Then its
//     checkpoint stays, and this save fails; its data stay too, for a request that was repeated may
//     still be carried out.
//  7. Remove what the old INDEX named, and nothing else. A crash leaves directories that no index
//     names. `varve gc` removes those when all in them is a day old: without locks a save that
//     lives looks like one that died.
//
// What two overwrites at once do. Nothing makes step 5 one step: both may read the old INDEX, and
// then write. INDEX is then the later one, whole, for each removes what the OLD one named and never
// the other's files. The earlier save fails in step 6, or has returned before and was overwritten.
// Its files are garbage. One case is not closed: a write of INDEX that was given up and repeated,
// and that the server carries out after a later save has replaced INDEX and removed what it named.
// Numbered records (record_commit.cc) have no such case; a fixed name needs a condition on the old
// content, which not all servers keep.

#include <algorithm>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/patience.h"
#include "catalogue/foreign.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "catalogue/side_files.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "varve/step_note.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{8} << 30;

/// What stands at NAME before the save.
struct Replaced {
  std::optional<Hash128> index;    ///< The digest of INDEX; nothing where there is none.
  std::vector<std::string> paths;  ///< In NAME: other indexes first, then what all of them name.
};

Hash128 DigestOf(std::string_view content) {
  Xxh3Stream stream;
  stream.Reset();
  stream.Update(AsByteSpan(content));
  return stream.Digest();
}

/// Returns the digest of a file; nothing where there is none.
Result<std::optional<Hash128>> DigestOfFile(Storage& storage, const std::string& path) {
  const auto content = ReadWholeFile(storage, path, kMaxIndexBytes);
  if (content.status().code() == StatusCode::kNotFound) {
    return std::optional<Hash128>();
  }
  VARVE_RETURN_IF_ERROR(content.status());
  return std::optional(DigestOf(*content));
}

class IndexCommit final : public Commit {
 public:
  IndexCommit(Storage& storage, std::string path, const SaveId& id, const IndexTerms& index,
              Replaced replaced)
      : storage_(storage),
        path_(std::move(path)),
        directory_(DataDirectoryName(id)),
        staging_(JoinPath(path_, directory_)),
        index_(JoinPath(path_, index.name)),
        format_(index.format),
        replaced_(std::move(replaced)) {}
  IndexCommit(const IndexCommit&) = delete;
  IndexCommit& operator=(const IndexCommit&) = delete;
  ~IndexCommit() override {
    if (!done_) {
      // Best effort: what cannot be removed now is garbage a day later.
      BestEffort([&] { return storage_.Remove(staging_); });
    }
  }

  [[nodiscard]] const std::string& staging() const override { return staging_; }
  [[nodiscard]] std::string below() const override { return directory_ + "/"; }
  Status MarkStaging() override { return Status::Ok(); }  // No other save looks into it.
  Status Publish(const std::vector<DataFile>& files, const std::vector<IndexFile>& index) override;

 private:
  [[nodiscard]] Status AnotherWasFirst() const;
  Status WriteFiles(const std::vector<IndexFile>& index);
  Status WriteIndex(std::string_view content);
  void RemoveReplaced();

  Storage& storage_;
  const std::string path_;
  const std::string directory_;  ///< In `path_`.
  const std::string staging_;
  const std::string index_;
  const Format format_;
  const Replaced replaced_;
  bool done_ = false;
};

Status IndexCommit::AnotherWasFirst() const {
  return replaced_.index
             ? FailedPrecondition(path_ +
                                  ": another save of this name was published meanwhile; its "
                                  "checkpoint stays")
             : AlreadyExists(path_ +
                             " already holds a checkpoint: another save of this name was published "
                             "meanwhile");
}

/// Steps 5 and 6.
Status IndexCommit::WriteIndex(std::string_view content) {
  ConditionalWrites& writes = *storage_.extras().conditional_writes;
  if (replaced_.index) {
    VARVE_ASSIGN_OR_RETURN(const auto now, DigestOfFile(storage_, index_));
    if (now != replaced_.index) {
      return AnotherWasFirst();
    }
  }
  const Status written =
      replaced_.index ? writes.Replace(index_, content) : writes.WriteIfAbsent(index_, content);
  if (written.code() == StatusCode::kAlreadyExists) {
    return AnotherWasFirst();
  }
  if (written.code() == StatusCode::kUnavailable || written.code() == StatusCode::kCancelled) {
    done_ = true;
    return MayBeVisible(written);
  }
  VARVE_RETURN_IF_ERROR(written);
  done_ = true;
  if (replaced_.index) {
    // Where it cannot be read, it is taken for ours: that was the last answer.
    const auto now = DigestOfFile(storage_, index_);
    return now.ok() && *now && **now != DigestOf(content) ? AnotherWasFirst() : Status::Ok();
  }
  return Status::Ok();
}

void IndexCommit::RemoveReplaced() {
  for (const std::string& name : replaced_.paths) {
    const std::string path = JoinPath(path_, name);
    if (!IsDataDirectoryName(name) && storage_.List(path).ok()) {
      continue;  // No file but a folder, which is somebody else's.
    }
    if (!storage_.Remove(path).ok()) {
      return;  // An index that is left needs what it names.
    }
  }
}

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

/// Step 4.
Status IndexCommit::WriteFiles(const std::vector<IndexFile>& index) {
  std::vector<SideFile> missing = side_files_;
  if (format_ != Format::kDcp) {
    missing.clear();
    for (const SideFile& file : side_files_) {
      if (IsWithData(file.name)) {
        VARVE_RETURN_IF_ERROR(WriteSideFiles(storage_, staging_, {file}));
        continue;
      }
      VARVE_ASSIGN_OR_RETURN(const bool there,
                             HoldsAlready(storage_, JoinPath(path_, file.name), file.content));
      if (!there) {
        missing.push_back(file);
      }
    }
  }
  VARVE_RETURN_IF_ERROR(
      WriteSideFiles(storage_, format_ == Format::kDcp ? staging_ : path_, missing));
  for (std::size_t i = 0; i + 1 < index.size(); ++i) {
    VARVE_RETURN_IF_ERROR(
        WriteWholeFile(storage_, JoinPath(staging_, index[i].name), index[i].content));
  }
  return Status::Ok();
}

Status IndexCommit::Publish(const std::vector<DataFile>& files,
                            const std::vector<IndexFile>& index) {
  VARVE_RETURN_IF_ERROR(CheckFilesAreThere(storage_, staging_, files));  // Step 3.
  if (index.empty() || JoinPath(path_, index.back().name) != index_) {
    return Internal(path_ + ": a save with another index than it has begun with");
  }
  VARVE_RETURN_IF_ERROR(WriteFiles(index));
  VARVE_RETURN_IF_ERROR(WriteIndex(index.back().content));
  BestEffort([&] {  // Step 7.
    RemoveReplaced();
    return Status::Ok();
  });
  return Status::Ok();
}

/// Refuses a directory in which readers would open something else than INDEX.
Status CheckNothingElse(const std::string& path, const std::vector<DirectoryEntry>& entries,
                        const IndexTerms& index) {
  const auto format = ShownFormat(entries);
  if (format && *format != index.format) {
    return FailedPrecondition(path + " holds a checkpoint of another format (" +
                              std::string(FormatName(*format)) +
                              "), which is not replaced on an object store: remove it (`varve "
                              "rm`), or save under another name");
  }
  if (index.rank && FindEntry(entries, kDcpIndexName) != nullptr) {
    return FailedPrecondition(path +
                              " holds a checkpoint that ranks saved together: what one rank saves "
                              "beside it would never be read; choose another name");
  }
  return Status::Ok();
}

/// Adds what an index names: data directories as such, and files that lie elsewhere by their names.
/// An index that cannot be read names nothing: an overwrite is the way to get rid of it.
Status AddNamed(Storage& storage, const std::string& directory, const std::string& index,
                std::set<std::string>* named) {
  // Of a Hugging Face folder with its side files.
  const auto names = index == kHfIndexName ? ForeignFileNames(storage, directory)
                                           : NamesInDcpIndex(storage, JoinPath(directory, index));
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

Result<Replaced> TakeStock(Storage& storage, const std::string& path,
                           const std::vector<DirectoryEntry>& entries,
                           const std::vector<BroughtFile>& brought, const IndexTerms& index) {
  Replaced found;
  std::set<std::string> named;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory || !IsReplacedIndex(entry.name, index)) {
      continue;
    }
    if (entry.name == index.name) {
      // Before its names: what is replaced in between is found out in step 5.
      VARVE_ASSIGN_OR_RETURN(found.index, DigestOfFile(storage, JoinPath(path, entry.name)));
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
  const IndexTerms& index = terms.index;
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path));
  VARVE_ASSIGN_OR_RETURN(const bool exclusive,
                         storage.extras().conditional_writes->Prepare(ParentPath(path)));
  const auto entries = storage.List(path);  // Step 1.
  if (!entries.ok() && entries.status().code() != StatusCode::kNotFound) {
    return entries.status();
  }
  Replaced replaced;
  if (entries.ok()) {
    VARVE_RETURN_IF_ERROR(CheckNotPinned(path, *entries));
    if (FindEntry(*entries, kUploadClaim) != nullptr) {
      return FailedPrecondition(path +
                                ": an upload or save of files with fixed names is under way "
                                "there, or has died. If it has, remove " +
                                JoinPath(path, kUploadClaim));
    }
    VARVE_RETURN_IF_ERROR(CheckNothingElse(path, *entries, index));
    const bool taken = index.rank ? FindEntry(*entries, index.name) != nullptr
                                  : IsCheckpoint(storage, path, *entries);
    const bool free = index.beside_others || AreLeftovers(*entries, terms.brought);
    if (taken && index.rank && terms.overwrite == Overwrite::kNever) {
      return AlreadyExists(path + " already holds a checkpoint; pass overwrite to replace it");
    }
    if (!index.rank && (taken || !free)) {
      VARVE_RETURN_IF_ERROR(CheckOccupant(storage, path, terms.overwrite, terms.stop).status());
    }
    if (index.format != Format::kDcp) {
      VARVE_RETURN_IF_ERROR(CheckBrought(storage, path, terms.brought));
    }
    VARVE_ASSIGN_OR_RETURN(replaced, TakeStock(storage, path, *entries, terms.brought, index));
    const auto& paths = replaced.paths;
    if (std::find(paths.begin(), paths.end(), DataDirectoryName(terms.id)) != paths.end()) {
      return FailedPrecondition(path + ": this save has been published already");
    }
  }
  auto commit = std::make_unique<IndexCommit>(storage, path, terms.id, index, std::move(replaced));
  commit->set_weak_publish(!exclusive);
  return std::unique_ptr<Commit>(std::move(commit));
}

}  // namespace varve
