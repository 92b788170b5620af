/// An ObjectStore as a Storage, which publishes by ConditionalWrites: S3's, and those that programs
/// register. What an object store has no notion of is said as Storage lets a backend say it:
///   - A directory is there as long as an object's name begins with its name and '/'. MakeDirectory
///     and SyncDirectory succeed and do nothing.
///   - Rename and Lock are Unimplemented. Checkpoints are published by ConditionalWrites.
///   - A file becomes visible with Sync, whole, not when it is opened; `exclusive` is looked at
///   when
///     it is opened. Several processes cannot write one file: `shared` is Unimplemented.
///   - Remove also gives up the uploads below a name that were not finished.
///   - A file that is open for reading and is replaced meanwhile fails with FailedPrecondition,
///     where the store has versions.
/// What a store returns is checked: one that breaks the contract gets an error, not a save.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/of_process.h"
#include "varve/storage.h"
#include "varve/storage_plugins.h"

namespace varve {

/// Calls of a store, each with an error that names the object, and the call where the store's own
/// does not: "read mem://run/x: ...". Fails with Cancelled, and calls nothing, where the calling
/// thread was asked to stop.
class ObjectCalls {
 public:
  ObjectCalls(std::string scheme, std::shared_ptr<ObjectStore> store)
      : prefix_(std::move(scheme) + "://"), store_(std::move(store)) {}

  /// Returns "scheme://name".
  [[nodiscard]] std::string PathOf(const std::string& name) const { return prefix_ + name; }
  /// Returns what follows "scheme://" in a full name, and checks it: of an object, or of what may
  /// also be a folder.
  [[nodiscard]] Result<std::string> NameOf(const std::string& path, bool is_object) const;

  [[nodiscard]] Result<StoreEntry> Head(const std::string& name) const;
  Status Read(const std::string& name, std::uint64_t offset,
              std::span<const std::span<std::byte>> parts, const std::string& version) const;
  /// `prefix` ends with '/'. Some stores list the folder itself, of which other programs have made
  /// an object. Errors: FailedPrecondition where the store returns names that do not lie below it
  /// as ObjectStore::List says.
  [[nodiscard]] Result<std::vector<StoreEntry>> List(const std::string& prefix,
                                                     bool unfinished) const;
  [[nodiscard]] Result<std::vector<std::string>> ListAll(const std::string& prefix) const;
  Status Put(const std::string& name, std::span<const std::byte> data, bool if_absent) const;
  [[nodiscard]] bool RefusalsAreFinal() const { return store_->RefusalsAreFinal(); }
  Status Remove(const std::vector<std::string>& names) const;
  [[nodiscard]] Result<std::string> StartUpload(const std::string& name, std::uint64_t part_bytes,
                                                const std::string& mark) const;
  [[nodiscard]] Result<std::string> UploadPart(const std::string& name, const std::string& upload,
                                               int number, std::span<const std::byte> data) const;
  Status EndUpload(const std::string& name, const std::string& upload,
                   const std::vector<std::string>* parts) const;
  [[nodiscard]] std::int64_t NowNs() const;

 private:
  const std::string prefix_;
  const std::shared_ptr<ObjectStore> store_;
};

class ObjectStorage : public Storage, private ConditionalWrites {
 public:
  ObjectStorage(const std::string& scheme, std::shared_ptr<ObjectStore> store,
                const ObjectStoreOptions& options);

  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override;
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override;
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override;
  Status MakeDirectory(const std::string& name) override;
  Status SyncDirectory(const std::string& name) override;
  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override;
  Status Remove(const std::string& name) override;
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override;

 private:
  bool Serves(const std::string& name) override;
  Status WriteIfAbsent(const std::string& name, std::string_view content) override;
  Status Replace(const std::string& name, std::string_view content) override;
  Result<std::vector<Unfinished>> ListUnfinished(const std::string& directory) override;
  Status RemoveUnfinished(const Unfinished& file) override;
  Result<bool> Prepare(const std::string& directory) override;
  std::int64_t NowNs(const std::string& directory) override;

  /// Returns true where Put with `if_absent` is obeyed below the first component of `name`, a
  /// bucket as a rule. Asks the store once, or as often as threads want to know at that moment.
  Result<bool> Obeys(const std::string& name);
  /// Returns Unavailable where one of the objects below `prefix` is still listed that were removed.
  Status CheckAreGone(const std::string& prefix, std::vector<std::string> removed);
  /// Returns true where the object is there and holds `content`. Errors: NotFound.
  Result<bool> Holds(const std::string& name, std::string_view content);
  /// Returns what became of a write that did not simply succeed. `there` is what Holds returned.
  Status Outcome(const std::string& name, Status written, const Result<bool>& there);

  struct Asked {
    std::mutex mutex;                   // Guards all below.
    std::map<std::string, bool> obeys;  // By first component.
  };

  const std::string scheme_;
  const ObjectStoreOptions options_;
  const ObjectCalls calls_;
  OfProcess<Asked> asked_;
};

}  // namespace varve
