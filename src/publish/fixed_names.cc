// How a layout with fixed names of files comes to an object store, by an upload or by a save of
// that format. TO is its directory, MARK the file that makes the rest a checkpoint. The steps say
// "upload" for both.
//
//  1. Claim TO: write TO/.varve-uploading, which holds a random id and the names of all files, on
//     condition that there is none. Two uploads at once would write each other's files; the second
//     gets FailedPrecondition before it writes a byte, and so does a save in DCP's format
//     (index_commit.cc). A caller who knows that an upload has died takes its claim over
//     (`in_place`). After a day gc removes the files that it names and the claim
//     (publish/upload_claim.cc).
//  2. List TO. A pinned checkpoint and one of Varve's own format end the upload here. So does a
//     file of a name that is to be written: objects have no second name to stay under. With
//     `in_place` MARK goes first, then the others that are to be written, and the rest of the
//     checkpoint that stood there. A crash from here on leaves no checkpoint. Uploads of these
//     names that were never finished are ended: one of a writer that is not as dead as was thought
//     would take the place of a file of this one's.
//  3. (All ranks) write the files. Each appears whole. Then indexes of parts of the layout.
//  4. Read the claim: one that was taken over ends the upload here. Write MARK on condition that
//     there is none: from here on there is a checkpoint.
//  5. Remove the claim. A crash before leaves it beside a whole checkpoint, where it only keeps
//     later uploads from TO.
//
// A layout without an index (hfai's) gets a MARK of the upload's own, .varve-uploaded. Readers of
// such a layout that find the claim without MARK open nothing (catalogue/formats.cc).
//
// An upload that fails removes what it wrote, but MARK, which it has not written. It first looks
// whether the claim is its own and no MARK is there: otherwise the files may be another writer's.
// Where a rank was lost it leaves files and claim: that rank may write yet.

#include <algorithm>
#include <set>
#include <utility>

#include "base/retry_time.h"
#include "catalogue/family.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/other_files.h"
#include "publish/save_id.h"
#include "publish/upload_claim.h"

namespace varve {
namespace {

/// The right to write files of these names into one directory. Destroying it without Publish gives
/// the right back, and removes the files: none of them was visible as a part of a checkpoint. Where
/// another writer has the directory now, or has published there, it removes nothing.
class FixedCommit final : public Commit {
 public:
  static Result<std::unique_ptr<Commit>> Begin(Storage& storage, const std::string& directory,
                                               std::vector<std::string> names, bool in_place);
  FixedCommit(const FixedCommit&) = delete;
  FixedCommit& operator=(const FixedCommit&) = delete;
  ~FixedCommit() override;

  [[nodiscard]] const std::string& staging() const override { return directory_; }
  Status MarkStaging() override { return Status::Ok(); }  // The claim is the mark.
  Status Publish(const std::vector<DataFile>& files, const std::vector<IndexFile>& index) override;
  void Leave() override { done_ = true; }
  [[nodiscard]] std::string claim() const override { return claim_; }

 private:
  FixedCommit(Storage& storage, std::string directory, std::vector<std::string> names,
              std::string claim);
  Status CheckStays(bool* in_place);
  Status CheckFree();
  Status RemoveOld();
  Status WriteMark(std::string_view content);
  Status End();
  Result<bool> IsOurs();

