#include "storage/objects/object_storage.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/events.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "storage/objects/part_writer.h"
#include "storage/objects/registry.h"

namespace varve {
namespace {

constexpr std::uint64_t kMostWhole = std::uint64_t{4} << 30;
/// Names that one Remove of the store gets.
constexpr std::size_t kMostRemoved = 1000;

class StoreReader final : public ReadableFile {
 public:
  StoreReader(const ObjectCalls& calls, StoreEntry object)
      : calls_(calls), object_(std::move(object)) {}

  [[nodiscard]] std::uint64_t size() const override { return object_.size; }

  /// Reads several parts at once, through memory of its own: a call of a store may be a request, or
  /// wait for an interpreter.
  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    std::uint64_t bytes = 0;
    std::size_t used = 0;
    std::span<std::byte> only;
    for (const std::span<std::byte> part : parts) {
      bytes += part.size();
      used += part.empty() ? 0 : 1;
      only = part.empty() ? only : part;
    }
    if (offset > object_.size || bytes > object_.size - offset) {
      return DataLoss(calls_.PathOf(object_.name) + ": ends at byte " +
                      std::to_string(object_.size) + ", before the " + std::to_string(bytes) +
                      " bytes wanted at " + std::to_string(offset));
    }
    if (used <= 1) {
      return used == 0 ? Status::Ok() : calls_.Read(object_.name, offset, only, object_.version);
    }
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(bytes);
    VARVE_RETURN_IF_ERROR(
        calls_.Read(object_.name, offset, {buffer.get(), bytes}, object_.version));
    const std::byte* from = buffer.get();
    for (const std::span<std::byte> part : parts) {
      if (!part.empty()) {
        std::memcpy(part.data(), from, part.size());
        from += part.size();
      }
    }
    return Status::Ok();
  }

  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t /*capacity*/) override {
    const std::span<std::byte> whole(buffer, size);
    return ReadAt(offset, std::span(&whole, 1));
  }

  [[nodiscard]] bool IsCached(std::uint64_t /*offset*/, std::uint64_t /*size*/) override {
    return false;
  }

 private:
  const ObjectCalls& calls_;
  const StoreEntry object_;
};

/// Returns the first component of a name.
std::string BucketOf(const std::string& name) { return name.substr(0, name.find('/')); }

/// Lists all objects below `prefix`, in folders too.
Status ListAll(const ObjectCalls& calls, const std::string& prefix,
               std::vector<std::string>* names) {
  VARVE_ASSIGN_OR_RETURN(const auto objects, calls.List(prefix, /*unfinished=*/false));
  for (const StoreEntry& object : objects) {
    if (object.is_folder) {
      VARVE_RETURN_IF_ERROR(ListAll(calls, object.name + "/", names));
    } else {
      names->push_back(object.name);
    }
  }
  return Status::Ok();
}

/// Returns true for an error after which nothing was written.
bool WroteNothing(const Status& status) {
  return status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kNotFound;
}

}  // namespace

ObjectStorage::ObjectStorage(const std::string& scheme, std::shared_ptr<ObjectStore> store,
                             const ObjectStoreOptions& options)
    : Storage({.conditional_writes = this}),
      scheme_(scheme),
      options_(options),
      calls_(scheme, std::move(store)) {}

Result<std::unique_ptr<WritableFile>> ObjectStorage::OpenForWrite(const std::string& name,
                                                                  const WriteOptions& options) {
  VARVE_ASSIGN_OR_RETURN(std::string object, calls_.NameOf(name));
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
  return MakePartWriter(calls_, std::move(object), options.size, options_);
}

Result<std::unique_ptr<ReadableFile>> ObjectStorage::OpenForRead(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const std::string object, calls_.NameOf(name));
  VARVE_ASSIGN_OR_RETURN(StoreEntry found, calls_.Head(object));
  found.name = object;
  return std::unique_ptr<ReadableFile>(std::make_unique<StoreReader>(calls_, std::move(found)));
}

