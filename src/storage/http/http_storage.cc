#include "storage/http/http_storage.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/bytes.h"
#include "base/of_process.h"
#include "storage/http/url.h"
#include "storage/server_file.h"

namespace varve::http {
namespace {

class HttpReader final : public ServerFile {
 public:
  HttpReader(WebClient& client, std::string name, RemoteFile file)
      : client_(client), name_(std::move(name)), file_(std::move(file)) {}

  [[nodiscard]] std::uint64_t size() const override { return file_.size; }
  [[nodiscard]] std::string version() const override { return file_.identity; }

  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    VARVE_RETURN_IF_ERROR(CheckRange(name_, offset, parts));
    if (std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.empty(); })) {
      return Status::Ok();
    }
    VARVE_ASSIGN_OR_RETURN(const bool known, CopyOfWhole(offset, parts));
    if (known) {
      return Status::Ok();
    }
    bool range_ignored = false;
    Status got = client_.Get(name_, offset, parts, file_, &range_ignored);
    if (!range_ignored) {
      return got;
    }
    VARVE_RETURN_IF_ERROR(ReadWhole());
    return CopyOfWhole(offset, parts).status();
  }

 private:
  /// Copies from the whole file where that was read. Returns false where it was not.
  Result<bool> CopyOfWhole(std::uint64_t offset, std::span<const std::span<std::byte>> parts) {
    const std::scoped_lock lock(mutex_);
    if (whole_.empty()) {
      return false;
    }
    for (const std::span<std::byte> part : parts) {
      if (!part.empty()) {
        std::memcpy(part.data(), whole_.data() + offset, part.size());
      }
      offset += part.size();
    }
    return true;
  }

  Status ReadWhole() {
    const std::scoped_lock lock(mutex_);
    if (whole_.empty()) {
      VARVE_ASSIGN_OR_RETURN(whole_, client_.GetWhole(name_, file_));
    }
    return Status::Ok();
  }

  WebClient& client_;
  const std::string name_;
  const RemoteFile file_;
  std::mutex mutex_;
  std::string whole_;  // Guarded by mutex_. Of a server without ranges.
};

}  // namespace

Status ReadOnly(const std::string& name) {
  return InvalidArgument(name +
                         ": http:// and https:// are only read; to write, give a path or "
                         "s3://bucket/key");
}

HttpStorage::HttpStorage(Settings settings)
    : Storage({.unlisted_names = this}), client_(std::move(settings)) {}

Result<std::unique_ptr<ReadableFile>> HttpStorage::OpenForRead(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(RemoteFile file, client_.Ask(name));
  return std::unique_ptr<ReadableFile>(
      std::make_unique<HttpReader>(client_, name, std::move(file)));
}

Result<std::vector<DirectoryEntry>> HttpStorage::List(const std::string& directory) {
  return Unimplemented("list " + directory +
                       ": web servers have no list of files that programs can read");
}

Result<std::unique_ptr<WritableFile>> HttpStorage::OpenForWrite(const std::string& name,
                                                                const WriteOptions& /*options*/) {
  return ReadOnly(name);
}
Status HttpStorage::MakeDirectory(const std::string& name) { return ReadOnly(name); }
Status HttpStorage::SyncDirectory(const std::string& name) { return ReadOnly(name); }
Status HttpStorage::Rename(const std::string& from, const std::string& /*to*/,
                           RenameMode /*mode*/) {
  return ReadOnly(from);
}
Status HttpStorage::Remove(const std::string& name) { return ReadOnly(name); }
Result<std::unique_ptr<StorageLock>> HttpStorage::Lock(const std::string& name) {
  return ReadOnly(name);
}

bool HttpStorage::IsUnlisted(const std::string& name) { return !SchemeOfUrl(name).empty(); }

Result<Storage*> ProcessHttpStorage() {
  struct Opened {
    std::mutex mutex;
    std::unique_ptr<Storage> storage;  // Guarded by it.
  };
  static auto& of_process = *new OfProcess<Opened>();
  Opened& opened = of_process.Get();
  const std::scoped_lock lock(opened.mutex);
  if (opened.storage == nullptr) {  // Settings that could not be used may have been put right.
    VARVE_ASSIGN_OR_RETURN(Settings settings, ReadSettings(ProcessEnvironment));
    opened.storage = std::make_unique<HttpStorage>(std::move(settings));
  }
  return opened.storage.get();
}

}  // namespace varve::http
