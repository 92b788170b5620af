#include "storage/http/client.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include <curl/curl.h>

#include "base/bytes.h"
#include "storage/http/attempts.h"
#include "storage/http/netrc.h"
#include "storage/http/url.h"

namespace varve::http {
namespace {

constexpr int kMostRedirects = 5;
constexpr std::uint64_t kMostWhole = std::uint64_t{16} << 20;

bool IsRedirect(const HttpResponse& response) {
  switch (response.status) {
    case 301:
    case 302:
    case 303:
    case 307:
    case 308: return true;
    default: return false;
  }
}

std::string NameOf(const char* method, const std::string& name, const std::string& range) {
  return std::string(method) + " " + name + (range.empty() ? "" : " (" + range + ")");
}

/// Returns the status of a request that the server has refused.
Status Refusal(int status, const std::string& request) {
  const std::string message = request + ": " + std::to_string(status);
  switch (status) {
    case 404:
    case 410: return NotFound(message);
    case 416: return DataLoss(message + " (the file is shorter than it was)");
    case 401:
    case 403:
    case 407:
      return FailedPrecondition(message +
                                "; the server refuses access. A login is taken from ~/.netrc, for "
                                "https:// and this host only")
          .With({.system_error = EACCES});
    default: return FailedPrecondition(message);
  }
}

/// Takes the head of an answer and ends the request before its body.
class HeadSink final : public BodySink {
 public:
  Status Begin(const HttpResponse& head) override {
    head_ = head;
    return Status(StatusCode::kCancelled, "the body is not needed");
  }
  Status Take(std::span<const std::byte> /*bytes*/) override { return Status::Ok(); }
  [[nodiscard]] const std::optional<HttpResponse>& head() const { return head_; }

