#include "storage/objects/object_storage.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/events.h"
#include "base/guarded.h"
#include "base/retry_time.h"
#include "base/time_source.h"
#include "storage/objects/object_writer.h"
#include "storage/objects/registry.h"
#include "storage/server_file.h"

namespace varve {
namespace {

/// Names that one Remove of the store gets.
constexpr std::size_t kMostRemoved = 1000;

class ObjectReader final : public ServerFile {
 public:
  ObjectReader(const ObjectCalls& calls, std::string name, StoreEntry object)
      : calls_(calls), name_(std::move(name)), object_(std::move(object)) {}

  [[nodiscard]] std::uint64_t size() const override { return object_.size; }
  [[nodiscard]] std::string version() const override {
    return object_.version.starts_with("W/") ? std::string() : object_.version;  // A weak ETag.
  }

  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    VARVE_RETURN_IF_ERROR(CheckRange(calls_.PathOf(name_), offset, parts));
    return calls_.Read(name_, offset, parts, object_.version);
  }

 private:
  const ObjectCalls& calls_;
  const std::string name_;
  const StoreEntry object_;
};

/// Returns true where a store says that it does not write, and not that it does not know.
bool IsRefusal(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kOutOfSpace ||
         status.code() == StatusCode::kFailedPrecondition;
}

/// Returns the first component of a name.
std::string BucketOf(const std::string& name) { return name.substr(0, name.find('/')); }

}  // namespace

ObjectStorage::ObjectStorage(const std::string& scheme, std::shared_ptr<ObjectStore> store,
                             const ObjectStoreOptions& options)
    : Storage({.conditional_writes = this}),
      scheme_(scheme),
      options_(options),
      calls_(scheme, std::move(store)) {}

Result<std::unique_ptr<WritableFile>> ObjectStorage::OpenForWrite(const std::string& name,
                                                                  const WriteOptions& options) {
  VARVE_ASSIGN_OR_RETURN(std::string object, calls_.NameOf(name, /*is_object=*/true));
  if (options.shared) {
    return Unimplemented(name + ": an object cannot be written by several processes");
  }
  if (options.exclusive) {
    const auto there = calls_.Head(object);
    if (there.ok()) {
      return AlreadyExists(name + " exists");
    }
    if (there.status().code() != StatusCode::kNotFound) {
      return there.status();
    }
  }
  return MakeObjectWriter(calls_, std::move(object), options.size, options_);
}

Result<std::unique_ptr<ReadableFile>> ObjectStorage::OpenForRead(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(std::string object, calls_.NameOf(name, /*is_object=*/true));
  VARVE_ASSIGN_OR_RETURN(StoreEntry found, calls_.Head(object));
  return std::unique_ptr<ReadableFile>(
      std::make_unique<ObjectReader>(calls_, std::move(object), std::move(found)));
}

Result<std::vector<DirectoryEntry>> ObjectStorage::List(const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const std::string name, calls_.NameOf(directory, /*is_object=*/false));
  const std::string prefix = name + "/";
  VARVE_ASSIGN_OR_RETURN(const auto objects, calls_.List(prefix, /*unfinished=*/false));
  if (objects.empty()) {
    const auto there = calls_.Head(name);
    if (!there.ok() || !there->is_folder) {
      return there.ok() ? InvalidArgument(directory + " is an object and not a directory")
                        : NotFound(directory + ": no object has this prefix");
    }
  }
  std::vector<DirectoryEntry> entries;
  entries.reserve(objects.size());
  for (const StoreEntry& object : objects) {
    if (object.name.size() > prefix.size()) {  // Not the directory itself.
      entries.push_back({object.name.substr(prefix.size()), object.is_folder, object.size,
                         object.modified_ns, false});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const DirectoryEntry& a, const DirectoryEntry& b) {
    return a.name != b.name ? a.name < b.name : !a.is_directory && b.is_directory;
  });
  entries.erase(std::unique(entries.begin(), entries.end(),
                            [](const DirectoryEntry& a, const DirectoryEntry& b) {
                              return a.name == b.name && a.is_directory == b.is_directory;
                            }),
                entries.end());
  return entries;
}

Status ObjectStorage::MakeDirectory(const std::string& name) {
  return calls_.NameOf(name, /*is_object=*/false).status();
}

Status ObjectStorage::SyncDirectory(const std::string& name) {
  return calls_.NameOf(name, /*is_object=*/false).status();
}

Status ObjectStorage::Rename(const std::string& from, const std::string& to, RenameMode /*mode*/) {
  return Unimplemented("rename " + from + " to " + to + ": objects cannot be renamed");
}

