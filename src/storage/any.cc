// The storage of all names: each operation goes to the backend of the name's scheme. A new scheme
// is one line in BackendOf. Stores that the program registers have theirs at run time.

#include "storage/any.h"

#include "base/time_source.h"
#include "storage/cache/cached_file.h"
#include "storage/http/http_storage.h"
#include "storage/http/url.h"
#include "storage/objects/registry.h"
#include "storage/s3/object_name.h"
#include "storage/s3/s3_storage.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// Returns the backend of a name. Errors: InvalidArgument where its settings cannot be used.
Result<Storage*> BackendOf(std::string_view name) {
  if (!http::SchemeOfUrl(name).empty()) {
    return http::ProcessHttpStorage();
  }
  if (const std::string_view objects = s3::SchemeOfObject(name); !objects.empty()) {
    return s3::ProcessS3Storage(objects);
  }
  Storage* const registered = RegisteredStorage(name);
  return registered != nullptr ? registered : &PosixStorage();
}

/// Returns an operation that the backend of `name` may lack; null where it does, or has no backend.
template <class Extra>
Extra* ExtraOf(std::string_view name, Extra* StorageExtras::* member) {
  const auto backend = BackendOf(name);
  return backend.ok() ? (*backend)->extras().*member : nullptr;
}

class Dispatcher final : public Storage,
                         private HardLinks,
                         private SymbolicLinks,
                         private EmptyDirectories,
                         private FileLocks,
                         private ConditionalWrites,
                         private SharedAccess,
                         private UnlistedNames,
                         private RememberedNames {
 public:
  explicit Dispatcher(bool cached)
      : Storage({this, this, this, this, this, this, this, this}), cached_(cached) {}

  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override {
    VARVE_ASSIGN_OR_RETURN(Storage* const backend, BackendOf(name));
    return backend->OpenForWrite(name, options);
  }
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override {
    VARVE_ASSIGN_OR_RETURN(Storage* const backend, BackendOf(name));
    if (!cached_ || backend == &PosixStorage() || RegisteredStorage(name) != nullptr) {
      return backend->OpenForRead(name);
    }
    VARVE_ASSIGN_OR_RETURN(cache::BlockStore* const store, cache::ProcessBlockStore());
    VARVE_ASSIGN_OR_RETURN(auto file, backend->OpenForRead(name));
    return store == nullptr ? std::move(file) : cache::ReadThrough(*store, name, std::move(file));
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    VARVE_ASSIGN_OR_RETURN(Storage* const backend, BackendOf(directory));
    return backend->List(directory);
  }
  Status MakeDirectory(const std::string& name) override {
    VARVE_ASSIGN_OR_RETURN(Storage* const backend, BackendOf(name));
    return backend->MakeDirectory(name);
  }
  Status SyncDirectory(const std::string& name) override {
    VARVE_ASSIGN_OR_RETURN(Storage* const backend, BackendOf(name));
    return backend->SyncDirectory(name);
  }
  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override {
    VARVE_ASSIGN_OR_RETURN(Storage* const backend, BackendOf(from));
    VARVE_ASSIGN_OR_RETURN(Storage* const other, BackendOf(to));
    return backend == other
               ? backend->Rename(from, to, mode)
               : Unimplemented("rename " + from + " to " + to + ": they are in different storages");
  }
  Status Remove(const std::string& name) override {
    VARVE_ASSIGN_OR_RETURN(Storage* const backend, BackendOf(name));
    return backend->Remove(name);
  }
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override {
    VARVE_ASSIGN_OR_RETURN(Storage* const backend, BackendOf(name));
    return backend->Lock(name);
  }

 private:
  Status Link(const std::string& from, const std::string& to) override {
    HardLinks* const links = ExtraOf(from, &StorageExtras::hard_links);
    return links != nullptr && ExtraOf(to, &StorageExtras::hard_links) == links
               ? links->Link(from, to)
               : Unimplemented("link " + from + " to " + to + ": there are no links there");
  }
  Result<bool> AreOneFile(const std::string& a, const std::string& b) override {
    HardLinks* const links = ExtraOf(a, &StorageExtras::hard_links);
    return links != nullptr && ExtraOf(b, &StorageExtras::hard_links) == links
               ? links->AreOneFile(a, b)
               : Result<bool>(false);
  }
  Result<std::string> ReadLink(const std::string& name) override {
    SymbolicLinks* const links = ExtraOf(name, &StorageExtras::symbolic_links);
    return links != nullptr ? links->ReadLink(name)
                            : Result<std::string>(InvalidArgument(name + " is no link"));
  }
  Status MakeLink(const std::string& target, const std::string& name) override {
    SymbolicLinks* const links = ExtraOf(name, &StorageExtras::symbolic_links);
    return links != nullptr ? links->MakeLink(target, name)
                            : Unimplemented("link " + name + ": there are no links there");
  }
  Status RemoveEmpty(const std::string& name) override {
    EmptyDirectories* const empty = ExtraOf(name, &StorageExtras::empty_directories);
    if (empty != nullptr) {
      return empty->RemoveEmpty(name);
    }
    const auto entries = List(name);  // Where directories are prefixes, an empty one is none.
    return entries.ok() ? AlreadyExists(name + " is not empty") : Status::Ok();
  }
  void AskAnew(const std::string& directory) override {
    if (RememberedNames* const names = ExtraOf(directory, &StorageExtras::remembered_names)) {
      names->AskAnew(directory);
    }
  }
  Result<std::unique_ptr<StorageLock>> LockFile(const std::string& name, LockMode mode) override {
    FileLocks* const locks = ExtraOf(name, &StorageExtras::file_locks);
    if (locks == nullptr) {
      return Unimplemented(name + ": there are no locks there");
    }
    return locks->LockFile(name, mode);
  }
  bool Serves(const std::string& name) override {
    // Not asked of the backend: settings that cannot be used are told by the operations.
    return !s3::SchemeOfObject(name).empty() || RegisteredStorage(name) != nullptr;
  }
  bool IsUnlisted(const std::string& name) override { return !http::SchemeOfUrl(name).empty(); }
  Status WriteIfAbsent(const std::string& name, std::string_view content) override {
    ConditionalWrites* const writes = ExtraOf(name, &StorageExtras::conditional_writes);
    return writes != nullptr ? writes->WriteIfAbsent(name, content)
                             : Unimplemented(name + ": there are no conditional writes there");
  }
  Status Replace(const std::string& name, std::string_view content) override {
    ConditionalWrites* const writes = ExtraOf(name, &StorageExtras::conditional_writes);
    return writes != nullptr ? writes->Replace(name, content)
                             : Unimplemented(name + ": there are no writes of whole files there");
  }
  Result<std::vector<Unfinished>> ListUnfinished(const std::string& directory) override {
    ConditionalWrites* const writes = ExtraOf(directory, &StorageExtras::conditional_writes);
    return writes != nullptr ? writes->ListUnfinished(directory)
                             : Result<std::vector<Unfinished>>(std::vector<Unfinished>());
  }
  Result<bool> Prepare(const std::string& directory) override {
    ConditionalWrites* const writes = ExtraOf(directory, &StorageExtras::conditional_writes);
    if (writes == nullptr) {
      VARVE_RETURN_IF_ERROR(BackendOf(directory).status());
      return true;
    }
    return writes->Prepare(directory);
  }
  std::int64_t NowNs(const std::string& directory) override {
    ConditionalWrites* const writes = ExtraOf(directory, &StorageExtras::conditional_writes);
    return writes != nullptr ? writes->NowNs(directory) : TimeOfDay().count();
  }
  Status RemoveUnfinished(const Unfinished& file) override {
    ConditionalWrites* const writes = ExtraOf(file.name, &StorageExtras::conditional_writes);
    return writes != nullptr ? writes->RemoveUnfinished(file) : Status::Ok();
  }
  Result<std::string> Describe(const std::string& name) override {
    if (RegisteredStorage(name) != nullptr) {
      return Unimplemented(name +
                           ": a store that this program has registered is not seen by other "
                           "processes, the agent among them: save with threads of this process "
                           "(executor=\"thread\")");
    }
    const std::string_view objects = s3::SchemeOfObject(name);
    return objects.empty() ? Result<std::string>(std::string()) : s3::AccessOf(objects);
  }
  Result<std::shared_ptr<Storage>> Open(const std::string& name,
                                        const std::string& access) override {
    // Not asked of the backend: this process may have no settings of its own.
    const std::string_view objects = s3::SchemeOfObject(name);
    return objects.empty() ? Result<std::shared_ptr<Storage>>(InvalidArgument(
                                 name + ": it is reached without settings of another process"))
                           : s3::StorageOfAccess(objects, access);
  }

  const bool cached_;  // Files of servers are read by way of this host's cache, if it has one.
};

}  // namespace

Storage& AnyStorage() {
  static Storage& storage = *new Dispatcher(/*cached=*/true);
  return storage;
}

Storage& WithoutCache(Storage& storage) {
  static Storage& direct = *new Dispatcher(/*cached=*/false);
  return &storage == &AnyStorage() ? direct : storage;
}

}  // namespace varve
