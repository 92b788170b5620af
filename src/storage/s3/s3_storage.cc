#include "storage/s3/s3_storage.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/events.h"
#include "base/guarded.h"
#include "base/patience.h"
#include "base/time_source.h"
#include "storage/s3/keys/credentials.h"
#include "storage/s3/keys/described.h"
#include "storage/s3/object_writer.h"
#include "storage/server_file.h"

namespace varve::s3 {
namespace {

/// Most bytes of one PUT; AWS takes 5 GiB.
constexpr std::uint64_t kMostWhole = std::uint64_t{4} << 30;

Result<ObjectName> ParseFileName(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(ObjectName object, ParseObjectName(name));
  if (object.key.empty()) {
    return InvalidArgument(name + " is a bucket, not an object");
  }
  return object;
}

class ObjectReader final : public ServerFile {
 public:
  ObjectReader(S3Client& client, ObjectName object, ObjectInfo info)
      : client_(client), object_(std::move(object)), info_(std::move(info)) {}

  [[nodiscard]] std::uint64_t size() const override { return info_.size; }
  [[nodiscard]] std::string version() const override {
    return info_.etag.starts_with("W/") ? std::string() : info_.etag;
  }

  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    VARVE_RETURN_IF_ERROR(CheckRange(PathOf(object_), offset, parts));
    return client_.Get(object_, offset, parts, info_.etag);
  }

 private:
  S3Client& client_;
  const ObjectName object_;
  const ObjectInfo info_;
};

/// Returns the last component of a key below `prefix`.
std::string NameBelow(std::string_view key, std::size_t prefix) {
  key.remove_prefix(prefix);
  if (key.ends_with('/')) {
    key.remove_suffix(1);
  }
  return std::string(key);
}

/// Appends the entries of a page. Objects whose keys end with '/' stand for directories.
void AppendEntries(const ListPage& page, const std::string& prefix,
                   std::vector<DirectoryEntry>* entries) {
  for (const ListedObject& object : page.objects) {
    if (object.key.size() > prefix.size() && object.key.starts_with(prefix)) {
      const bool directory = object.key.ends_with('/');
      entries->push_back({NameBelow(object.key, prefix.size()), directory, object.size,
                          object.modified_ns, false});
    }
  }
  for (const std::string& directory : page.prefixes) {
    if (directory.size() > prefix.size() + 1 && directory.starts_with(prefix)) {
      entries->push_back({NameBelow(directory, prefix.size()), true, 0, 0, false});
    }
  }
}

}  // namespace

S3Storage::S3Storage(Settings settings, CredentialsFunction credentials,
                     std::shared_ptr<Traffic> traffic, SendFunction send)
    : Storage({.conditional_writes = this, .shared_access = this}),
      scheme_(settings.scheme),
      client_(std::move(settings), std::move(credentials), std::move(traffic), std::move(send)) {}

Result<std::unique_ptr<WritableFile>> S3Storage::OpenForWrite(const std::string& name,
                                                              const WriteOptions& options) {
  VARVE_ASSIGN_OR_RETURN(ObjectName object, ParseFileName(name));
  if (options.shared) {
    return Unimplemented(name + ": an object cannot be written by several processes");
  }
  if (options.exclusive) {
    const auto there = client_.Head(object);
    if (there.ok()) {
      return AlreadyExists(name + " exists");
    }
    if (there.status().code() != StatusCode::kNotFound) {
      return there.status();
    }
  }
  return std::unique_ptr<WritableFile>(std::make_unique<ObjectWriter>(
      client_, std::move(object), PartBytes(options.size, client_.settings().part_bytes)));
}

Result<std::unique_ptr<ReadableFile>> S3Storage::OpenForRead(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(ObjectName object, ParseFileName(name));
  VARVE_ASSIGN_OR_RETURN(ObjectInfo info, client_.Head(object));
  return std::unique_ptr<ReadableFile>(
      std::make_unique<ObjectReader>(client_, std::move(object), std::move(info)));
}

