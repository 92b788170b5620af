/// HTTP/1.1 requests over connections that are kept and used again. A thin layer over libcurl: one
/// request, one answer, no retries, no redirects.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/status.h"

namespace varve::http {

using NameValues = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 0;
  NameValues headers;  ///< Names in lower case.
  std::string body;    ///< Empty where a sink took it.
  /// Returns the header's value; empty where there is none.
  [[nodiscard]] std::string_view Header(std::string_view name) const;
};

/// Returns text of a server's for a message: at most 500 bytes, control characters as blanks.
std::string Printable(std::string_view text);

/// Returns the bytes in base64, with padding.
std::string Base64(std::span<const std::byte> bytes);

/// Returns "name: value".
std::string HeaderLine(std::string_view name, std::string_view value);

/// Takes the body of an answer with a status of 2xx. All calls come from the thread of the request.
/// An error ends the request, which returns it.
class BodySink {
 public:
  virtual ~BodySink() = default;
  /// Called once before Take, with an answer that has no body yet.
  virtual Status Begin(const HttpResponse& head) = 0;
  virtual Status Take(std::span<const std::byte> bytes) = 0;
};

struct HttpRequest {
  std::string method;
  std::string url;
  std::vector<std::string> headers;   ///< "name: value"
  std::span<const std::byte> body{};  ///< Of PUT and POST.
  BodySink* sink = nullptr;
  /// The answer may take this long while no byte moves.
  std::chrono::seconds stall{30};
};

struct HttpOptions {
  std::string ca_file;  ///< Empty: the system's.
  /// The variable by which a user names `ca_file`, for messages.
  const char* ca_variable = "AWS_CA_BUNDLE";
  std::chrono::seconds connect{10};
  bool proxy = true;  ///< Through the proxy of the environment, where there is one.
};

/// Threads: safe to call concurrently; each call has a connection of its own meanwhile. A forked
/// child makes connections of its own: those of its parent are left alone.
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  /// Sends the request and returns the answer, whatever its status. Errors: Unavailable where there
  /// is no whole answer: no connection, one that ended early or stood still, headers of more than
  /// 256 KiB; those of the sink;
  /// Cancelled within about a second of the calling thread's CurrentStop;
  /// DataLoss for a body of more than 16 MiB without a sink.
  Result<HttpResponse> Perform(const HttpRequest& request);

 private:
  struct Handle;
  std::unique_ptr<Handle> Take();
  void Return(std::unique_ptr<Handle> handle);

  const HttpOptions options_;
  std::mutex mutex_;  // Guards all below.
  int process_ = 0;
  std::vector<std::unique_ptr<Handle>> idle_;
};

}  // namespace varve::http
