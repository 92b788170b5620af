/// S3, and what speaks its protocol, as an ObjectStore: requests are signed, retried, and their
/// answers checked.
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
#include "varve/storage_plugins.h"

namespace varve::s3 {

/// Returns the keys to sign with. Called before every request; keeps what it found for as long as
/// it is good. Empty keys: requests are not signed.
using CredentialsFunction = std::function<Result<Credentials>()>;

/// Sends a request and returns the answer, as HttpClient::Perform does. A simulation has its own.
using SendFunction = std::function<Result<HttpResponse>(const HttpRequest&)>;

/// Threads: safe to call concurrently. A request blocks its thread for as long as it is tried:
/// Settings::retry from its first failure on, and Settings::stall for one that stands still.
/// Errors of all requests: NotFound for an object that is not there; FailedPrecondition where
/// access is refused or there is no such bucket; Unavailable after the last retry. Messages name
/// the request, the object, the status and the server's reason, and never a key or a signature.
class S3Client final : public ObjectStore {
 public:
  /// `traffic` is shared with other clients of the process; without it the client keeps the limits
  /// of its settings by itself. `send` is used instead of a connection where it is given.
  S3Client(Settings settings, CredentialsFunction credentials,
           std::shared_ptr<Traffic> traffic = nullptr, SendFunction send = {});

  // Names are "bucket/key". The client keeps what a server tells of a bucket.
  Status CheckName(const std::string& name, bool is_object) override;
  Result<StoreEntry> Head(const std::string& name) override;
  Status Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
              const std::string& version) override;
  Status ReadParts(const std::string& name, std::uint64_t offset,
                   std::span<const std::span<std::byte>> parts,
                   const std::string& version) override;
  Result<std::vector<StoreEntry>> List(const std::string& prefix, bool unfinished) override;
  Result<std::vector<std::string>> ListAll(const std::string& prefix) override;
  /// An AlreadyExists may answer a second try of which the first was carried out. Any other error
  /// is Unavailable where an earlier try may have been, whatever the last answer says.
  Status Put(const std::string& name, std::span<const std::byte> data, bool if_absent) override;
  [[nodiscard]] bool RefusalsAreFinal() const override { return true; }
  Status Remove(const std::vector<std::string>& names) override;
  Result<std::string> StartUpload(const std::string& name, std::uint64_t part_bytes) override;
  Result<std::string> StartMarkedUpload(const std::string& name, std::uint64_t part_bytes,
                                        const std::string& mark) override;
  Result<std::string> UploadPart(const std::string& name, const std::string& upload, int number,
                                 std::span<const std::byte> data) override;
  /// Errors: NotFound also where a first try was carried out and its answer lost, Unavailable for an
  /// answer that is none.
  Status EndUpload(const std::string& name, const std::string& upload,
                   const std::vector<std::string>* parts) override;
  /// Returns the server's time as of its last answer, and this host's before the first.
  std::int64_t NowNs() override;

 private:
  struct Call;
  [[nodiscard]] ObjectName ObjectOf(const std::string& name) const;
  Status ListPages(const std::string& prefix, std::string_view delimiter,
                   const std::function<void(const ListPage&)>& take);
  Result<std::vector<StoreEntry>> ListUploads(const std::string& prefix);
  /// Within the calling thread's CurrentRetryTime.
  Result<HttpResponse> Send(const Call& call);
  Result<HttpResponse> SendWithRetries(const Call& call);
  Result<HttpResponse> SendOnce(const Call& call, Answer* answer);
  Result<HttpResponse> AskForReason(const Call& head, Answer* answer);
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