 private:
  std::optional<HttpResponse> head_;
};

/// Returns true for a body that may be another file's than it says: a server has encoded it.
bool IsEncoded(const HttpResponse& response) {
  const std::string_view encoding = response.Header("content-encoding");
  return !encoding.empty() && encoding != "identity";
}

/// Returns the size of the file in "bytes 0-0/1234" or "bytes */0".
std::optional<std::uint64_t> SizeInRange(std::string_view range) {
  const std::size_t slash = range.find('/');
  return slash == std::string_view::npos ? std::nullopt : NumberIn(range.substr(slash + 1));
}

/// Returns what tells one content of a name from another. A weak ETag does not, nor does a time
/// that is as good as now: the file may be written again within the same second (RFC 9110, 8.8).
std::string IdentityOf(const HttpResponse& response) {
  std::string etag(response.Header("etag"));
  if (etag.size() > 2 && etag.front() == '"') {
    return etag;
  }
  const std::string modified(response.Header("last-modified"));
  const std::time_t written = ::curl_getdate(modified.c_str(), nullptr);
  const std::time_t now = ::curl_getdate(std::string(response.Header("date")).c_str(), nullptr);
  constexpr std::time_t kSettled = 60;
  return written > 0 && now > 0 && now - written >= kSettled ? "modified " + modified
                                                             : std::string();
}

RemoteFile Described(const HttpResponse& response, std::uint64_t size) {
  return {
      size,
      {std::string(response.Header("etag")), std::string(response.Header("last-modified")), size},
      IdentityOf(response)};
}

}  // namespace

Result<Settings> ReadSettings(const Environment& environment) {
  Settings settings;
  for (const char* const variable : {"VARVE_HTTP_CA_BUNDLE", "SSL_CERT_FILE", "AWS_CA_BUNDLE"}) {
    if (settings.ca_file.empty()) {
      settings.ca_file = environment(variable).value_or("");
    }
  }
  constexpr std::int64_t kMost = 86'400;
  VARVE_ASSIGN_OR_RETURN(const auto stall, NumberSetting(environment, "VARVE_HTTP_STALL_TIMEOUT", 1,
                                                         kMost, "seconds"));
  VARVE_ASSIGN_OR_RETURN(const auto retry, NumberSetting(environment, "VARVE_HTTP_RETRY_TIMEOUT", 1,
                                                         kMost, "seconds"));
  settings.stall = std::chrono::seconds(stall.value_or(settings.stall.count()));
  if (retry) {
    settings.retry.time_limit = std::chrono::seconds(*retry);
  }
  const std::string path =
      environment("NETRC").value_or(environment("HOME").value_or("") + "/.netrc");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  settings.netrc = text.str();
  return settings;
}

WebClient::WebClient(Settings settings)
    : settings_(std::move(settings)),
      http_({.ca_file = settings_.ca_file, .ca_variable = "VARVE_HTTP_CA_BUNDLE"}) {}

HttpRequest WebClient::RequestOf(const Call& call, const std::string& url) const {
  HttpRequest request;
  request.method = call.method;
  request.url = url;
  request.headers.push_back(HeaderLine("accept-encoding", "identity"));
  if (!call.range.empty()) {
    request.headers.push_back(HeaderLine("range", call.range));
  }
  request.sink = call.sink;
  request.stall = settings_.stall;
  return request;
}

/// Sends a request, and again where the server says the file is elsewhere. A request that left the
/// origin of the name gets no login any more, not even back there.
Result<HttpResponse> WebClient::Follow(const Call& call) {
  std::string url = RequestUrl(call.name);
  VARVE_ASSIGN_OR_RETURN(const Origin origin, OriginOf(url));
  std::optional<std::string> login;
  if (origin.scheme == "https" || IsLoopback(origin.host)) {
    login = BasicAuthorization(settings_.netrc, origin.host);
  }
  for (int redirects = 0;; ++redirects) {
    HttpRequest request = RequestOf(call, url);
    if (login) {
      request.headers.push_back(HeaderLine("authorization", *login));
    }
    VARVE_ASSIGN_OR_RETURN(HttpResponse response, http_.Perform(request));
    const std::string location(response.Header("location"));
    if (!IsRedirect(response) || location.empty()) {
      return response;
    }
    if (redirects == kMostRedirects) {
      return Unimplemented("it redirects more than " + std::to_string(kMostRedirects) + " times");
    }
    VARVE_ASSIGN_OR_RETURN(url, Redirected(url, location));
    VARVE_ASSIGN_OR_RETURN(const Origin next, OriginOf(url));
    if (!(next == origin)) {
      login.reset();
    }
  }
}

Result<HttpResponse> WebClient::SendOnce(const Call& call, Answer* answer) {
  answer->is = AnswerKind::kFinal;
  const std::string request = NameOf(call.method, call.name, call.range);
  auto response = Follow(call);
  if (!response.ok()) {
    if (response.status().code() == StatusCode::kUnavailable) {
      answer->is = AnswerKind::kTransient;
    }
    const bool names_it = response.status().message().find(call.name) != std::string::npos;
    return names_it ? response.status() : response.status().Annotate(request);
  }
  if (call.status != nullptr) {
    *call.status = response->status;
  }
  answer->is = Classify(response->status, "");
  answer->retry_after = RetryAfter(*response);
  if (answer->is == AnswerKind::kGood && call.filled != nullptr && !call.filled->complete()) {
    answer->is = AnswerKind::kTransient;
    return Unavailable(request + ": the server's answer ends early");
  }
  if (answer->is == AnswerKind::kGood) {
    return response;
  }
  const Status refusal = Refusal(response->status, request);
  return answer->is == AnswerKind::kTransient ? Unavailable(refusal.message()) : refusal;
}

Result<HttpResponse> WebClient::Send(const Call& call) {
  return SendUntilAnswered(
      {[&call] { return NameOf(call.method, call.name, call.range); }, settings_.retry},
      [&](Answer* answer) { return SendOnce(call, answer); });
}

Result<RemoteFile> WebClient::Ask(const std::string& name) {
  const auto head = Send({.method = "HEAD", .name = name});
  if (head.ok()) {
    const auto size = NumberIn(head->Header("content-length"));
    if (size && !IsEncoded(*head)) {
      return Described(*head, *size);
    }
  } else if (head.status().code() != StatusCode::kFailedPrecondition) {
    return head.status();
  }
  HeadSink sink;
  int status = 0;
  const auto first =
      Send({.method = "GET", .name = name, .range = "bytes=0-0", .sink = &sink, .status = &status});
  if (!sink.head()) {
    if (status == 416) {  // The file is empty.
      return RemoteFile{};
    }
    return first.ok() ? Unavailable(name + ": the server's answer has no head") : first.status();
  }
  const HttpResponse& answer = *sink.head();
  const auto size = answer.status == 206 ? SizeInRange(answer.Header("content-range"))
                                         : NumberIn(answer.Header("content-length"));
  if (!size || IsEncoded(answer)) {
    return FailedPrecondition(name +
                              ": the server does not say how large the file is (no "
                              "Content-Length for HEAD, no Content-Range for a range)");
  }
  return Described(answer, *size);
}

Status WebClient::Get(const std::string& name, std::uint64_t offset,
                      std::span<const std::span<std::byte>> parts, const RemoteFile& file,
                      bool* range_ignored) {
  RangeSink sink(offset, parts, file.version);
  const Status got =
      Send({.method = "GET", .name = name, .range = sink.Range(), .sink = &sink, .filled = &sink})
          .status();
  *range_ignored = sink.range_ignored();
  return got;
}

Result<std::string> WebClient::GetWhole(const std::string& name, const RemoteFile& file) {
  if (file.size > kMostWhole) {
    return FailedPrecondition(
        name + ": the server sends whole files only (it ignores Range), and this one has " +
        std::to_string(file.size) +
        " bytes. Varve reads parts of a file of more than 16 MiB: use a server with ranges, or "
        "download the checkpoint");
  }
  std::string content(file.size, '\0');
  if (content.empty()) {
    return content;
  }
  const auto bytes = std::as_writable_bytes(std::span(content.data(), content.size()));
  RangeSink sink(0, std::span(&bytes, 1), file.version);
  VARVE_RETURN_IF_ERROR(
      Send({.method = "GET", .name = name, .sink = &sink, .filled = &sink}).status());
  return content;
}

}  // namespace varve::http