Result<std::vector<DirectoryEntry>> ObjectStorage::List(const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const std::string name, calls_.NameOf(directory));
  const std::string prefix = name + "/";
  VARVE_ASSIGN_OR_RETURN(const auto objects, calls_.List(prefix, /*unfinished=*/false));
  if (objects.empty()) {
    return calls_.Head(name).ok() ? InvalidArgument(directory + " is an object and not a directory")
                                  : NotFound(directory + ": no object has this prefix");
  }
  std::vector<DirectoryEntry> entries;
  entries.reserve(objects.size());
  for (const StoreEntry& object : objects) {
    entries.push_back({object.name.substr(prefix.size()), object.is_folder, object.size,
                       object.modified_ns, false});
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
  return calls_.NameOf(name).status();
}

Status ObjectStorage::SyncDirectory(const std::string& name) {
  return calls_.NameOf(name).status();
}

Status ObjectStorage::Rename(const std::string& from, const std::string& to, RenameMode /*mode*/) {
  return Unimplemented("rename " + from + " to " + to + ": objects cannot be renamed");
}

Status ObjectStorage::Remove(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const std::string object, calls_.NameOf(name));
  std::vector<std::string> names = {object};
  VARVE_RETURN_IF_ERROR(ListAll(calls_, object + "/", &names));
  for (auto first = names.begin(); first != names.end();) {
    const auto count = std::min<std::ptrdiff_t>(kMostRemoved, std::distance(first, names.end()));
    VARVE_RETURN_IF_ERROR(calls_.Remove({first, first + count}));
    first += count;
  }
  VARVE_ASSIGN_OR_RETURN(const auto unfinished, ListUnfinished(name));
  for (const Unfinished& file : unfinished) {
    VARVE_RETURN_IF_ERROR(RemoveUnfinished(file));
  }
  return Status::Ok();
}

Result<std::unique_ptr<StorageLock>> ObjectStorage::Lock(const std::string& name) {
  return Unimplemented(name + ": a registered store has no locks");
}

Result<std::vector<ConditionalWrites::Unfinished>> ObjectStorage::ListUnfinished(
    const std::string& directory) {
  std::vector<Unfinished> files;
  if (!options_.uploads) {
    return files;
  }
  VARVE_ASSIGN_OR_RETURN(const std::string name, calls_.NameOf(directory));
  VARVE_ASSIGN_OR_RETURN(const auto uploads, calls_.List(name + "/", /*unfinished=*/true));
  for (const StoreEntry& upload : uploads) {
    files.push_back({calls_.PathOf(upload.name), upload.upload, upload.modified_ns});
  }
  return files;
}

Status ObjectStorage::RemoveUnfinished(const Unfinished& file) {
  VARVE_ASSIGN_OR_RETURN(const std::string name, calls_.NameOf(file.name));
  return calls_.EndUpload(name, file.id, nullptr);
}

// ---- writes that need the name to be free ----

bool ObjectStorage::Serves(const std::string& name) { return SchemeOf(name) == scheme_; }

std::int64_t ObjectStorage::NowNs(const std::string& /*directory*/) { return TimeOfDay().count(); }

Result<std::string> ObjectStorage::ReadObject(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const StoreEntry info, calls_.Head(name));
  if (info.size > kMostWhole) {
    return DataLoss(calls_.PathOf(name) + ": larger than 4 GiB");
  }
  std::string content(info.size, '\0');
  if (!content.empty()) {
    VARVE_RETURN_IF_ERROR(calls_.Read(
        name, 0, std::as_writable_bytes(std::span(content.data(), content.size())), info.version));
  }
  return content;
}