  Storage& storage_;
  const std::string directory_;
  const std::vector<std::string> names_;  ///< Of all files, the mark last.
  const std::string claim_;               ///< What our claim says.
  bool done_ = false;                     ///< Nothing of it is to be removed.
};

FixedCommit::FixedCommit(Storage& storage, std::string directory, std::vector<std::string> names,
                         std::string claim)
    : storage_(storage),
      directory_(std::move(directory)),
      names_(std::move(names)),
      claim_(std::move(claim)) {}

FixedCommit::~FixedCommit() {
  if (done_) {
    return;
  }
  // Best effort. What is left is no checkpoint.
  BestEffort([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const bool ours, IsOurs());
    const auto mark = storage_.OpenForRead(JoinPath(directory_, names_.back()));
    if (!ours || mark.status().code() != StatusCode::kNotFound) {
      return Status::Ok();
    }
    for (auto name = names_.rbegin() + 1; name != names_.rend(); ++name) {
      (void)storage_.Remove(JoinPath(directory_, *name));
    }
    return End();
  });
}

Status FixedCommit::End() { return storage_.Remove(JoinPath(directory_, kUploadClaim)); }

/// Returns true while no other upload has taken the claim over.
Result<bool> FixedCommit::IsOurs() {
  const auto text = ReadUploadClaim(storage_, directory_);
  if (text.status().code() == StatusCode::kNotFound) {
    return false;
  }
  VARVE_RETURN_IF_ERROR(text.status());
  return *text == claim_;
}

Result<std::unique_ptr<Commit>> FixedCommit::Begin(Storage& storage, const std::string& directory,
                                                   std::vector<std::string> names, bool in_place) {
  ConditionalWrites& writes = *storage.extras().conditional_writes;
  VARVE_ASSIGN_OR_RETURN(const bool exclusive, writes.Prepare(ParentPath(directory)));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  const std::string name = JoinPath(directory, kUploadClaim);
  const std::string claim = EncodeUploadClaim(id, names);
  const Status claimed = writes.WriteIfAbsent(name, claim);  // Step 1.
  const bool was_claimed = claimed.code() == StatusCode::kAlreadyExists;
  if (was_claimed) {
    if (!in_place) {
      return FailedPrecondition(directory +
                                ": another upload or save to it is under way, or has died. If it "
                                "has, replace it in place; after a day `varve gc` removes what it "
                                "left");
    }
    VARVE_RETURN_IF_ERROR(writes.Replace(name, claim));
  } else {
    VARVE_RETURN_IF_ERROR(claimed);
  }
  std::unique_ptr<FixedCommit> target(new FixedCommit(storage, directory, std::move(names), claim));
  target->weak_publish_ = !exclusive;
  Status free = target->CheckStays(&in_place);  // Step 2.
  in_place = in_place || was_claimed;
  if (free.ok() && !in_place) {
    free = target->CheckFree();
  }
  if (!free.ok()) {
    target->done_ = true;  // The files there are not ours.
    (void)target->End();
    return free;
  }
  VARVE_RETURN_IF_ERROR(in_place ? target->RemoveOld() : Status::Ok());
  return std::unique_ptr<Commit>(std::move(target));
}

/// Refuses a checkpoint that stays whatever the caller allows. Makes `*in_place` false where
/// nothing there is a checkpoint: files of these names are the user's.
Status FixedCommit::CheckStays(bool* in_place) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(directory_));
  *in_place = *in_place && (IsCheckpoint(storage_, directory_, entries) ||
                            FindEntry(entries, kUploadMark) != nullptr);
  VARVE_RETURN_IF_ERROR(CheckNotPinned(directory_, entries));
  return NewestRecord(entries) == 0
             ? Status::Ok()
             : FailedPrecondition(directory_ +
                                  " holds a checkpoint in Varve's own format, which readers would "
                                  "find before the files of this one: remove it first (`varve "
                                  "rm`), or upload to another name");
}

Status FixedCommit::CheckFree() {
  VARVE_ASSIGN_OR_RETURN(const Inventory found, TakeInventory(storage_, directory_));
  std::set<std::string> there;
  for (const OwnFile& file : found.own) {
    there.insert(file.name);
  }
  for (const OtherFile& file : found.others) {
    there.insert(file.name);
  }
  for (const std::string& name : names_) {
    if (there.contains(name)) {
      return AlreadyExists(
          JoinPath(directory_, name) +
          " is there. Objects have fixed names in this layout, so that the old checkpoint cannot "
          "stay until the new one is whole: choose another name, or replace it in place, which "
          "removes the old one first (in_place of an upload, --in-place of `varve upload`, "
          "remote_overwrite=\"in_place\" of hfai's and OLMo's saves, overwrite of unshard). A file "
          "that is part of no checkpoint is not removed");
    }
  }
  return Status::Ok();
}

Status FixedCommit::RemoveOld() {
  // Looked at before the mark goes, which tells the layout; and whatever may fail comes before
  // that.
  VARVE_ASSIGN_OR_RETURN(Inventory found, TakeInventory(storage_, directory_));
  ConditionalWrites& writes = *storage_.extras().conditional_writes;
  const auto unfinished = writes.ListUnfinished(directory_);
  if (!unfinished.ok() && unfinished.status().code() != StatusCode::kFailedPrecondition &&
      unfinished.status().code() != StatusCode::kUnimplemented) {
    return unfinished.status();  // Else keys that may not list them, or a server that cannot.
  }
  VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(directory_, names_.back())));
  std::stable_partition(found.own.begin(), found.own.end(),
                        [](const OwnFile& file) { return file.is_index; });
  std::set<std::string> removed;
  const auto remove = [&](const std::string& name) {
    removed.insert(JoinPath(directory_, name));
    return storage_.Remove(JoinPath(directory_, name));
  };
  for (const OwnFile& file : found.own) {
    if (file.name != kUploadClaim) {
      VARVE_RETURN_IF_ERROR(remove(file.name));
    }
  }
  for (const std::string& name : names_) {
    VARVE_RETURN_IF_ERROR(remove(name));
  }
  if (unfinished.ok()) {
    for (const ConditionalWrites::Unfinished& file : *unfinished) {
      if (removed.contains(file.name)) {
        VARVE_RETURN_IF_ERROR(writes.RemoveUnfinished(file));
      }
    }
  }
  return Status::Ok();
}

