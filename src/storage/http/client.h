/// The requests that Varve makes of web servers: retried, redirected, and with answers checked.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "storage/environment.h"
#include "storage/http/ranges.h"
#include "storage/http/retry.h"
#include "storage/http/transport.h"
#include "varve/status.h"

namespace varve::http {

struct Settings {
  std::string ca_file;  ///< Empty: the system's.
  std::chrono::seconds stall{30};
  RetryPolicy retry;
  std::string netrc;  ///< The text of the file; empty: none.
};

/// Returns the settings of an environment; docs/storage.md lists them. Reads the netrc file.
/// Errors: InvalidArgument naming the variable whose value cannot be used.
Result<Settings> ReadSettings(const Environment& environment);

/// What a server tells of a file.
struct RemoteFile {
  std::uint64_t size = 0;
  FileVersion version;
  /// A text that no other content of this name has had; empty where the server tells none.
  std::string identity;
};

/// Threads: safe to call concurrently. A request blocks its thread for as long as it is tried:
/// Settings::retry from its first failure on, and Settings::stall for one that stands still. Up to
/// five redirects are followed. A login from the netrc file goes to the host of the name alone, and
/// only with TLS or on this host. Errors of all requests: NotFound for a file that is not there;
/// FailedPrecondition where access is refused; Unimplemented for a redirect that is not followed;
/// Unavailable after the last retry; DataLoss for an
/// answer that is not what was asked for. Messages name the request, the URL, the status and the
/// cause, and never a login or the query of a redirect.
class WebClient {
 public:
  explicit WebClient(Settings settings);

  /// Asks with HEAD, and where that is refused or tells no size, with a GET of one byte.
  Result<RemoteFile> Ask(const std::string& name);

  /// Fills `parts`, in order, with the file's bytes from `offset` on. Requires at least one byte.
  /// Errors: FailedPrecondition where the file was replaced since `file` was told; sets
  /// `*range_ignored` and returns DataLoss where the server sends whole files only.
  Status Get(const std::string& name, std::uint64_t offset,
             std::span<const std::span<std::byte>> parts, const RemoteFile& file,
             bool* range_ignored);

  /// Reads a whole file of at most 16 MiB.
  Result<std::string> GetWhole(const std::string& name, const RemoteFile& file);

 private:
  /// One request, as often as it is sent.
  struct Call {
    const char* method;
    const std::string& name;
    std::string range{};  ///< "bytes=0-9"; empty: the whole file.
    BodySink* sink = nullptr;
    const RangeSink* filled = nullptr;  ///< Its range must be complete.
    int* status = nullptr;              ///< Gets the status of the last answer.
  };
  Result<HttpResponse> Send(const Call& call);
  Result<HttpResponse> SendOnce(const Call& call, Answer* answer);
  Result<HttpResponse> Follow(const Call& call);
  [[nodiscard]] HttpRequest RequestOf(const Call& call, const std::string& url) const;

  const Settings settings_;
  HttpClient http_;
};

}  // namespace varve::http
