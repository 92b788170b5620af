/// Publishing directories whose files somebody else writes: OLMo's layouts from Python.
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

class Commit;

/// The right to write one checkpoint of files under a name; for one process. Any process that sees
/// the storage writes files into staging(), into folders too; nothing is visible under the name
/// before Publish. Destroying it without Publish abandons the save: the staging directory is
/// removed. The steps, and the crash each one closes, are those of src/publish/commit.cc.
class FilesCommit {
 public:
  /// Claims the name and makes the staging directory. `mark` is the file that Publish writes last.
  /// Errors: AlreadyExists without `overwrite`; FailedPrecondition when another save of this name
  /// is under way, or when something else than a checkpoint stands there.
  static Result<std::unique_ptr<FilesCommit>> Begin(const std::string& path, Overwrite overwrite,
                                                    const std::string& mark,
                                                    Storage& storage = AnyStorage());
  FilesCommit(const FilesCommit&) = delete;
  FilesCommit& operator=(const FilesCommit&) = delete;
  ~FilesCommit();

  [[nodiscard]] const std::string& staging() const;

  /// Checks that each of `files` (name in staging, exact size) is there, writes `content` as the
  /// mark, makes all durable and visible. Files must have been synced by their writers.
  Status Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                 const std::string& content);

  /// As DcpCommit::conflicts.
  [[nodiscard]] const std::vector<std::string>& conflicts() const;

 private:
  FilesCommit(std::unique_ptr<Commit> commit, std::string mark);
  std::unique_ptr<Commit> commit_;
  std::string mark_;
};

}  // namespace varve
