#include <algorithm>
#include <array>
#include <utility>

#include <openssl/evp.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "storage/s3/call.h"
#include "storage/s3/client.h"

namespace varve::s3 {
namespace {

constexpr std::size_t kMostDeleted = 1000;  // In one request.
constexpr const char* kMarkHeader = "x-amz-meta-varve-upload";
/// Most bytes of one PUT; AWS takes 5 GiB.
constexpr std::uint64_t kMostWhole = std::uint64_t{4} << 30;

/// Returns the value of x-amz-checksum-crc32c.
std::string Crc32cHeader(std::span<const std::byte> content) {
  const std::uint32_t crc = Crc32c(content);
  const std::array<unsigned char, 4> bytes = {
      static_cast<unsigned char>(crc >> 24), static_cast<unsigned char>(crc >> 16),
      static_cast<unsigned char>(crc >> 8), static_cast<unsigned char>(crc)};
  return http::Base64(std::as_bytes(std::span(bytes)));
}

/// Returns the value of Content-MD5, which DeleteObjects wants.
std::string Md5Header(std::span<const std::byte> content) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  ::EVP_Digest(content.data(), content.size(), digest.data(), &size, EVP_md5(), nullptr);
  return http::Base64(std::as_bytes(std::span(digest).first(size)));
}

/// Returns the headers that every new object gets.
NameValues ObjectHeaders(const Settings& settings) {
  NameValues headers;
  if (!settings.encryption.empty()) {
    headers.emplace_back("x-amz-server-side-encryption", settings.encryption);
  }
  if (!settings.encryption_key.empty()) {
    headers.emplace_back("x-amz-server-side-encryption-aws-kms-key-id", settings.encryption_key);
  }
  if (!settings.tags.empty()) {
    headers.emplace_back("x-amz-tagging", settings.tags);
  }
  return headers;
}

/// Returns what parses a body into `target`.
template <class T>
auto Into(T* target, Result<T> (*parse)(std::string_view)) {
  return [=](std::string_view body) -> Status {
    VARVE_ASSIGN_OR_RETURN(*target, parse(body));
    return Status::Ok();
  };
}

/// Keys that end with '/' stand for folders.
std::string WithoutSlash(std::string_view key) {
  return std::string(key.ends_with('/') ? key.substr(0, key.size() - 1) : key);
}

}  // namespace

ObjectName S3Client::ObjectOf(const std::string& name) const {
  const std::size_t slash = std::min(name.find('/'), name.size());
  return {name.substr(0, slash), name.substr(std::min(slash + 1, name.size())), settings_.scheme};
}

Status S3Client::CheckName(const std::string& name, bool is_object) {
  const std::string path = PathOf(ObjectOf(name));
  VARVE_ASSIGN_OR_RETURN(const ObjectName object, ParseObjectName(path));
  return is_object && object.key.empty() ? InvalidArgument(path + " is a bucket, not an object")
                                         : Status::Ok();
}

Result<StoreEntry> S3Client::Head(const std::string& name) {
  const ObjectName object = ObjectOf(name);
  if (object.key.empty()) {
    return StoreEntry{.name = name, .is_folder = true};
  }
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response, Send({.method = "HEAD", .object = object}));
  const auto size = NumberIn(response.Header("content-length"));
  if (!size) {
    return Unavailable(PathOf(object) + ": the server does not say how large it is");
  }
  return StoreEntry{.name = name,
                    .size = *size,
                    .version = std::string(response.Header("etag")),
                    .mark = std::string(response.Header(kMarkHeader))};
}

Status S3Client::Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
                      const std::string& version) {
  return ReadParts(name, offset, std::span(&into, 1), version);
}

Status S3Client::ReadParts(const std::string& name, std::uint64_t offset,
                           std::span<const std::span<std::byte>> parts,
                           const std::string& version) {
  const http::FileVersion wanted{version, {}};
  RangeSink sink(offset, parts, wanted);
  if (sink.bytes() == 0) {
    return Status::Ok();
  }
  const ObjectName object = ObjectOf(name);
  const std::string range = sink.Range();
  const Status got = Send({.method = "GET",
                           .object = object,
                           .headers = {{"range", range}},
                           .sink = &sink,
                           .sink_bytes = sink.bytes()})
                         .status();
  if (sink.range_ignored()) {
    return Unavailable(got.message());  // No answer of S3's, and no damage.
  }
  VARVE_RETURN_IF_ERROR(got);
  return sink.complete()
             ? Status::Ok()
             : DataLoss(PathOf(object) + ": the server's answer to \"" + range + "\" ends early");
}