Status ObjectStorage::Remove(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const std::string object, calls_.NameOf(name, /*is_object=*/true));
  VARVE_ASSIGN_OR_RETURN(auto names, calls_.ListAll(object + "/"));
  for (auto first = names.begin(); first != names.end();) {
    const auto count = std::min<std::ptrdiff_t>(kMostRemoved, std::distance(first, names.end()));
    VARVE_RETURN_IF_ERROR(calls_.Remove({first, first + count}));
    first += count;
  }
  // Last: in a store whose objects are files it is a directory, which must be empty.
  VARVE_RETURN_IF_ERROR(calls_.Remove({object}));
  VARVE_RETURN_IF_ERROR(CheckAreGone(object + "/", std::move(names)));
  const auto unfinished = ListUnfinished(name);
  if (unfinished.status().code() == StatusCode::kFailedPrecondition ||
      unfinished.status().code() == StatusCode::kUnimplemented) {
    return Status::Ok();  // Keys that may not list them, or a store that cannot.
  }
  VARVE_RETURN_IF_ERROR(unfinished.status());
  for (const Unfinished& file : *unfinished) {
    VARVE_RETURN_IF_ERROR(RemoveUnfinished(file));
  }
  return Status::Ok();
}

/// Servers exist that say yes and remove nothing. An object that has come meanwhile is not ours.
Status ObjectStorage::CheckAreGone(const std::string& prefix, std::vector<std::string> removed) {
  if (removed.empty()) {
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(const auto left, calls_.ListAll(prefix));
  std::sort(removed.begin(), removed.end());
  const auto ours = std::find_if(left.begin(), left.end(), [&](const std::string& name) {
    return std::binary_search(removed.begin(), removed.end(), name);
  });
  return ours == left.end() ? Status::Ok()
                            : Unavailable(calls_.PathOf(*ours) +
                                          " is still listed after the server has deleted it");
}

Result<std::unique_ptr<StorageLock>> ObjectStorage::Lock(const std::string& name) {
  return Unimplemented(name + ": an object store has no locks");
}

Result<std::vector<ConditionalWrites::Unfinished>> ObjectStorage::ListUnfinished(
    const std::string& directory) {
  std::vector<Unfinished> files;
  if (!options_.uploads) {
    return files;
  }
  VARVE_ASSIGN_OR_RETURN(const std::string name, calls_.NameOf(directory, /*is_object=*/false));
  VARVE_ASSIGN_OR_RETURN(const auto uploads, calls_.List(name + "/", /*unfinished=*/true));
  for (const StoreEntry& upload : uploads) {
    files.push_back({calls_.PathOf(upload.name), upload.upload, upload.modified_ns});
  }
  return files;
}

Status ObjectStorage::RemoveUnfinished(const Unfinished& file) {
  // As it was listed: other programs give names that Varve does not.
  return calls_.EndUpload(file.name.substr(calls_.PathOf({}).size()), file.id, nullptr);
}

// ---- writes that need the name to be free ----

bool ObjectStorage::Serves(const std::string& name) { return SchemeOf(name) == scheme_; }

std::int64_t ObjectStorage::NowNs(const std::string& /*directory*/) { return calls_.NowNs(); }

Result<bool> ObjectStorage::Holds(const std::string& name, std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const StoreEntry info, calls_.Head(name));
  if (info.size != content.size()) {
    return false;
  }
  std::string there(info.size, '\0');
  const auto bytes = std::as_writable_bytes(std::span(there.data(), there.size()));
  VARVE_RETURN_IF_ERROR(calls_.Read(name, 0, std::span(&bytes, 1), info.version));
  return there == content;
}

