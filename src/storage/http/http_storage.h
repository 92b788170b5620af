/// Files of web servers, as a Storage that reads. Names are "https://host/path" or http://.
///
///   - Directories cannot be listed: List is Unimplemented, and UnlistedNames says so.
///   - Every operation that writes is refused, with InvalidArgument, before any request.
///   - A file that is open and is replaced meanwhile fails with FailedPrecondition, as far as the
///     server tells: its ETag, Last-Modified and size are compared with each answer.
///   - A server without ranges serves files of at most 16 MiB, which are read whole and kept while
///     they are open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "storage/http/client.h"
#include "varve/storage.h"

namespace varve::http {

class HttpStorage final : public Storage, private UnlistedNames {
 public:
  explicit HttpStorage(Settings settings);

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
  bool IsUnlisted(const std::string& name) override;

  WebClient client_;
};

/// Returns the error of an operation that would write to a URL.
Status ReadOnly(const std::string& name);

/// Returns the storage of all URLs, with the settings of the process's environment, which are read
/// at the first call. Never destroyed. Errors: InvalidArgument for settings that cannot be used.
Result<Storage*> ProcessHttpStorage();

}  // namespace varve::http
