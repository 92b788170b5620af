/// Uploads: copies of published checkpoints in another storage, as a rule from a local directory to
/// an object store. The copy is a checkpoint of the same save; it becomes visible when all of it is
/// there.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "varve/coordinator.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

struct UploadOptions {
  /// What becomes of a checkpoint that stands at the target. One of the same save is no obstacle,
  /// whatever this says: then there is nothing to do.
  Overwrite overwrite = Overwrite::kNever;
  /// Only for layouts with fixed names of files (PyTorch DCP, OLMo, Hugging Face) in an object
  /// store, where a replaced checkpoint cannot stay until the new one is there: allows to remove
  /// the old one's index first, to write over its files, and to write the new index last. Until
  /// then there is no checkpoint of the name. False refuses to replace one.
  bool in_place = false;
  /// Names of this rank's files, relative to the directory, where no rank sees all of them: disks
  /// of nodes. All ranks give them, or none does.
  std::optional<std::vector<std::string>> own_files{};
  /// With `own_files`: the file of rank 0's directory that makes the rest a checkpoint.
  std::string mark{};
  /// Time for which any rank waits for the others, the slowest rank's upload included.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Blocks of 8 MiB that this rank reads and sends at once.
  int threads = 4;
  ProgressFunction progress{};  ///< Bytes of this rank, and in all.
  std::stop_token stop{};
};

/// The result of an upload, the same on all ranks.
struct UploadReport {
  std::uint64_t bytes = 0;  ///< Of all files, index included; 0 where it was there.
  std::uint64_t files = 0;
  bool was_there = false;  ///< The target held this save already.
  /// Files below the directory that are no part of the checkpoint and are not in the copy, by name,
  /// sorted; as this rank sees it. Empty with `own_files`, and for a checkpoint of Varve's format
  /// whose files lie in a directory of their own, as in an object store.
  std::vector<std::string> left_out{};
  double seconds = 0;
};

/// Copies the checkpoint `from` to the name `to`, by all ranks of `coordinator` together, which see
/// the same directory: each copies the files of its share, and rank 0 the index, last. Checksums
/// that the files carry are compared while they are read. The steps are in src/upload/upload.cc.
/// After an error nothing is visible at `to` that was not before (but see `in_place`), and `from`
/// is as it was. All ranks return the same error.
/// Errors: NotFound; DataLoss for a damaged file, which is named; AlreadyExists when `to` holds
/// another checkpoint; FailedPrecondition when ranks see different checkpoints, or something else
/// stands there; Unimplemented for a layout that has no index; Unavailable; Cancelled.
Result<UploadReport> Upload(const std::string& from, const std::string& to,
                            const UploadOptions& options, Coordinator& coordinator,
                            Storage& storage = AnyStorage());

/// Does the same in one process.
Result<UploadReport> Upload(const std::string& from, const std::string& to,
                            const UploadOptions& options = {}, Storage& storage = AnyStorage());

/// Copies one file, which in an object store appears whole: a single object replaces another in one
/// step. Archives of torch.save are checked by the sums that they hold. Errors: NotFound;
/// AlreadyExists where a file is there, without `overwrite`; DataLoss; Unavailable; Cancelled.
Status UploadFile(const std::string& from, const std::string& to, bool overwrite,
                  Storage& storage = AnyStorage(), const std::stop_token& stop = {});

/// An upload that has been promised and is not done.
struct PendingUpload {
  std::string path;  ///< The checkpoint.
  std::string to;
};

/// Notes that the checkpoint `path`, which need not be there yet, is to be uploaded to `to`: a
/// small file beside it, durable when this returns. Retention keeps the checkpoint until the note
/// is gone. A later note of the same checkpoint replaces it.
Status NotePendingUpload(const std::string& path, const std::string& to,
                         Storage& storage = AnyStorage());

/// Removes the note. Success when there is none.
Status ForgetPendingUpload(const std::string& path, Storage& storage = AnyStorage());

/// Returns where the checkpoint `path` is to be uploaded to; nothing where no upload is pending.
Result<std::optional<std::string>> PendingUploadOf(const std::string& path,
                                                   Storage& storage = AnyStorage());

/// Returns the pending uploads of checkpoints in `directory`, the oldest note first; also of
/// checkpoints that are not there.
Result<std::vector<PendingUpload>> ListPendingUploads(const std::string& directory,
                                                      Storage& storage = AnyStorage());

}  // namespace varve
