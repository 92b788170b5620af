/// How checkpoints come, change and go in one family of storages. There are two: file systems,
/// which rename and lock, and object stores, where a file appears whole under its name and nothing
/// is renamed (ConditionalWrites). Whoever publishes, removes or repairs asks PublisherOf, and
/// never which kind of storage there is; readers ask catalogue/family.h.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "publish/commit.h"
#include "publish/remove.h"
#include "varve/catalogue.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Where the files of a save go, as each of its ranks has to know it.
struct SavePlace {
  std::string directory;    ///< Commit::staging().
  bool is_made = false;     ///< The coordinator makes it: who does not see it sees another disk.
  bool one_writer = false;  ///< A file there comes from one writer.
};

/// For storages that rename; an object store heeds neither.
struct FileTerms {
  bool replaces = false;  ///< What has the name.
  std::string part{};     ///< The name until the file is whole; empty: PartPath.
};

/// Has no state but the storage. Paths are resolved, and no links. Threads: as Storage.
class Publisher {
 public:
  explicit Publisher(Storage& storage) : storage_(storage) {}
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  virtual ~Publisher() = default;

  /// See Commit::Begin.
  virtual Result<std::unique_ptr<Commit>> Begin(const std::string& path,
                                                const CommitTerms& terms) = 0;

  /// Returns the place of the save `id` of `path`. `fixed` is IndexTerms::fixed.
  [[nodiscard]] virtual SavePlace PlaceOf(const std::string& path, const SaveId& id,
                                          bool fixed) = 0;

  /// Lets `write` make a file that no reader sees at `path` before it is whole, and then durable.
  /// `write` gets the name to write to. Errors: those of `write`; where files are renamed,
  /// AlreadyExists where the name is taken and stays, and those of Storage::Rename; in an object
  /// store, where `write` decides whether it replaces an object, FailedPrecondition where one file
  /// would take the place of a directory.
  virtual Status PublishFile(const std::string& path, const FileTerms& terms,
                             const std::function<Status(const std::string&)>& write) = 0;

  /// See RemoveCheckpoint and RemoveUnlessUsed.
  virtual Result<RemovalReport> Remove(const std::string& path, const RemovalTerms& terms,
                                       Readers readers) = 0;

  /// See CollectGarbage.
  virtual Result<GarbageReport> Collect(const std::string& directory, DryRun dry_run,
                                        const std::stop_token& stop) = 0;

  /// See Repair.
  virtual Result<RepairReport> RepairIndex(const std::string& path,
                                           const std::stop_token& stop) = 0;

  /// See QuarantineCheckpoint.
  virtual Result<std::string> Quarantine(const std::string& path, std::string_view reason) = 0;

  /// Returns Unimplemented, saying that `what` cannot be written there, where nothing is renamed.
  [[nodiscard]] virtual Status CheckRenames(const std::string& path,
                                            std::string_view what) const = 0;

 protected:
  Storage& storage_;
};

/// Returns the publisher of the checkpoints that have names like `path`.
std::unique_ptr<Publisher> PublisherOf(Storage& storage, const std::string& path);

}  // namespace varve
