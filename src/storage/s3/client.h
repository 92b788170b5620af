/// The requests of S3 that Varve makes, signed, retried, and with answers checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/s3/keys/profile.h"
#include "storage/s3/object_name.h"
#include "storage/s3/shared.h"
#include "storage/s3/traffic/traffic.h"
#include "storage/s3/xml.h"
#include "varve/status.h"

namespace varve::s3 {

struct ObjectInfo {
  std::uint64_t size = 0;
  std::string etag;
  std::string token;  ///< That its upload was begun with; empty: none.
};

/// Returns the keys to sign with. Called before every request; keeps what it found for as long as
/// it is good. Empty keys: requests are not signed.
using CredentialsFunction = std::function<Result<Credentials>()>;

/// Sends a request and returns the answer, as HttpClient::Perform does. A simulation has its own.
using SendFunction = std::function<Result<HttpResponse>(const HttpRequest&)>;

enum class PutMode : std::uint8_t {
  kReplace,
  kIfAbsent,  ///< "If-None-Match: *": AlreadyExists where the server has the object.
};

/// Threads: safe to call concurrently. A request blocks its thread for as long as it is tried:
/// Settings::retry from its first failure on, and Settings::stall for one that stands still.
/// Errors of all requests: NotFound for an object or bucket that is not there; FailedPrecondition
/// where access is refused; Unavailable after the last retry. Messages name the request, the
/// object, the status and the server's reason, and never a key or a signature.
class S3Client {
 public:
  /// `traffic` is shared with other clients of the process; without it the client keeps the limits
  /// of its settings by itself. `send` is used instead of a connection where it is given.
  S3Client(Settings settings, CredentialsFunction credentials,
           std::shared_ptr<Traffic> traffic = nullptr, SendFunction send = {});

  Result<ObjectInfo> Head(const ObjectName& object);

  /// Fills `parts`, in order, with the object's bytes from `offset` on. Errors: DataLoss where the
  /// object ends early; Unavailable where its ETag is not `etag`: it was replaced meanwhile.
  Status Get(const ObjectName& object, std::uint64_t offset,
             std::span<const std::span<std::byte>> parts, std::string_view etag);

  /// Writes a whole object. With kIfAbsent an AlreadyExists may be the answer to a second try of
  /// which the first was carried out: the caller reads the object to see whose it is.
  /// `tried_before` is set where an earlier try may have been carried out, whatever is returned.
  Status Put(const ObjectName& object, std::span<const std::byte> content, PutMode mode,
             bool* tried_before = nullptr);

  /// Returns one page of the objects whose keys begin with `prefix`; with `delimiter` '/' those
  /// below another '/' as prefixes. `token` is that of the page before, or empty.
  Result<ListPage> List(const std::string& bucket, const std::string& prefix,
                        std::string_view delimiter, const std::string& token);

  /// Deletes objects, 1000 a request. Those that are not there are a success.
  Status Delete(const std::string& bucket, const std::vector<std::string>& keys);

  // One upload in parts, which becomes visible with its completion.
  /// Returns its id. The object will carry `token`, which Head returns.
  Result<std::string> BeginUpload(const ObjectName& object, std::string_view token);
  /// Uploads a part, numbered from 1 on.
  Result<UploadedPart> UploadPart(const ObjectName& object, const std::string& upload, int number,
                                  std::span<const std::byte> content);
  /// Errors: NotFound also where a first try was carried out and its answer lost, DataLoss for an
  /// answer that is none: the caller looks whether the object is there.
  Status CompleteUpload(const ObjectName& object, const std::string& upload,
                        const std::vector<UploadedPart>& parts);
  /// Success where there is no such upload.
  Status AbortUpload(const ObjectName& object, const std::string& upload);
  Result<UploadsPage> ListUploads(const std::string& bucket, const std::string& prefix,
                                  const UploadsPage& before);

  [[nodiscard]] const Settings& settings() const { return settings_; }
  /// Returns the server's time as of its last answer, and this host's before the first: Unix
  /// seconds.
  [[nodiscard]] std::int64_t ServerSeconds() const;

 private:
  struct Call;
  /// Within the calling thread's CurrentPatience.
  Result<HttpResponse> Send(const Call& call);
  Result<HttpResponse> SendPatiently(const Call& call);
  Result<HttpResponse> SendOnce(const Call& call, Answer* answer);
  Result<HttpResponse> Perform(const Call& call, const HttpRequest& request);
  /// What a bucket's server has told of itself, as a request was signed with it.
  struct Told {
    std::string region;
    std::int64_t clock_offset = 0;  // Seconds from this host's clock to the server's.
  };
  HttpRequest Signed(const Call& call, const Credentials& credentials, const Told& told) const;
  [[nodiscard]] Told ToldOf(const std::string& bucket) const;
  void NoteTime(const HttpResponse& response);
  bool Correct(const Call& call, const HttpResponse& response, const ErrorBody& error,
               const Told& told);

  const Settings settings_;
  const CredentialsFunction credentials_;
  const std::shared_ptr<Traffic> traffic_;
  const SendFunction send_;
  HttpClient http_;
  Load load_;                                   // Guarded by traffic_.
  mutable std::mutex mutex_;                    // Guards all below.
  std::map<std::string, std::string> regions_;  // Of buckets, as servers have told.
  std::int64_t server_offset_ = 0;              // As of the last answer, in seconds.
  std::int64_t clock_offset_ = 0;               // Seconds from this host's clock to the server's.
};

}  // namespace varve::s3
