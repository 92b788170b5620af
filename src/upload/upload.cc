// The upload of a checkpoint FROM, which is published, to the name TO: two exchanges, whatever the
// number of ranks.
//
//  1. Every rank reads the index of FROM. A rank that sees another save there, or none, ends the
//     upload for all.
//  A. The ranks say what they see. The coordinator looks at TO. If its newest record is of the same
//     save and its files are there, all is done: an upload that died between its last step and the
//     caller's note is not made twice. Otherwise it begins a commit of TO (commit.cc,
//     index_commit.cc, or fixed_names.cc for a layout with fixed names in an object store), under
//     an id of this upload: two uploads of one save never write each other's files, nor remove
//     them. Every rank learns where to write and which files are its share.
//  2. Every rank copies its files (copy_file.cc): what it sends are the bytes that it has compared
//     with their checksums, not those of another read. Files of Varve's own format are checked to
//     the last byte, archives of torch.save by the sums in them.
//  B. The ranks say that their files are durable. The coordinator checks names and sizes, writes
//     indexes and side files, and last the one file that makes TO a checkpoint. All learn the
//     outcome.
// A rank that fails brings its error to the next exchange: all return it, and the commit is
// abandoned. A crash of ranks leaves in TO what an interrupted save leaves, which `varve gc`
// removes. FROM is only read.

#include "varve/upload.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/events.h"
#include "base/fields.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "catalogue/formats/dcp.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/side_files.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/save_id.h"
#include "upload/copy_file.h"
#include "upload/source.h"

namespace varve {

/// What a rank sees, for exchange A.
struct UploadOffer {
  bool native = false;
  bool own_files = false;
  SaveId save_id;
  std::map<std::string, std::uint64_t> files;
  std::vector<std::string> last;
};

/// What a rank is to do.
struct UploadShare {
  bool was_there = false;
  std::string staging;
  std::vector<std::string> files;
};

/// What all have done.
struct UploadTotals {
  std::uint64_t bytes = 0;
  std::uint64_t files = 0;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, UploadOffer>& offer) {
  archive(offer.native, offer.own_files, offer.save_id.bytes, offer.files, offer.last);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, UploadShare>& share) {
  archive(share.was_there, share.staging, share.files);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, UploadTotals>& totals) {
  archive(totals.bytes, totals.files);
}

namespace {

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{4} << 30;

using Replies = Result<std::vector<std::string>>;

/// One rank's part in an upload.
class Uploading {
 public:
  Uploading(const std::string& from, const std::string& to, const UploadOptions& options,
            Storage& storage)
      : from_(from), to_(to), options_(options), storage_(storage) {}

  Result<UploadReport> Run(Coordinator& coordinator, const Status& ready) {
    const TimePoint start = Now();
    const std::string what = "upload " + from_ + " to " + to_;
    auto offer = Guarded([&]() -> Contribution {
      VARVE_RETURN_IF_ERROR(ready);
      return Look();
    });
    VARVE_ASSIGN_OR_RETURN(
        const std::string reply,
        Exchange(coordinator, what, std::move(offer), Now() + options_.timeout,
                 [&](const std::vector<std::string>& offers) { return Begin(offers); }));
    UploadReport report;
    auto copied = Guarded([&]() -> Contribution {
      VARVE_ASSIGN_OR_RETURN(const auto share, DecodeFields<UploadShare>(reply));
      report.was_there = share.was_there;
      return share.was_there ? std::string() : CopyShare(share);
    });
    if (!report.was_there) {
      const Deadline deadline = Now() + options_.timeout;
      const auto totals =
          Exchange(coordinator, what, std::move(copied), deadline,
                   [&](const std::vector<std::string>& ranks) { return Publish(ranks.size()); });
      if (commit_ != nullptr && !totals.ok() && Now() >= deadline) {
        commit_->Leave();  // A rank that is late may write files of these names yet.
      }
      commit_.reset();  // Abandons what was not published.
      VARVE_RETURN_IF_ERROR(totals.status());
      VARVE_ASSIGN_OR_RETURN(const auto decoded, DecodeFields<UploadTotals>(*totals));
      report.bytes = decoded.bytes;
      report.files = decoded.files;
    }
    report.left_out = std::move(source_.left_out);
    report.seconds = std::chrono::duration<double>(Now() - start).count();
    return report;
  }

 private:
  Contribution Look() {
    VARVE_ASSIGN_OR_RETURN(source_, LookAtSource(storage_, from_, options_));
    return EncodeFields(UploadOffer{.native = source_.native,
                                    .own_files = options_.own_files.has_value(),
                                    .save_id = source_.save_id,
                                    .files = source_.files,
                                    .last = source_.last});
  }

