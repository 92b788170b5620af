/// Publishing DCP checkpoints whose index somebody else has made.
#pragma once

#include <cstdint>
#include <memory>
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
/// each one closes, are those of src/publish/commit.cc.
class DcpCommit {
 public:
  /// Claims the name and makes the staging directory. Errors: AlreadyExists without `overwrite`;
  /// FailedPrecondition when another save of this name is under way, or when something else than a
  /// checkpoint stands there.
  static Result<std::unique_ptr<DcpCommit>> Begin(const std::string& path, Overwrite overwrite,
                                                  Storage& storage = AnyStorage());
  DcpCommit(const DcpCommit&) = delete;
  DcpCommit& operator=(const DcpCommit&) = delete;
  ~DcpCommit();

  [[nodiscard]] const std::string& staging() const;

  /// Checks that each of `files` (name in staging, exact size) is there, writes `metadata` as
  /// `.metadata`, makes all durable and visible. Files must have been synced by their writers.
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

/// Returns true when DcpCommit is the way to save at `path`, as far as names tell: nothing is
/// there, an empty directory, a checkpoint in Varve's own format, or a DCP checkpoint and nothing
/// else. Returns false when the directory holds other things and stays where it is; see
/// DcpInPlaceCommit. Returns true also for a path that cannot be listed: DcpCommit reports why.
bool DcpReplacesDirectory(const std::string& path, Storage& storage = AnyStorage());

}  // namespace varve