/// Stores exist that say yes and overwrite, so the object is read back.
Result<bool> ObjectStorage::Obeys(const std::string& name) {
  Asked& asked = asked_.Get();
  const std::string bucket = BucketOf(name);
  {
    const std::scoped_lock lock(asked.mutex);
    if (const auto known = asked.obeys.find(bucket); known != asked.obeys.end()) {
      return known->second;
    }
  }
  // Two threads may ask at once, each with an object of its own: `bucket` lies on its stack.
  const std::string probe =
      name + "/" + std::string(kProbe) + std::to_string(TimeOfDay().count()) + "-" +
      std::to_string(reinterpret_cast<std::uintptr_t>(&bucket) ^
                     static_cast<std::uintptr_t>(Now().time_since_epoch().count()));
  VARVE_RETURN_IF_ERROR(calls_.Put(probe, AsByteSpan("first"), /*if_absent=*/false));
  const Status second = calls_.Put(probe, AsByteSpan("second"), /*if_absent=*/true);
  const RetryTimeAfter bounded(second);
  const auto is_first = Holds(probe, "first");
  const Status removed = calls_.Remove({probe});
  VARVE_RETURN_IF_ERROR(is_first.status());
  VARVE_RETURN_IF_ERROR(removed);
  const bool exists = second.code() == StatusCode::kAlreadyExists;
  if (!second.ok() && !exists && second.code() != StatusCode::kUnimplemented) {
    return second;
  }
  bool obeys = exists && *is_first;
  bool is_news = false;
  {
    const std::scoped_lock lock(asked.mutex);
    const auto [known, is_new] = asked.obeys.try_emplace(bucket, obeys);
    obeys = known->second;
    is_news = is_new;
  }
  if (!obeys && is_news) {
    ReportEvent([&] {
      return Event{.level = EventLevel::kWarning,
                   .message = calls_.PathOf(bucket) +
                              ": the store does not write \"if absent\" (does not obey "
                              "If-None-Match): of two saves that publish one name in the same "
                              "moment, the later one wins without a message"};
    });
  }
  return obeys;
}

Result<bool> ObjectStorage::Prepare(const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const std::string name, calls_.NameOf(directory, /*is_object=*/false));
  VARVE_ASSIGN_OR_RETURN(const bool obeys, Obeys(name));
  return obeys || options_.weak_publish
             ? Result<bool>(obeys)
             : Unimplemented(calls_.PathOf(BucketOf(name)) +
                             ": the store does not write \"if absent\" (does not obey "
                             "If-None-Match), and VARVE_S3_PUBLISH=strict, or register_storage, "
                             "wants it");
}

Status ObjectStorage::WriteIfAbsent(const std::string& name, std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const std::string object, calls_.NameOf(name, /*is_object=*/true));
  VARVE_ASSIGN_OR_RETURN(const bool obeys, Prepare(ParentPath(name)));
  if (!obeys) {
    const auto there = calls_.Head(object);
    if (there.status().code() != StatusCode::kNotFound) {
      return there.ok() ? AlreadyExists(name + " exists") : there.status();
    }
  }
  constexpr int kTries = 4;
  for (int tries = 1;; ++tries) {
    Status written = calls_.Put(object, AsByteSpan(content), /*if_absent=*/obeys);
    if (written.ok() && obeys) {
      return written;
    }
    const RetryTimeAfter bounded(written);
    const auto there = Holds(object, content);
    // "It exists" may be said of a write that is under way and fails: Azure's 409. Then there is
    // nothing, and another try can succeed.
    if (written.code() != StatusCode::kAlreadyExists || tries == kTries ||
        there.status().code() != StatusCode::kNotFound) {
      return Outcome(object, std::move(written), there);
    }
    SleepFor(std::chrono::milliseconds(100 << tries));
  }
}

Status ObjectStorage::Replace(const std::string& name, std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const std::string object, calls_.NameOf(name, /*is_object=*/true));
  Status written = calls_.Put(object, AsByteSpan(content), /*if_absent=*/false);
  if (written.ok()) {
    return written;
  }
  const RetryTimeAfter bounded(written);
  const auto there = Holds(object, content);
  Status outcome = Outcome(object, CopyOf(written), there);
  // What was there before, or another's. A refusal may be that of a second try.
  const bool is_open = outcome.code() == StatusCode::kAlreadyExists ||
                       (there.ok() && IsRefusal(outcome) && !calls_.RefusalsAreFinal());
  return is_open ? Unavailable(written.message() + "; whether " + name +
                               " was written, or will be, is not known")
                 : outcome;
}

/// The store, or a library below it, may have tried twice, and refuse the second try because of the
/// first. Where nothing is obeyed, another's may have overwritten it.
Status ObjectStorage::Outcome(const std::string& name, Status written, const Result<bool>& there) {
  if (there.ok() && *there) {
    return Status::Ok();
  }
  switch (written.code()) {
    case StatusCode::kCancelled:
    case StatusCode::kUnimplemented: return written;
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfSpace:
    case StatusCode::kFailedPrecondition:
      if (there.ok() || there.status().code() == StatusCode::kNotFound ||
          there.status().code() == StatusCode::kFailedPrecondition) {
        return written;  // Refused; as was the look, where it was.
      }
      break;
    default: break;
  }
  if (there.ok()) {
    return AlreadyExists(calls_.PathOf(name) + ": another save's");
  }
  return written.ok()
             ? written
             : Unavailable(written.message() + "; whether " + calls_.PathOf(name) +
                           " is there, or will be, is not known: " + there.status().message());
}

}  // namespace varve