  // ---- on the coordinator ----

  /// Exchange A: compares what the ranks see, begins the commit and shares the files out.
  Replies Begin(const std::vector<std::string>& encoded) {
    std::vector<UploadOffer> offers;
    for (const std::string& one : encoded) {
      VARVE_ASSIGN_OR_RETURN(auto offer, DecodeFields<UploadOffer>(one));
      offers.push_back(std::move(offer));
    }
    std::vector<UploadShare> shares(offers.size());
    VARVE_RETURN_IF_ERROR(ShareOut(offers, &shares));
    VARVE_ASSIGN_OR_RETURN(const bool was_there, IsThere());
    if (!was_there) {
      VARVE_RETURN_IF_ERROR(BeginCommit());
    }
    std::vector<std::string> replies;
    for (UploadShare& share : shares) {
      share.was_there = was_there;
      share.staging = was_there ? "" : commit_->staging();
      replies.push_back(EncodeFields(share));
    }
    return replies;
  }

  Status ShareOut(const std::vector<UploadOffer>& offers, std::vector<UploadShare>* shares) {
    const UploadOffer& mine = offers.front();
    for (std::size_t rank = 0; rank < offers.size(); ++rank) {
      const UploadOffer& offer = offers[rank];
      const bool same = offer.own_files == mine.own_files && offer.native == mine.native &&
                        offer.save_id == mine.save_id && offer.last == mine.last &&
                        (offer.own_files || offer.files == mine.files);
      if (!same) {
        return FailedPrecondition("rank " + std::to_string(rank) + " sees another checkpoint at " +
                                  from_ +
                                  " than rank 0: all ranks must share the directory, and no save "
                                  "may replace it meanwhile");
      }
      for (const auto& [name, size] : offer.files) {
        if (!offer.own_files && rank > 0) {
          break;  // The same as rank 0's.
        }
        if (offer.own_files && rank == 0 && IsDcpIndexName(BaseName(name))) {
          source_.last.insert(source_.last.begin(), name);  // It makes a part of TO a checkpoint.
          continue;
        }
        if (const auto [at, is_new] = all_.emplace(name, size); !is_new) {
          if (at->second != size) {
            return FailedPrecondition("rank " + std::to_string(rank) + " brings " + name + " of " +
                                      std::to_string(size) + " bytes, and another rank one of " +
                                      std::to_string(at->second));
          }
          continue;  // Each disk has one; the lowest rank's goes.
        }
        const std::size_t whose = offer.own_files ? rank : (all_.size() - 1) % shares->size();
        (*shares)[whose].files.push_back(name);
      }
    }
    return Status::Ok();
  }

  /// Returns true where the target holds this save, with all its files.
  Result<bool> IsThere() {
    if (!source_.native) {
      return false;
    }
    const auto record = ReadCommitRecord(storage_, to_);
    if (!record.ok() || record->save_id != source_.save_id) {
      return record.ok() || record.status().code() == StatusCode::kNotFound ||
                     record.status().code() == StatusCode::kDataLoss
                 ? Result<bool>(false)
                 : record.status();
    }
    const std::string where = record->directory.empty() ? to_ : JoinPath(to_, record->directory);
    return CheckFilesAreThere(storage_, where, source_.index->metadata.files).ok();
  }

  Status BeginCommit() {
    VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
    CommitTerms terms{.id = id, .overwrite = options_.overwrite, .stop = options_.stop};
    if (!source_.native) {
      const auto bring = [&](const std::string& name) {
        BroughtFile& file = terms.brought.emplace_back();
        file.name = name;
        file.same_as = options_.own_files ? "" : JoinPath(source_.directory, name);
      };
      for (const auto& [name, size] : all_) {
        bring(name);
      }
      for (std::size_t i = 0; i + 1 < source_.last.size(); ++i) {
        bring(source_.last[i]);
      }
      terms.index = {.name = source_.last.back(),
                     .fixed = true,
                     .in_place = options_.in_place,
                     .beside_others = true};
    }
    VARVE_ASSIGN_OR_RETURN(commit_, Commit::Begin(storage_, to_, terms));
    return source_.native ? Status::Ok() : commit_->MarkStaging();
  }

