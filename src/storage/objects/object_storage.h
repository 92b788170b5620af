/// A registered ObjectStore as a Storage, which publishes by ConditionalWrites. As in s3/:
///   - A directory is there as long as an object's name begins with its name and '/'. MakeDirectory
///     and SyncDirectory succeed and do nothing.
///   - Rename and Lock are Unimplemented.
///   - A file becomes visible with Sync, whole. `exclusive` is looked at when it is opened.
///   - A file that is open for reading and is replaced meanwhile fails with FailedPrecondition,
///     where the store has versions.
/// What a store returns is checked: one that breaks the contract gets an error, not a save.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "storage/objects/copy_on_write.h"
#include "varve/storage.h"
#include "varve/storage_plugins.h"

namespace varve {

/// Calls of a store, each with an error that names the call and the object: "read mem://run/x:
/// ...". Fails with Cancelled, and calls nothing, where the calling thread was asked to stop.
class ObjectCalls {
 public:
  ObjectCalls(std::string scheme, std::shared_ptr<ObjectStore> store)
      : prefix_(std::move(scheme) + "://"), store_(std::move(store)) {}

  /// Returns "scheme://name".
  [[nodiscard]] std::string PathOf(const std::string& name) const { return prefix_ + name; }
  /// Returns what follows "scheme://" in a full name.
  [[nodiscard]] Result<std::string> NameOf(const std::string& path) const;

  [[nodiscard]] Result<StoreEntry> Head(const std::string& name) const;
  Status Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
              const std::string& version) const;
  /// `prefix` is empty or ends with '/'. Errors: FailedPrecondition where the store returns names
  /// that do not lie below it as ObjectStore::List says.
  [[nodiscard]] Result<std::vector<StoreEntry>> List(const std::string& prefix,
                                                     bool unfinished) const;
  Status Put(const std::string& name, std::span<const std::byte> data, bool if_absent) const;
  Status Remove(const std::vector<std::string>& names) const;
  [[nodiscard]] Result<std::string> StartUpload(const std::string& name,
                                                std::uint64_t part_bytes) const;
  [[nodiscard]] Result<std::string> UploadPart(const std::string& name, const std::string& upload,
                                               int number, std::span<const std::byte> data) const;
  Status EndUpload(const std::string& name, const std::string& upload,
                   const std::vector<std::string>* parts) const;

 private:
  const std::string prefix_;
  const std::shared_ptr<ObjectStore> store_;
};

class ObjectStorage final : public Storage, private ConditionalWrites {
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
  /// bucket as a rule. Asks the store once.
  Result<bool> Obeys(const std::string& name);
  Result<std::string> ReadObject(const std::string& name);
  /// Finds out what became of a conditional write.
  Status Outcome(const std::string& name, std::string_view content, const Status& written);

  const std::string scheme_;
  const ObjectStoreOptions options_;
  const ObjectCalls calls_;
  CopyOnWrite<std::map<std::string, bool>> obeys_;  // By first component.
};

}  // namespace varve
