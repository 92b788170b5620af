/// Objects of S3 and of servers that speak its protocol, as a Storage. Names are "s3://bucket/key",
/// or of another scheme of kSchemes, whose settings the storage has then.
///
/// What an object store has no notion of is said as Storage lets a backend say it:
///   - A directory is there as long as an object's key begins with its name and '/'. MakeDirectory
///   and
///     SyncDirectory succeed and do nothing.
///   - Rename and Lock are Unimplemented. Checkpoints are published by ConditionalWrites.
///   - A file becomes visible with Sync, whole, not when it is opened; `exclusive` is looked at
///   when
///     it is opened. Several processes cannot write one file: `shared` is Unimplemented.
///   - Remove also gives up the uploads below a name that were not finished.
///   - A file that is open for reading and is replaced meanwhile fails with FailedPrecondition.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "storage/s3/client.h"
#include "varve/storage.h"

namespace varve::s3 {

class S3Storage final : public Storage, private ConditionalWrites, private SharedAccess {
 public:
  /// The arguments are those of S3Client.
  S3Storage(Settings settings, CredentialsFunction credentials,
            std::shared_ptr<Traffic> traffic = nullptr, SendFunction send = {});

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
  Result<std::string> Describe(const std::string& name) override;
  Result<std::shared_ptr<Storage>> Open(const std::string& name,
                                        const std::string& access) override;

  /// Returns true where the bucket's server obeys If-None-Match. Asks it once.
  /// `below` is where it may write for that: empty, or ends with '/'.
  Result<bool> Obeys(const std::string& bucket, const std::string& below);
  /// Returns true where the object is there and holds `content`. Errors: NotFound.
  Result<bool> Holds(const ObjectName& object, std::string_view content);

  const std::string_view scheme_;  // Of all its names.
  S3Client client_;
  std::mutex mutex_;                   // Guards all below; held while a bucket is asked.
  std::map<std::string, bool> obeys_;  // By bucket.
};

/// Returns the storage of all names of a scheme of kSchemes, with the settings and keys of the
/// process's environment, which are read at the first call. Never destroyed. Errors:
/// InvalidArgument for settings that cannot be used.
Result<Storage*> ProcessS3Storage(std::string_view scheme);

/// Returns the storage of a scheme with the settings and keys of another process, whose Describe
/// has made `access`. Several with the same access share one. Errors: as ProcessS3Storage; DataLoss
/// for what Describe has not made.
Result<std::shared_ptr<Storage>> StorageOfAccess(std::string_view scheme,
                                                 const std::string& access);

}  // namespace varve::s3