/// Stores exist that say yes and overwrite, so the object is read back. Threads that ask at once
/// each use an object of their own.
Result<bool> ObjectStorage::Obeys(const std::string& name) {
  const std::string bucket = BucketOf(name);
  const auto& known = obeys_.Get();
  if (const auto found = known.find(bucket); found != known.end()) {
    return found->second;
  }
  const int on_stack = 0;
  const std::string probe =
      name + "/" + std::string(kProbe) + std::to_string(TimeOfDay().count()) + "-" +
      std::to_string(reinterpret_cast<std::uintptr_t>(&on_stack) ^
                     static_cast<std::uintptr_t>(Now().time_since_epoch().count()));
  VARVE_RETURN_IF_ERROR(calls_.Put(probe, AsByteSpan("first"), /*if_absent=*/false));
  const Status second = calls_.Put(probe, AsByteSpan("second"), /*if_absent=*/true);
  const auto content = ReadObject(probe);
  const Status removed = calls_.Remove({probe});
  VARVE_RETURN_IF_ERROR(content.status());
  VARVE_RETURN_IF_ERROR(removed);
  const bool obeys = second.code() == StatusCode::kAlreadyExists && *content == "first";
  if (!obeys && !second.ok() && second.code() != StatusCode::kUnimplemented &&
      second.code() != StatusCode::kAlreadyExists) {
    return second;
  }
  const bool first_to_know = obeys_.Update(
      [&](std::map<std::string, bool>* all) { return all->emplace(bucket, obeys).second; });
  if (!obeys && first_to_know) {
    (void)Guarded([&] {
      ReportEvent({.level = EventLevel::kWarning,
                   .message = "the store of " + calls_.PathOf(bucket) +
                              " does not write \"if absent\": of two saves that publish one name "
                              "in the same moment, the later one wins without a message"});
      return Status::Ok();
    });
  }
  return obeys;
}

Result<bool> ObjectStorage::Prepare(const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const std::string name, calls_.NameOf(directory));
  VARVE_ASSIGN_OR_RETURN(const bool obeys, Obeys(name));
  return obeys || options_.weak_publish
             ? Result<bool>(obeys)
             : Unimplemented("the store of " + calls_.PathOf(BucketOf(name)) +
                             " does not write \"if absent\", and it was registered as one that "
                             "must");
}

Status ObjectStorage::WriteIfAbsent(const std::string& name, std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const std::string object, calls_.NameOf(name));
  VARVE_ASSIGN_OR_RETURN(const bool obeys, Prepare(ParentPath(name)));
  if (!obeys) {
    const auto there = calls_.Head(object);
    if (there.status().code() != StatusCode::kNotFound) {
      return there.ok() ? AlreadyExists(name + " exists") : there.status();
    }
    return Outcome(object, content, calls_.Put(object, AsByteSpan(content), false));
  }
  // "It exists" may be said of a write that is under way and fails: Azure's and S3's 409. Then
  // there is nothing, and another try can succeed.
  constexpr int kTries = 4;
  for (int tries = 1;; ++tries) {
    const Status written = calls_.Put(object, AsByteSpan(content), /*if_absent=*/true);
    if (written.code() == StatusCode::kAlreadyExists && tries < kTries &&
        calls_.Head(object).status().code() == StatusCode::kNotFound) {
      SleepFor(std::chrono::milliseconds(100 << tries));
      continue;
    }
    return written.ok() ? written : Outcome(object, content, written);
  }
}

Status ObjectStorage::Replace(const std::string& name, std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const std::string object, calls_.NameOf(name));
  Status written = calls_.Put(object, AsByteSpan(content), /*if_absent=*/false);
  if (written.ok() || WroteNothing(written)) {
    return written;
  }
  Status outcome = Outcome(object, content, written);
  return outcome.code() == StatusCode::kAlreadyExists  // What was there before, or another's.
             ? Unavailable(written.message() + "; whether " + name +
                           " was written, or will be, is not known")
             : outcome;
}

/// The store, or a library below it, may have tried twice, and refuse the second try because of the
/// first. So what is there is compared with what was to be written.
Status ObjectStorage::Outcome(const std::string& name, std::string_view content,
                              const Status& written) {
  if (WroteNothing(written)) {
    return written;
  }
  const auto there = ReadObject(name);
  const bool refused = written.code() == StatusCode::kFailedPrecondition ||
                       written.code() == StatusCode::kOutOfSpace;
  if (refused && there.status().code() == StatusCode::kNotFound) {
    return written;
  }
  if (there.ok()) {
    return *there == content ? Status::Ok()
                             : AlreadyExists(calls_.PathOf(name) + ": another save's");
  }
  const std::string why = written.ok() ? "the store has taken it" : written.message();
  return Unavailable(why + "; whether " + calls_.PathOf(name) +
                     " is there, or will be, is not known: " + there.status().message());
}

}  // namespace varve