Result<std::vector<DirectoryEntry>> S3Storage::List(const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const ObjectName object, ParseObjectName(directory));
  const std::string prefix = object.key.empty() ? "" : object.key + "/";
  std::vector<DirectoryEntry> entries;
  bool there = prefix.empty();
  std::string token;
  do {
    VARVE_ASSIGN_OR_RETURN(const ListPage page, client_.List(object.bucket, prefix, "/", token));
    there = there || !page.objects.empty() || !page.prefixes.empty();
    AppendEntries(page, prefix, &entries);
    if (!page.next.empty() && page.next == token) {
      return DataLoss(directory + ": the server's listing does not end");
    }
    token = page.next;
  } while (!token.empty());
  if (!there) {
    return client_.Head(object).ok()
               ? InvalidArgument(directory + " is an object and not a directory")
               : NotFound(directory + ": no object has this prefix");
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

Status S3Storage::MakeDirectory(const std::string& name) { return ParseObjectName(name).status(); }

Status S3Storage::SyncDirectory(const std::string& name) { return ParseObjectName(name).status(); }

Status S3Storage::Rename(const std::string& from, const std::string& to, RenameMode /*mode*/) {
  return Unimplemented("rename " + from + " to " + to + ": objects cannot be renamed");
}

namespace {

/// Of what a server lists, only what was asked for may be removed.
Status CheckIsBelow(const std::string& name, const std::string& prefix, const std::string& key) {
  return key.starts_with(prefix)
             ? Status::Ok()
             : DataLoss(name + ": the server was asked for what is below it and lists \"" +
                        Printable(key) + "\"; nothing of that list was removed");
}

}  // namespace

Status S3Storage::Remove(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const ObjectName object, ParseFileName(name));
  const std::string prefix = object.key + "/";
  std::string first;
  while (true) {  // Each time from the beginning: what was listed is gone.
    VARVE_ASSIGN_OR_RETURN(const ListPage page, client_.List(object.bucket, prefix, "", ""));
    if (page.objects.empty()) {
      break;
    }
    if (std::exchange(first, page.objects.front().key) == page.objects.front().key) {
      return Unavailable(PathOf({object.bucket, first, scheme_}) +
                         " is still listed after the server has deleted it");
    }
    std::vector<std::string> keys;
    keys.reserve(page.objects.size());
    for (const ListedObject& listed : page.objects) {
      VARVE_RETURN_IF_ERROR(CheckIsBelow(name, prefix, listed.key));
      keys.push_back(listed.key);
    }
    VARVE_RETURN_IF_ERROR(client_.Delete(object.bucket, keys));
  }
  // Last: on a server whose objects are files it is a directory, which must be empty.
  VARVE_RETURN_IF_ERROR(client_.Delete(object.bucket, {object.key}));
  const auto unfinished = ListUnfinished(name);
  if (unfinished.status().code() == StatusCode::kFailedPrecondition ||
      unfinished.status().code() == StatusCode::kUnimplemented) {
    return Status::Ok();  // Keys that may not list them, or a server that cannot.
  }
  VARVE_RETURN_IF_ERROR(unfinished.status());
  for (const Unfinished& file : *unfinished) {
    VARVE_RETURN_IF_ERROR(RemoveUnfinished(file));
  }
  return Status::Ok();
}

Result<std::vector<ConditionalWrites::Unfinished>> S3Storage::ListUnfinished(
    const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const ObjectName object, ParseObjectName(directory));
  const std::string prefix = object.key.empty() ? "" : object.key + "/";
  std::vector<Unfinished> files;
  UploadsPage page;
  do {
    auto next = client_.ListUploads(object.bucket, prefix, page);
    if (next.status().code() == StatusCode::kNotFound) {
      break;  // No bucket. rclone's server says so of a bucket without uploads.
    }
    VARVE_RETURN_IF_ERROR(next.status());
    if (next->more && next->next_key == page.next_key && next->next_id == page.next_id) {
      return DataLoss(directory + ": the server's listing of uploads does not end");
    }
    page = *std::move(next);
    for (const OpenUpload& upload : page.uploads) {
      if (!upload.key.starts_with(prefix)) {
        continue;  // A server that does not look at the prefix.
      }
      files.push_back({PathOf({object.bucket, upload.key, scheme_}), upload.id, upload.begun_ns});
    }
  } while (page.more);
  return files;
}

Status S3Storage::RemoveUnfinished(const Unfinished& file) {
  VARVE_ASSIGN_OR_RETURN(const ObjectName object, ParseFileName(file.name));
  return client_.AbortUpload(object, file.id);
}

Result<std::unique_ptr<StorageLock>> S3Storage::Lock(const std::string& name) {
  return Unimplemented(name + ": an object store has no locks");
}

// ---- writes that need the name to be free ----

bool S3Storage::Serves(const std::string& name) { return SchemeOfObject(name) == scheme_; }

Result<bool> S3Storage::Holds(const ObjectName& object, std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const ObjectInfo info, client_.Head(object));
  if (info.size != content.size()) {
    return false;
  }
  std::string there(info.size, '\0');
  const auto bytes = std::as_writable_bytes(std::span(there.data(), there.size()));
  VARVE_RETURN_IF_ERROR(client_.Get(object, 0, std::span(&bytes, 1), info.etag));
  return there == content;
}

Result<ObjectName> ParseWhole(const std::string& name, std::string_view content) {
  return content.size() <= kMostWhole
             ? ParseFileName(name)
             : InvalidArgument(name + ": " + std::to_string(content.size()) +
                               " bytes, at most 4 GiB can be written in one request");
}

