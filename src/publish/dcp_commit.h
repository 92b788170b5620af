/// Publishing DCP checkpoints whose index somebody else has made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// The right to write one DCP checkpoint under a name; for the coordinator alone. Any rank writes
/// data files into staging(); nothing is visible under the name before Publish. Destroying it
/// without Publish abandons the save: the staging directory is removed. The steps, and the crash
/// each one closes, are those of src/publish/commit.cc, and in an object store those of
/// src/publish/index_commit.cc.
class DcpCommit {
 public:
  /// Claims the name and makes the staging directory. `rank`: for a save of this rank alone, of
  /// which the other ranks do not know, in an object store; elsewhere that is DcpInPlaceCommit.
  /// Errors: AlreadyExists without `overwrite`; FailedPrecondition when another save of this name
  /// is under way, or when something else than a checkpoint stands there; in an object store a
  /// checkpoint may lie beside other things.
  static Result<std::unique_ptr<DcpCommit>> Begin(const std::string& path, Overwrite overwrite,
                                                  Storage& storage = AnyStorage(),
                                                  std::optional<std::uint32_t> rank = {});
  DcpCommit(const DcpCommit&) = delete;
  DcpCommit& operator=(const DcpCommit&) = delete;
  ~DcpCommit();

  [[nodiscard]] const std::string& staging() const;

  /// Returns what `metadata` has before the names of files in staging(): empty, or a directory and
  /// '/'.
  [[nodiscard]] std::string below() const;

  /// Checks that each of `files` (name in staging, exact size) is there, writes `metadata` as
  /// `.metadata`, or as `__R.metadata` of a rank alone, makes all durable and visible. Files must
  /// have been synced by their writers.
  Status Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                 const std::string& metadata);

  /// Returns paths of files that stay under hidden names: they were put beside an old checkpoint
  /// while it was replaced, and the new one's directory has another file of that name. Known after
  /// Publish.
  [[nodiscard]] const std::vector<std::string>& conflicts() const;

 private:
  struct Impl;
  explicit DcpCommit(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns true where DcpCommit is the way to save whatever stands at `path`: in an object store.
bool DcpGoesBeside(const std::string& path, Storage& storage = AnyStorage());

/// Returns true when DcpCommit is the way to save at `path`, as far as names tell: nothing is
/// there, an empty directory, a checkpoint in Varve's own format, or a DCP checkpoint and nothing
/// else. Returns false when the directory holds other things and stays where it is; see
/// DcpInPlaceCommit. Returns true also for a path that cannot be listed: DcpCommit reports why.
bool DcpReplacesDirectory(const std::string& path, Storage& storage = AnyStorage());

}  // namespace varve
