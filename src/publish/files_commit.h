/// Publishing directories whose files another program writes: DCP checkpoints whose index torch has
/// made, and OLMo's layouts.
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

class Commit;

struct FilesTerms {
  Overwrite overwrite = Overwrite::kNever;
  std::string mark{};  ///< The file that Publish writes last; empty: DCP's index.
  // Of a DCP checkpoint:
  /// A save of this rank alone, of which the other ranks do not know; its index is `__R.metadata`.
  std::optional<std::uint32_t> rank{};
  /// The directory stays: it holds other things, or is a mount point. It also does so where a rank
  /// saves alone.
  bool stays = false;
};

/// The right to write one checkpoint under a name; for one process. Any process that sees the
/// storage writes data files into staging(), into folders too where there is a mark; nothing reads
/// them before Publish. Destroying it without Publish abandons the save: the files are removed. The
/// steps, and the crash each one closes, are those of src/publish/commit.cc, for a directory that
/// stays and in an object store of index_commit.cc.
class FilesCommit {
 public:
  /// Claims the name and makes the directory. Errors: AlreadyExists without `overwrite`;
  /// FailedPrecondition when another save of this name is under way, and when something else than a
  /// checkpoint stands there, unless the directory stays or is in an object store; there, when
  /// readers would open something else than this checkpoint.
  static Result<std::unique_ptr<FilesCommit>> Begin(const std::string& path,
                                                    const FilesTerms& terms,
                                                    Storage& storage = AnyStorage());
  FilesCommit(const FilesCommit&) = delete;
  FilesCommit& operator=(const FilesCommit&) = delete;
  ~FilesCommit();

  [[nodiscard]] const std::string& staging() const;

  /// Returns what the index has before the names of files in staging(): empty, or a directory and
  /// '/'.
  [[nodiscard]] std::string below() const;

  /// Returns the number from which on those of DCP's data files, `__R_N.distcp`, are free.
  [[nodiscard]] std::uint64_t first() const;

  /// Checks that each of `files` (name in staging, exact size) is there, writes `content` as the
  /// mark, makes all durable and visible. Then removes the files of the checkpoint that was there,
  /// and nothing else. Files must have been synced by their writers. Errors: FailedPrecondition for
  /// a missing file, DataLoss for one of another size; the old checkpoint stays.
  Status Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                 const std::string& content);

  /// Returns paths of files that stay under hidden names: they were put beside an old checkpoint
  /// while it was replaced, and the new one's directory has another file of that name. Known after
  /// Publish.
  [[nodiscard]] const std::vector<std::string>& conflicts() const;

 private:
  FilesCommit(std::unique_ptr<Commit> commit, std::string mark);
  std::unique_ptr<Commit> commit_;
  std::string mark_;
};

/// Returns false when the directory `path` holds other things than a checkpoint that is replaced as
/// a whole, as far as names tell, and so has to stay. Returns true also for nothing, and for a path
/// that cannot be listed: FilesCommit reports why.
bool DcpReplacesDirectory(const std::string& path, Storage& storage = AnyStorage());

}  // namespace varve
