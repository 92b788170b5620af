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
constexpr const char* kTokenHeader = "x-amz-meta-varve-upload";

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

}  // namespace

Result<ObjectInfo> S3Client::Head(const ObjectName& object) {
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response, Send({.method = "HEAD", .object = object}));
  const auto size = NumberIn(response.Header("content-length"));
  if (!size) {
    return DataLoss(PathOf(object) + ": the server does not say how large it is");
  }
  return ObjectInfo{*size, std::string(response.Header("etag")),
                    std::string(response.Header(kTokenHeader))};
}

Status S3Client::Get(const ObjectName& object, std::uint64_t offset,
                     std::span<const std::span<std::byte>> parts, std::string_view etag) {
  const http::FileVersion version{std::string(etag), {}};
  RangeSink sink(offset, parts, version);
  if (sink.bytes() == 0) {
    return Status::Ok();
  }
  const std::string range = sink.Range();
  VARVE_RETURN_IF_ERROR(Send({.method = "GET",
                              .object = object,
                              .headers = {{"range", range}},
                              .sink = &sink,
                              .sink_bytes = sink.bytes()})
                            .status());
  return sink.complete()
             ? Status::Ok()
             : DataLoss(PathOf(object) + ": the server's answer to \"" + range + "\" ends early");
}

Status S3Client::Put(const ObjectName& object, std::span<const std::byte> content, PutMode mode,
                     bool* tried_before) {
  Call call{
      .method = "PUT", .object = object, .headers = ObjectHeaders(settings_), .body = content};
  call.tried_before = tried_before;
  if (mode == PutMode::kIfAbsent) {
    call.headers.emplace_back("if-none-match", "*");
  }
  if (settings_.crc32c) {
    call.headers.emplace_back("x-amz-checksum-crc32c", Crc32cHeader(content));
  }
  return Send(call).status();
}

Result<ListPage> S3Client::List(const std::string& bucket, const std::string& prefix,
                                std::string_view delimiter, const std::string& token) {
  NameValues query{{"list-type", "2"}, {"prefix", prefix}, {"encoding-type", "url"}};
  if (!delimiter.empty()) {
    query.emplace_back("delimiter", delimiter);
  }
  if (!token.empty()) {
    query.emplace_back("continuation-token", token);
  }
  VARVE_ASSIGN_OR_RETURN(
      const HttpResponse response,
      Send({.method = "GET", .object = {bucket, {}, settings_.scheme}, .query = std::move(query)}));
  return ParseListPage(response.body)
      .Annotate("list " + PathOf({bucket, prefix, settings_.scheme}));
}

Status S3Client::Delete(const std::string& bucket, const std::vector<std::string>& keys) {
  for (std::size_t begin = 0; begin < keys.size(); begin += kMostDeleted) {
    const std::size_t end = std::min(keys.size(), begin + kMostDeleted);
    const std::string body = DeleteBody({keys.begin() + static_cast<std::ptrdiff_t>(begin),
                                         keys.begin() + static_cast<std::ptrdiff_t>(end)});
    VARVE_ASSIGN_OR_RETURN(const HttpResponse response,
                           Send({.method = "POST",
                                 .object = {bucket, {}, settings_.scheme},
                                 .query = {{"delete", ""}},
                                 .headers = {{"content-md5", Md5Header(AsByteSpan(body))}},
                                 .body = AsByteSpan(body)}));
    VARVE_ASSIGN_OR_RETURN(const auto failed, ParseDeleteResult(response.body));
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

Result<std::string> S3Client::BeginUpload(const ObjectName& object, std::string_view token) {
  Call call{.method = "POST",
            .object = object,
            .query = {{"uploads", ""}},
            .headers = ObjectHeaders(settings_)};
  call.headers.emplace_back(kTokenHeader, token);
  if (settings_.crc32c) {
    call.headers.emplace_back("x-amz-checksum-algorithm", "CRC32C");
  }
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response, Send(call));
  return ParseUploadId(response.body).Annotate(call.Name());
}

Result<UploadedPart> S3Client::UploadPart(const ObjectName& object, const std::string& upload,
                                          int number, std::span<const std::byte> content) {
  Call call{.method = "PUT",
            .object = object,
            .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}},
            .body = content};
  UploadedPart part;
  if (settings_.crc32c) {
    part.crc32c = Crc32cHeader(content);
    call.headers.emplace_back("x-amz-checksum-crc32c", part.crc32c);
  }
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response, Send(call));
  part.etag = response.Header("etag");
  if (part.etag.empty()) {
    return DataLoss(call.Name() + ": the server's answer has no ETag");
  }
  return part;
}

Status S3Client::CompleteUpload(const ObjectName& object, const std::string& upload,
                                const std::vector<UploadedPart>& parts) {
  const std::string body = CompleteBody(parts);
  const Call call{.method = "POST",
                  .object = object,
                  .query = {{"uploadId", upload}},
                  .body = AsByteSpan(body)};
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response, Send(call));
  return ParseCompleted(response.body).Annotate(call.Name());
}

Status S3Client::AbortUpload(const ObjectName& object, const std::string& upload) {
  constexpr std::chrono::seconds kShort{5};  // Who gives an upload up does not wait for it.
  const Status aborted = Send({.method = "DELETE",
                               .object = object,
                               .query = {{"uploadId", upload}},
                               .patience = kShort,
                               .stall = kShort})
                             .status();
  return aborted.code() == StatusCode::kNotFound ? Status::Ok() : aborted;
}

Result<UploadsPage> S3Client::ListUploads(const std::string& bucket, const std::string& prefix,
                                          const UploadsPage& before) {
  NameValues query{{"uploads", ""}, {"prefix", prefix}, {"encoding-type", "url"}};
  if (before.more) {
    query.emplace_back("key-marker", before.next_key);
    query.emplace_back("upload-id-marker", before.next_id);
  }
  VARVE_ASSIGN_OR_RETURN(
      const HttpResponse response,
      Send({.method = "GET", .object = {bucket, {}, settings_.scheme}, .query = std::move(query)}));
  return ParseUploadsPage(response.body);
}

}  // namespace varve::s3