/// Gives `take` each page of the objects whose names begin with `prefix`; with `delimiter` '/'
/// those below another '/' as prefixes.
Status S3Client::ListPages(const std::string& prefix, std::string_view delimiter,
                           const std::function<void(const ListPage&)>& take) {
  const ObjectName object = ObjectOf(prefix);
  std::string token;
  do {
    NameValues query{{"list-type", "2"}, {"prefix", object.key}, {"encoding-type", "url"}};
    if (!delimiter.empty()) {
      query.emplace_back("delimiter", delimiter);
    }
    if (!token.empty()) {
      query.emplace_back("continuation-token", token);
    }
    ListPage page;
    VARVE_RETURN_IF_ERROR(Send({.method = "GET",
                                .object = {object.bucket, {}, object.scheme},
                                .query = std::move(query),
                                .read = Into(&page, ParseListPage)})
                              .status());
    take(page);
    if (!page.next.empty() && page.next == token) {
      return Unavailable("list " + PathOf(object) + ": the server's listing does not end");
    }
    token = page.next;
  } while (!token.empty());
  return Status::Ok();
}

Result<std::vector<StoreEntry>> S3Client::List(const std::string& prefix, bool unfinished) {
  if (unfinished) {
    return ListUploads(prefix);
  }
  const std::string bucket = ObjectOf(prefix).bucket + "/";
  std::vector<StoreEntry> entries;
  const auto add = [&](StoreEntry entry) {
    if (!entry.name.ends_with('/')) {  // Other programs make folders without a name.
      entries.push_back(std::move(entry));
    }
  };
  VARVE_RETURN_IF_ERROR(ListPages(prefix, "/", [&](const ListPage& page) {
    for (const ListedObject& object : page.objects) {
      add({.name = bucket + WithoutSlash(object.key),
           .size = object.size,
           .modified_ns = object.modified_ns,
           .version = object.etag,
           .is_folder = object.key.ends_with('/')});
    }
    for (const std::string& folder : page.prefixes) {
      add({.name = bucket + WithoutSlash(folder), .is_folder = true});
    }
  }));
  return entries;
}

Result<std::vector<std::string>> S3Client::ListAll(const std::string& prefix) {
  const std::string bucket = ObjectOf(prefix).bucket + "/";
  std::vector<std::string> names;
  VARVE_RETURN_IF_ERROR(ListPages(prefix, "", [&](const ListPage& page) {
    for (const ListedObject& object : page.objects) {
      names.push_back(bucket + object.key);
    }
  }));
  return names;
}

Result<std::vector<StoreEntry>> S3Client::ListUploads(const std::string& prefix) {
  const ObjectName object = ObjectOf(prefix);
  std::vector<StoreEntry> entries;
  UploadsPage page;
  do {
    NameValues query{{"uploads", ""}, {"prefix", object.key}, {"encoding-type", "url"}};
    if (page.more) {
      query.emplace_back("key-marker", page.next_key);
      query.emplace_back("upload-id-marker", page.next_id);
    }
    UploadsPage next;
    const Status listed = Send({.method = "GET",
                                .object = {object.bucket, {}, object.scheme},
                                .query = std::move(query),
                                .read = Into(&next, ParseUploadsPage)})
                              .status();
    if (listed.code() == StatusCode::kNotFound) {
      break;  // No bucket. rclone's server says so of a bucket without uploads.
    }
    VARVE_RETURN_IF_ERROR(listed);
    if (next.more && next.next_key == page.next_key && next.next_id == page.next_id) {
      return Unavailable("list uploads below " + PathOf(object) +
                         ": the server's listing of uploads does not end");
    }
    page = std::move(next);
    for (const OpenUpload& upload : page.uploads) {
      if (upload.key.starts_with(object.key)) {  // Servers exist that do not look at the prefix.
        entries.push_back({.name = object.bucket + "/" + upload.key,
                           .modified_ns = upload.begun_ns,
                           .upload = upload.id});
      }
    }
  } while (page.more);
  return entries;
}