/// Servers exist that answer 200 and overwrite, so the object is read back.
Result<bool> S3Storage::Obeys(const std::string& bucket, const std::string& below) {
  const std::scoped_lock lock(mutex_);
  const auto known = obeys_.find(bucket);
  if (known != obeys_.end()) {
    return known->second;
  }
  const ObjectName probe{
      bucket,
      below + std::string(kProbe) + std::to_string(TimeOfDay().count()) + "-" +
          std::to_string(reinterpret_cast<std::uintptr_t>(this) ^
                         static_cast<std::uintptr_t>(Now().time_since_epoch().count())),
      scheme_};
  VARVE_RETURN_IF_ERROR(client_.Put(probe, AsByteSpan("first"), PutMode::kReplace));
  const Status second = client_.Put(probe, AsByteSpan("second"), PutMode::kIfAbsent);
  const PatienceAfter patience(second);
  const auto is_first = Holds(probe, "first");
  const Status removed = client_.Delete(bucket, {probe.key});
  VARVE_RETURN_IF_ERROR(is_first.status());
  VARVE_RETURN_IF_ERROR(removed);
  const bool obeys = second.code() == StatusCode::kAlreadyExists && *is_first;
  if (!obeys && !second.ok() && second.code() != StatusCode::kUnimplemented) {
    return second;
  }
  obeys_[bucket] = obeys;
  if (!obeys) {
    (void)Guarded([&] {
      ReportEvent({.level = EventLevel::kWarning,
                   .message = "the server of " + PathOf({bucket, {}, scheme_}) +
                              " does not obey If-None-Match: of two saves that publish one name in "
                              "the same moment, the later one wins without a message"});
      return Status::Ok();
    });
  }
  return obeys;
}

Result<bool> S3Storage::Prepare(const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const ObjectName object, ParseObjectName(directory));
  VARVE_ASSIGN_OR_RETURN(const bool obeys,
                         Obeys(object.bucket, object.key.empty() ? "" : object.key + "/"));
  return obeys || client_.settings().weak_publish
             ? Result<bool>(obeys)
             : Unimplemented("the server of s3://" + object.bucket +
                             " does not obey If-None-Match, and VARVE_S3_PUBLISH=strict wants it");
}

std::int64_t S3Storage::NowNs(const std::string& /*directory*/) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  return client_.ServerSeconds() * kSecond;
}

Status S3Storage::Replace(const std::string& name, std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const ObjectName object, ParseWhole(name, content));
  bool tried_before = false;
  Status written = client_.Put(object, AsByteSpan(content), PutMode::kReplace, &tried_before);
  if (written.ok() || (!tried_before && written.code() != StatusCode::kDataLoss)) {
    return written;  // Or refused at the first try. An answer that makes no sense says nothing.
  }
  const PatienceAfter patience(written);
  if (const auto there = Holds(object, content); there.ok() && *there) {
    return Status::Ok();
  }
  const bool stopped = written.code() == StatusCode::kCancelled;
  return Status(stopped ? StatusCode::kCancelled : StatusCode::kUnavailable,
                written.message() + "; whether " + name + " was written, or will be, is not known")
      .With(written.details());
}

Status S3Storage::WriteIfAbsent(const std::string& name, std::string_view content) {
  VARVE_ASSIGN_OR_RETURN(const ObjectName object, ParseWhole(name, content));
  VARVE_ASSIGN_OR_RETURN(const bool obeys, Prepare(ParentPath(name)));
  if (!obeys) {
    const auto there = client_.Head(object);
    if (there.status().code() != StatusCode::kNotFound) {
      return there.ok() ? AlreadyExists(name + " exists") : there.status();
    }
  }
  bool tried_before = false;
  Status written = client_.Put(object, AsByteSpan(content),
                               obeys ? PutMode::kIfAbsent : PutMode::kReplace, &tried_before);
  if (written.ok() && obeys) {
    return written;
  }
  if (!written.ok() && written.code() != StatusCode::kAlreadyExists &&
      written.code() != StatusCode::kDataLoss && !tried_before) {
    return written;  // Refused at the first try. An answer that makes no sense says nothing.
  }
  // A refusal may answer a second try of which the first was carried out; libcurl itself tries
  // again on a connection that was used before. Where nothing is obeyed, somebody may have
  // overwritten it.
  const PatienceAfter patience(written);
  const auto there = Holds(object, content);
  if (there.ok()) {
    return *there ? Status::Ok() : AlreadyExists(name + ": another save's");
  }
  if (written.ok()) {
    return written;
  }
  return Unavailable(written.message() + "; whether " + name +
                     " is there, or will be, is not known: " + there.status().message());
}

// ---- the same storage in another process ----

Result<std::string> S3Storage::Describe(const std::string& /*name*/) {
  VARVE_ASSIGN_OR_RETURN(auto keys, KeysOfProgram(scheme_));
  return EncodeAccess({ProcessEnvironment, std::move(keys)});
}

Result<std::shared_ptr<Storage>> S3Storage::Open(const std::string& name,
                                                 const std::string& access) {
  return StorageOfAccess(SchemeOfObject(name), access);
}

}  // namespace varve::s3
