/// Publishing DCP checkpoints in a directory that stays.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

struct DcpInPlaceOptions {
  bool overwrite = false;  ///< False: an index that is there ends the save.
  /// Set for a save of this rank alone, of which the other ranks do not know; its index is
  /// `__R.metadata`. Empty for the coordinator of all ranks, whose index is `.metadata`.
  std::optional<std::uint32_t> rank;
};

/// The right to write a DCP checkpoint into a directory that stays: because it holds other things,
/// is a mount point, or because ranks save without a coordinator. Data files are written into
/// directory() under numbers from first() on; nothing reads them before Publish replaces the index
/// in one step. Destroying it without Publish removes the files that this save has written. The
/// steps, and the crash each one closes, are at the top of src/publish/dcp_in_place.cc.
/// Threads: one at a time.
class DcpInPlaceCommit {
 public:
  /// Makes the directory if there is none. Errors: AlreadyExists without `overwrite`;
  /// FailedPrecondition when another save of this name is under way, and when the directory holds a
  /// checkpoint that readers would open instead of this one.
  static Result<std::unique_ptr<DcpInPlaceCommit>> Begin(const std::string& path,
                                                         const DcpInPlaceOptions& options,
                                                         Storage& storage = AnyStorage());
  DcpInPlaceCommit(const DcpInPlaceCommit&) = delete;
  DcpInPlaceCommit& operator=(const DcpInPlaceCommit&) = delete;
  ~DcpInPlaceCommit();

  /// Returns the directory for data files, under names `__R_N.distcp` with N from first() on.
  [[nodiscard]] const std::string& directory() const;
  [[nodiscard]] std::uint64_t first() const;

  /// Checks that each of `files` (name in directory(), exact size) is there, and replaces the index
  /// by `metadata`. Then removes the files of the checkpoint that was there, and nothing else.
  /// Files must have been synced by their writers. Errors: FailedPrecondition for a missing file,
  /// DataLoss for one of another size; the old checkpoint stays.
  Status Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                 const std::string& metadata);

  /// Returns paths of files of the user's that stay under hidden names, where dead saves had them:
  /// the directory has another file of that name.
  [[nodiscard]] const std::vector<std::string>& conflicts() const;

 private:
  struct Impl;
  explicit DcpInPlaceCommit(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace varve
