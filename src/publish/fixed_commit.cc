// A save whose files have fixed names, into a storage without renames: hfai's parts. The steps, and
// the crash or race each one closes, are those of fixed_names.cc; the mark is .varve-uploaded,
// which is written last and without which readers open nothing.

#include <algorithm>
#include <cstddef>
#include <utility>

#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/fixed_names.h"

namespace varve {
namespace {

class FixedCommit final : public Commit {
 public:
  FixedCommit(Storage& storage, std::string path, std::unique_ptr<FixedNames> names)
      : storage_(storage), path_(std::move(path)), names_(std::move(names)) {
    weak_publish_ = names_->weak_publish();
  }

  [[nodiscard]] const std::string& staging() const override { return path_; }
  Status MarkStaging() override { return Status::Ok(); }  // The claim is the mark.
  void Leave() override { names_->Leave(); }
  [[nodiscard]] std::string claim() const override { return names_->claim(); }

  Status Publish(const std::vector<DataFile>& files, const std::vector<IndexFile>& index) override {
    if (!index.empty() || !side_files_.empty()) {
      return Internal(path_ + ": a format without an index, with an index or side files");
    }
    VARVE_RETURN_IF_ERROR(CheckFilesAreThere(storage_, path_, files));
    return names_->Publish("Written last, when the files were whole.\n");
  }

 private:
  Storage& storage_;
  const std::string path_;
  std::unique_ptr<FixedNames> names_;
};

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
  const auto format = ShownFormat(*entries);
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
                                                 Overwrite overwrite,
                                                 const std::vector<BroughtFile>& brought) {
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path));
  if (overwrite == Overwrite::kDamaged) {
    return InvalidArgument(path +
                           ": files with fixed names in an object store are replaced in place, or "
                           "not at all, not if they are damaged");
  }
  VARVE_RETURN_IF_ERROR(CheckMayTake(storage, path));
  std::vector<std::string> names;
  names.reserve(brought.size() + 1);
  for (const BroughtFile& file : brought) {
    names.push_back(file.name);
  }
  names.emplace_back(kUploadMark);
  VARVE_ASSIGN_OR_RETURN(auto claimed, FixedNames::Begin(storage, path, std::move(names),
                                                         overwrite == Overwrite::kInPlace));
  return std::unique_ptr<Commit>(std::make_unique<FixedCommit>(storage, path, std::move(claimed)));
}

}  // namespace varve