Status S3Client::Put(const std::string& name, std::span<const std::byte> data, bool if_absent) {
  bool tried_before = false;
  Call call{.method = "PUT",
            .object = ObjectOf(name),
            .headers = ObjectHeaders(settings_),
            .body = data,
            .tried_before = &tried_before};
  if (data.size() > kMostWhole) {
    return InvalidArgument(PathOf(call.object) + ": " + std::to_string(data.size()) +
                           " bytes, at most 4 GiB can be written in one request");
  }
  if (if_absent) {
    call.headers.emplace_back("if-none-match", "*");
  }
  if (settings_.crc32c) {
    call.headers.emplace_back("x-amz-checksum-crc32c", Crc32cHeader(data));
  }
  Status put = Send(call).status();
  const bool is_known = put.ok() || !tried_before || put.code() == StatusCode::kAlreadyExists ||
                        put.code() == StatusCode::kCancelled;
  return is_known ? put : Unavailable(put.message()).With(put.details());
}

Status S3Client::Remove(const std::vector<std::string>& names) {
  for (std::size_t at = 0; at < names.size();) {
    const std::string bucket = ObjectOf(names[at]).bucket;
    std::vector<std::string> keys;
    for (; at < names.size() && keys.size() < kMostDeleted; ++at) {
      ObjectName object = ObjectOf(names[at]);
      if (object.bucket != bucket) {
        break;
      }
      keys.push_back(std::move(object.key));
    }
    const std::string body = DeleteBody(keys);
    std::vector<UndeletedObject> failed;
    VARVE_RETURN_IF_ERROR(Send({.method = "POST",
                                .object = {bucket, {}, settings_.scheme},
                                .query = {{"delete", ""}},
                                .headers = {{"content-md5", Md5Header(AsByteSpan(body))}},
                                .body = AsByteSpan(body),
                                .read = Into(&failed, ParseDeleteResult)})
                              .status());
    if (!failed.empty()) {
      const UndeletedObject& first = failed.front();
      return FailedPrecondition(
          "delete " + PathOf({bucket, Printable(first.key), settings_.scheme}) + ": " +
          Printable(first.code) + ": " + Printable(first.message) +
          (failed.size() == 1 ? ""
                              : "; and " + std::to_string(failed.size() - 1) + " more objects"));
    }
  }
  return Status::Ok();
}

Result<std::string> S3Client::StartUpload(const std::string& name, std::uint64_t part_bytes) {
  return StartMarkedUpload(name, part_bytes, {});
}

Result<std::string> S3Client::StartMarkedUpload(const std::string& name,
                                                std::uint64_t /*part_bytes*/,
                                                const std::string& mark) {
  Call call{.method = "POST",
            .object = ObjectOf(name),
            .query = {{"uploads", ""}},
            .headers = ObjectHeaders(settings_)};
  if (!mark.empty()) {
    call.headers.emplace_back(kMarkHeader, mark);
  }
  if (settings_.crc32c) {
    call.headers.emplace_back("x-amz-checksum-algorithm", "CRC32C");
  }
  std::string id;
  call.read = Into(&id, ParseUploadId);
  VARVE_RETURN_IF_ERROR(Send(call).status());
  return id;
}

Result<std::string> S3Client::UploadPart(const std::string& name, const std::string& upload,
                                         int number, std::span<const std::byte> data) {
  Call call{.method = "PUT",
            .object = ObjectOf(name),
            .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}},
            .body = data};
  const std::string crc32c = settings_.crc32c ? Crc32cHeader(data) : std::string();
  if (settings_.crc32c) {
    call.headers.emplace_back("x-amz-checksum-crc32c", crc32c);
  }
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response, Send(call));
  return UploadedPart(response.Header("etag"), crc32c);
}

Status S3Client::EndUpload(const std::string& name, const std::string& upload,
                           const std::vector<std::string>* parts) {
  Call call{.method = "DELETE", .object = ObjectOf(name), .query = {{"uploadId", upload}}};
  if (parts == nullptr) {
    constexpr std::chrono::seconds kShort{5};  // Who gives an upload up does not wait for it.
    call.time_limit = kShort;
    call.stall = kShort;
    const Status aborted = Send(call).status();
    return aborted.code() == StatusCode::kNotFound ? Status::Ok() : aborted;
  }
  const std::string body = CompleteBody(*parts);
  call.method = "POST";
  call.body = AsByteSpan(body);
  call.read = ParseCompleted;
  return Send(call).status();
}

}  // namespace varve::s3
