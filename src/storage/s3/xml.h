/// The few XML documents that S3 servers answer with. Untrusted: sizes are bounded by the HTTP
/// layer, entities of a document's own are not known, and what is missing or of another type is
/// Unavailable. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve::s3 {

struct ErrorBody {
  std::string code;  ///< Empty where the body is no error.
  std::string message;
  std::string region;  ///< Of "AuthorizationHeaderMalformed" and "PermanentRedirect".
};

/// Returns the error that a body holds; one without code for any other text.
ErrorBody ParseError(std::string_view body);

struct ListedObject {
  std::string key;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;  ///< Unix time.
  std::string etag;
};

/// A page of ListObjectsV2.
struct ListPage {
  std::vector<ListedObject> objects;
  std::vector<std::string> prefixes;  ///< Each ends with the delimiter.
  std::string next;                   ///< The token of the next page; empty: this is the last.
};

struct TemporaryKeys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;
  std::int64_t expires_ns = 0;  ///< Unix time.
};

/// Returns the keys in an answer of STS to AssumeRole or AssumeRoleWithWebIdentity. Errors:
/// Unavailable.
Result<TemporaryKeys> ParseAssumedRole(std::string_view body);

/// Returns the Unix time of "2026-11-24T01:02:03.456Z" in ns; 0 for what is no such time.
std::int64_t ParseTime(const std::string& text);

/// Keys were asked for in the encoding "url". Errors: Unavailable.
Result<ListPage> ParseListPage(std::string_view body);

/// Returns the upload id of InitiateMultipartUploadResult. Errors: Unavailable.
Result<std::string> ParseUploadId(std::string_view body);

/// Checks that a body is CompleteMultipartUploadResult. Errors: Unavailable.
Status ParseCompleted(std::string_view body);

struct OpenUpload {
  std::string key;
  std::string id;
  std::int64_t begun_ns = 0;  ///< Unix time.
};

/// A page of ListMultipartUploads.
struct UploadsPage {
  std::vector<OpenUpload> uploads;
  bool more = false;
  std::string next_key;  ///< Where `more`.
  std::string next_id;
};

Result<UploadsPage> ParseUploadsPage(std::string_view body);

struct UndeletedObject {
  std::string key;
  std::string code;
  std::string message;
};

/// Returns what DeleteObjects could not delete. Errors: Unavailable.
Result<std::vector<UndeletedObject>> ParseDeleteResult(std::string_view body);

/// Returns the body of DeleteObjects.
std::string DeleteBody(const std::vector<std::string>& keys);

/// Returns what CompleteBody has of a part that was uploaded. `crc32c` as x-amz-checksum-crc32c had
/// it; empty: the part was sent without.
std::string UploadedPart(std::string_view etag, std::string_view crc32c);

/// Returns the body of CompleteMultipartUpload; `parts`, of UploadedPart, begin with part 1.
std::string CompleteBody(const std::vector<std::string>& parts);

}  // namespace varve::s3