Status FixedCommit::WriteMark(std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const bool ours, IsOurs());  // Step 4.
  if (!ours) {
    done_ = true;
    return FailedPrecondition(
        directory_ +
        ": another upload or save has taken it over meanwhile; this one has removed "
        "nothing");
  }
  const Status written = storage_.extras().conditional_writes->WriteIfAbsent(
      JoinPath(directory_, names_.back()), content);
  if (written.code() == StatusCode::kUnavailable || written.code() == StatusCode::kCancelled) {
    done_ = true;  // It may be there, or come yet: the files stay, and the claim.
    return MayBeVisible(written);
  }
  if (written.code() == StatusCode::kAlreadyExists) {
    done_ = true;  // Another writer's: its files may have the names of ours.
    BestEffort([&] { return End(); });
    return AlreadyExists(directory_ +
                         ": another writer has published a checkpoint there meanwhile; it stays, "
                         "and so do the files of this one");
  }
  VARVE_RETURN_IF_ERROR(written);
  done_ = true;
  BestEffort([&] { return End(); });
  return Status::Ok();
}

Status FixedCommit::Publish(const std::vector<DataFile>& files,
                            const std::vector<IndexFile>& index) {
  const bool marks = !index.empty() && index.back().name == names_.back();
  if (!side_files_.empty() || (!marks && !index.empty())) {
    return Internal(directory_ + ": a format without an index, with an index or side files");
  }
  VARVE_RETURN_IF_ERROR(CheckFilesAreThere(storage_, directory_, files));
  for (std::size_t i = 0; i + 1 < index.size(); ++i) {
    VARVE_RETURN_IF_ERROR(WriteWholeFile(storage_, JoinPath(directory_, index[i].name),
                                         index[i].content, /*exclusive=*/false));
  }
  return WriteMark(marks ? index.back().content : "Written last, when the files were whole.\n");
}

/// Refuses a directory that holds other files, a run, or a checkpoint in another format: readers
/// and `varve rm` would take all of it for the new checkpoint. Accepts one that a dead save has
/// claimed.
Status CheckMayTake(Storage& storage, const std::string& path) {
  const auto entries = storage.List(path);
  if (entries.status().code() == StatusCode::kNotFound ||
      (entries.ok() && (entries->empty() || FindEntry(*entries, kUploadClaim) != nullptr))) {
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  const auto format = ShownFormat(storage, path, *entries);
  if (format && *format != Format::kHfai) {
    return FailedPrecondition(path + " holds a checkpoint of another format (" +
                              std::string(FormatName(*format)) +
                              "), which is not replaced on an object store: remove it (`varve "
                              "rm`), or save under another name");
  }
  return CheckOccupant(storage, path, Overwrite::kAlways, {}).status();
}

}  // namespace

bool MayStillWrite(const Status& outcome) {
  constexpr std::size_t kMostNamed = 64;  // ErrorDetails::failures has no more.
  const auto& failures = outcome.details().failures;
  return outcome.code() == StatusCode::kUnavailable || failures.size() >= kMostNamed ||
         std::any_of(failures.begin(), failures.end(), [](const RankFailure& failure) {
           return failure.code == StatusCode::kUnavailable;
         });
}

Result<std::unique_ptr<Commit>> BeginFixedCommit(Storage& storage, const std::string& path,
                                                 const CommitTerms& terms) {
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path));
  if (!terms.index.beside_others) {
    if (terms.overwrite == Overwrite::kDamaged) {
      return InvalidArgument(path +
                             ": files with fixed names in an object store are replaced in place, "
                             "or not at all, not if they are damaged");
    }
    VARVE_RETURN_IF_ERROR(CheckMayTake(storage, path));
  }
  std::vector<std::string> names;
  names.reserve(terms.brought.size() + 1);
  for (const BroughtFile& file : terms.brought) {
    names.push_back(file.name);
  }
  names.push_back(terms.index.name.empty() ? std::string(kUploadMark) : terms.index.name);
  const bool in_place = terms.index.in_place || terms.overwrite == Overwrite::kInPlace;
  return FixedCommit::Begin(storage, path, std::move(names), in_place);
}

}  // namespace varve
