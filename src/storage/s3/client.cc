#include "storage/s3/client.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include <curl/curl.h>

#include "base/bytes.h"
#include "base/events.h"
#include "base/retry_time.h"
#include "base/time_source.h"
#include "storage/s3/call.h"

namespace varve::s3 {
namespace {

constexpr std::string_view kService = "s3";
constexpr std::string_view kUnsigned = "UNSIGNED-PAYLOAD";
constexpr std::size_t kSmallBody = std::size_t{1} << 20;  // Whose SHA-256 is signed.

/// Returns what an answer with this HTTP status says of the server's load.
ServerLoad LoadOf(int status) {
  constexpr int kTooManyRequests = 429;
  constexpr int kUnavailable = 503;
  return status == kTooManyRequests || status == kUnavailable ? ServerLoad::kTooMuch
                                                              : ServerLoad::kTaken;
}

/// Returns true for an answer that S3 does not give: a 404 without a reason (a HEAD's has no body),
/// or an object without an ETag. A router gives such answers for all names while the server behind
/// it is away. Taken for S3's, they would be the absence of a checkpoint, on which a job would begin
/// anew, or damage.
bool IsForeign(const std::string& method, bool of_object, const HttpResponse& response,
               const ErrorBody& error) {
  if (response.status == 404) {
    return method != "HEAD" && error.code.empty();
  }
  return of_object && (method == "GET" || method == "HEAD" || method == "PUT") &&
         response.status < 300 && response.Header("etag").empty();
}

}  // namespace

S3Client::S3Client(Settings settings, CredentialsFunction credentials,
                   std::shared_ptr<Traffic> traffic, SendFunction send)
    : settings_(std::move(settings)),
      credentials_(std::move(credentials)),
      traffic_(traffic != nullptr ? std::move(traffic)
                                  : std::make_shared<Traffic>(settings_.traffic)),
      send_(std::move(send)),
      http_({.ca_file = settings_.ca_file}),
      load_{Unloaded(settings_.traffic.connections)} {}

S3Client::Told S3Client::ToldOf(const std::string& bucket) const {
  const std::scoped_lock lock(mutex_);
  const auto known = regions_.find(bucket);
  return {known == regions_.end() ? settings_.region : known->second, clock_offset_};
}

std::int64_t S3Client::NowNs() {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::scoped_lock lock(mutex_);
  return (UnixSeconds() + server_offset_) * kSecond;
}

void S3Client::NoteTime(const HttpResponse& response) {
  const std::time_t there = ::curl_getdate(std::string(response.Header("date")).c_str(), nullptr);
  if (there > 0) {
    const std::scoped_lock lock(mutex_);
    server_offset_ = there - UnixSeconds();
  }
}

HttpRequest S3Client::Signed(const Call& call, const Credentials& credentials,
                             const Told& told) const {
  const std::string& region = told.region;
  const std::string endpoint =
      settings_.endpoint.empty()
          ? (settings_.tls ? "https://s3." : "http://s3.") + region + ".amazonaws.com"
          : settings_.endpoint;
  const std::size_t host_at = endpoint.find("://") + 3;
  std::string scheme = endpoint.substr(0, host_at);
  std::string host = endpoint.substr(host_at);
  std::string path = "/" + UriEncode(call.object.key, /*keep_slashes=*/true);
  // The certificate "*.s3.REGION.amazonaws.com" is not good for a bucket with dots.
  if (settings_.addressing == Addressing::kVirtual &&
      (call.object.bucket.find('.') == std::string::npos || scheme == "http://")) {
    host = call.object.bucket + "." + host;
  } else {
    path = "/" + call.object.bucket + (call.object.key.empty() ? "" : path);
  }
  ToSign to_sign{call.method, path, call.query, call.headers, std::string(kUnsigned)};
  if (call.body.size() <= kSmallBody) {
    to_sign.payload = Sha256Hex(AsText(call.body));
  }
  const std::string date = AmzDate(UnixSeconds() + told.clock_offset);
  NameValues& headers = to_sign.headers;
  headers.emplace_back("host", host);
  if (settings_.requester_pays) {
    headers.emplace_back("x-amz-request-payer", "requester");
  }
  if (!credentials.anonymous()) {
    headers.emplace_back("x-amz-date", date);
    headers.emplace_back("x-amz-content-sha256", to_sign.payload);
    if (!credentials.session_token.empty()) {
      headers.emplace_back("x-amz-security-token", credentials.session_token);
    }
  }
  const std::string query = CanonicalQuery(call.query);
  HttpRequest request;
  request.method = call.method;
  request.url = scheme + host + path + (query.empty() ? "" : "?" + query);
  for (const auto& [name, value] : headers) {
    request.headers.push_back(HeaderLine(name, value));
  }
  if (!credentials.anonymous()) {
    request.headers.push_back("authorization: " +
                              Authorization(to_sign, credentials, region, kService, date));
  }
  request.body = call.body;
  request.sink = call.sink;
  return request;
}

/// Takes what the answer says of the bucket's region and of the time. Returns true where the same
/// request is worth another try.
bool S3Client::Correct(const Call& call, const HttpResponse& response, const ErrorBody& error,
                       const Told& told) {
  std::string region(response.Header("x-amz-bucket-region"));
  if (region.empty()) {
    region = error.region;
  }
  const bool refused = response.status == 301 || response.status == 307 || response.status == 400 ||
                       response.status == 403;
  const std::scoped_lock lock(mutex_);
  // Compared with what this request was signed with: another thread may have put it right since.
  if (refused && !region.empty() && region != told.region &&
      UriEncode(region, /*keep_slashes=*/false) == region) {
    regions_[call.object.bucket] = region;
    return true;
  }
  if (error.code == "RequestTimeTooSkewed" && server_offset_ != told.clock_offset) {
    clock_offset_ = server_offset_;
    return true;
  }
  return false;
}

namespace {

/// Returns the status of a request that the server has refused for good. `lists_uploads`: of a list
/// of uploads, for which rclone's server says of a bucket without uploads that it is not there.
Status Refusal(int status, const ErrorBody& error, std::string_view request, bool lists_uploads) {
  std::string message = std::string(request) + ": " + std::to_string(status);
  if (!error.code.empty()) {
    message += " " + Printable(error.code);
  }
  if (!error.message.empty()) {
    message += ": " + Printable(error.message);
  }
  if (error.code == "QuotaExceeded" || status == 507) {
    return {StatusCode::kOutOfSpace, message};
  }
  if (error.code == "ExpiredToken" || error.code == "TokenRefreshRequired") {
    return FailedPrecondition(message +
                              "; the keys have ended: renew them, or name a source of "
                              "keys that renews them (docs/storage.md)");
  }
  // No absence of a checkpoint, on which a job would begin anew.
  if (error.code == "NoSuchBucket" && !lists_uploads) {
    return FailedPrecondition(message +
                              "; the server has no bucket of this name: make it, or look for a "
                              "slip in the name and in the endpoint (AWS_ENDPOINT_URL)");
  }
  switch (status) {
    case 404: return NotFound(message);
    case 412: return AlreadyExists(message);
    case 416: return DataLoss(message + " (the object is shorter than it was)");
    case 501: return Unimplemented(message);
    case 301:
    case 307:
      return FailedPrecondition(message + "; the bucket is in another region or elsewhere: set " +
                                "AWS_REGION, or the endpoint");
    case 401:
    case 403:
      if (error.code == "SignatureDoesNotMatch" || error.code == "InvalidAccessKeyId") {
        return FailedPrecondition(message +
                                  "; the server does not know these keys: look at "
                                  "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the "
                                  "profile")
            .With({.system_error = EACCES});
      }
      return FailedPrecondition(message + "; do the keys in use allow it? docs/storage.md lists " +
                                "what each command needs")
          .With({.system_error = EACCES});
    default: return FailedPrecondition(message);
  }
}

}  // namespace

/// Sends a request when the limits of traffic allow it.
Result<HttpResponse> S3Client::Perform(const Call& call, const HttpRequest& request) {
  VARVE_ASSIGN_OR_RETURN(Permit permit,
                         traffic_->Begin(&load_, call.body.size() + call.sink_bytes));
  auto response = send_ ? send_(request) : http_.Perform(request);
  const auto limit = permit.End(response.ok() ? LoadOf(response->status) : ServerLoad::kUnknown);
  if (limit) {
    ReportEvent([&] {
      return Event{.level = EventLevel::kWarning,
                   .message = call.Name() + ": the server asks to slow down; at most " +
                              std::to_string(*limit) + " requests at once",
                   .fields = {{"request", call.Name()}, {"limit", std::to_string(*limit)}}};
    });
  }
  return response;
}

Result<HttpResponse> S3Client::SendOnce(const Call& call, Answer* answer) {
  answer->is = AnswerKind::kFinal;
  VARVE_ASSIGN_OR_RETURN(const Credentials credentials, credentials_());
  const Told told = ToldOf(call.object.bucket);
  HttpRequest request = Signed(call, credentials, told);
  request.stall = call.stall.value_or(settings_.stall);
  auto response = Perform(call, request);
  if (!response.ok()) {
    const bool transport = response.status().code() == StatusCode::kUnavailable;
    answer->is = transport ? AnswerKind::kTransient : AnswerKind::kFinal;
    return response.status().Annotate(PathOf(call.object));
  }
  if (call.method == "HEAD" && response->status == 404 &&
      response->Header("x-amz-request-id").empty()) {
    return AskForReason(call, answer);
  }
  NoteTime(*response);
  ErrorBody error;
  if (response->status >= 300 || call.method == "POST") {
    error = ParseError(response->body);
  }
  if (IsForeign(call.method, !call.object.key.empty(), *response, error)) {
    answer->is = AnswerKind::kTransient;
    return Unavailable(call.Name() + ": " + std::to_string(response->status) +
                       ", which is no answer of an S3 server: it is away, or the endpoint is "
                       "another server's (AWS_ENDPOINT_URL)");
  }
  answer->is = http::Classify(response->status, error.code);
  if (answer->is == AnswerKind::kGood) {
    const Status read = call.read ? call.read(response->body) : Status::Ok();
    if (read.ok()) {
      return response;
    }
    answer->is = AnswerKind::kTransient;  // A proxy's page, perhaps.
    return read.Annotate(call.Name());
  }
  if (answer->is == AnswerKind::kFinal && Correct(call, *response, error, told)) {
    answer->is = AnswerKind::kCorrected;
  }
  answer->retry_after = http::RetryAfter(*response);
  const bool lists_uploads =
      call.method == "GET" && !call.query.empty() && call.query.front().first == "uploads";
  const Status refusal = Refusal(response->status, error, call.Name(), lists_uploads);
  return answer->is == AnswerKind::kTransient ? Unavailable(refusal.message()) : refusal;
}

/// Asks by a GET, whose 404 has a body, for the reason of a HEAD's 404. Where the object is there,
/// the HEAD is worth another try.
Result<HttpResponse> S3Client::AskForReason(const Call& head, Answer* answer) {
  Call get = head;
  get.method = "GET";
  get.headers = {{"range", "bytes=0-0"}};
  VARVE_RETURN_IF_ERROR(SendOnce(get, answer).status());
  answer->is = AnswerKind::kTransient;
  return Unavailable(head.Name() + ": 404, but a GET finds the object");
}

Result<HttpResponse> S3Client::Send(const Call& call) {
  ScopedRetryTime* const scope = CurrentRetryTime();
  if (scope == nullptr) {
    return SendWithRetries(call);
  }
  if (scope->left() <= std::chrono::milliseconds(0)) {
    return Unavailable(call.Name() + " was not sent: requests before it got no answer");
  }
  Call hurried = call;
  hurried.time_limit =
      std::min(call.time_limit.value_or(settings_.retry.time_limit), scope->left());
  // A third: one request without an answer leaves time for others.
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(scope->left());
  hurried.stall = std::min(call.stall.value_or(settings_.stall),
                           std::max(seconds / 3, std::chrono::seconds(1)));
  const TimePoint begin = Now();
  auto response = SendWithRetries(hurried);
  if (response.status().code() == StatusCode::kUnavailable) {
    scope->Spend(std::chrono::duration_cast<std::chrono::milliseconds>(Now() - begin));
  }
  return response;
}

Result<HttpResponse> S3Client::SendWithRetries(const Call& call) {
  http::Attempts attempts{[&call] { return call.Name(); }, settings_.retry, call.tried_before};
  attempts.policy.time_limit =
      std::min(attempts.policy.time_limit, call.time_limit.value_or(attempts.policy.time_limit));
  return http::SendUntilAnswered(attempts, [&](Answer* answer) { return SendOnce(call, answer); });
}

}  // namespace varve::s3