  /// Exchange B, when all files are there.
  Replies Publish(std::size_t ranks) {
    UploadTotals totals;
    std::vector<DataFile> files;
    for (const auto& [name, size] : all_) {
      DataFile& file = files.emplace_back();
      file.name = name;
      file.size = size;
      totals.bytes += size;
    }
    std::vector<IndexFile> index;
    if (source_.native) {
      VARVE_ASSIGN_OR_RETURN(index, NativeIndex(source_.index->metadata));
      VARVE_RETURN_IF_ERROR(AddSideFiles(&totals));
    } else {
      for (const std::string& name : source_.last) {
        if (name == kUploadMark) {
          if (!commit_->claim().empty() || source_.marked) {  // A directory appears at once.
            index.push_back({name, "Written last by the upload of the files beside it.\n"});
          }
          continue;
        }
        VARVE_ASSIGN_OR_RETURN(
            std::string content,
            ReadWholeFile(storage_, JoinPath(source_.directory, name), kMaxIndexBytes));
        index.push_back({name, std::move(content)});
      }
    }
    for (const IndexFile& file : index) {
      totals.bytes += file.content.size();
    }
    totals.files += files.size() + index.size();
    VARVE_RETURN_IF_ERROR(commit_->Publish(files, index));
    return std::vector<std::string>(ranks, EncodeFields(totals));
  }

  Status AddSideFiles(UploadTotals* totals) {
    std::vector<SideFile> files;
    for (const StoredFile& file : source_.index->metadata.side_files) {
      VARVE_ASSIGN_OR_RETURN(std::string content, ReadSideFile(storage_, source_.directory, file));
      totals->bytes += content.size();
      files.push_back({file.name, std::move(content)});
    }
    totals->files += files.size();
    commit_->AddSideFiles(std::move(files));
    return Status::Ok();
  }

  // ---- on every rank ----

  Contribution CopyShare(const UploadShare& share) {
    std::uint64_t total = 0;
    for (const std::string& name : share.files) {
      total += source_.files.at(name);
    }
    std::atomic<std::uint64_t> done = 0;
    CopyTerms terms{.threads = options_.threads, .on_copied = {}, .stop = options_.stop};
    if (options_.progress) {
      terms.on_copied = [&](std::uint64_t bytes) { options_.progress(done += bytes, total); };
    }
    for (const std::string& name : share.files) {
      CopiedFile file = source_.File(name, source_.files.at(name));
      file.to = JoinPath(share.staging, name);
      if (name.find('/') != std::string::npos) {
        VARVE_RETURN_IF_ERROR(MakeDirectories(storage_, ParentPath(file.to)));
      }
      if (const Status copied = CopyFile(storage_, file, terms); !copied.ok()) {
        // The file may by now be another save's, or gone.
        const bool is_other =
            copied.code() == StatusCode::kDataLoss || copied.code() == StatusCode::kNotFound;
        return is_other && source_.index && WasReplaced(storage_, *source_.index)
                   ? FailedPrecondition(from_ +
                                        " was replaced by another save, or removed, while it was "
                                        "uploaded")
                   : copied;
      }
    }
    return std::string();
  }

  const std::string& from_;
  const std::string& to_;
  const UploadOptions& options_;
  Storage& storage_;
  UploadSource source_;
  std::map<std::string, std::uint64_t> all_;  ///< On the coordinator: the files of all ranks.
  std::unique_ptr<Commit> commit_;
};

Status CheckTarget(const std::string& from, const std::string& to, const UploadOptions& options) {
  if (from == to) {
    return InvalidArgument("upload " + from + ": it is the target too");
  }
  if (options.threads < 1) {
    return InvalidArgument("threads: want at least 1");
  }
  return CheckCheckpointName(to);
}

}  // namespace

Result<UploadReport> Upload(const std::string& from, const std::string& to,
                            const UploadOptions& options, Coordinator& coordinator,
                            Storage& storage) {
  std::string source = from;
  std::string target = to;
  const Status ready = Guarded([&]() -> Status {  // All ranks learn of it in the first exchange.
    VARVE_ASSIGN_OR_RETURN(source, ResolvePath(from, storage));
    VARVE_ASSIGN_OR_RETURN(target, ResolvePath(to, storage));
    return CheckTarget(source, target, options);
  });
  return Uploading(source, target, options, storage).Run(coordinator, ready);
}

Status UploadFile(const std::string& from, const std::string& to, bool overwrite, Storage& storage,
                  const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string source, ResolvePath(from, storage));
  VARVE_ASSIGN_OR_RETURN(const std::string target, ResolvePath(to, storage));
  const std::string what = "upload " + source + " to " + target;
  const auto file = storage.OpenForRead(source);
  VARVE_RETURN_IF_ERROR(file.status().Annotate(what));
  return CopyFile(
             storage,
             {.from = source, .to = target, .size = (*file)->size(), .is_exclusive = !overwrite},
             {.stop = stop})
      .Annotate(what);
}

Result<UploadReport> Upload(const std::string& from, const std::string& to,
                            const UploadOptions& options, Storage& storage) {
  const auto coordinator = MakeSingleProcessCoordinator();
  return Upload(from, to, options, *coordinator, storage);
}

}  // namespace varve
