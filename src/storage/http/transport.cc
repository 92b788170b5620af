#include "storage/http/transport.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/stop.h"
#include "varve/stop.h"

namespace varve::http {
namespace {

constexpr std::size_t kMaxBody = std::size_t{16} << 20;
constexpr std::size_t kMaxHeaders = std::size_t{256} << 10;  // Servers have limits of 8 to 64 KiB.
constexpr std::size_t kMostIdle = 64;
constexpr std::size_t kMostMessage = 500;
constexpr long kReceiveBuffer = 512L << 10;
constexpr long kSendBuffer = 2L << 20;

std::string LowerCase(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

std::string_view WithoutBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r' || text.back() == '\n')) {
    text.remove_suffix(1);
  }
  return text;
}

/// One request on its way.
struct Exchange {
  const HttpRequest& request;
  HttpResponse response;
  std::size_t sent = 0;
  std::size_t header_bytes = 0;
  bool begun = false;
  Status failed;  // That of the sink, or of an answer that is too large.
};

struct Transfer {
  Exchange exchange;
  CURL* curl;
  curl_socket_t* socket;  ///< The last that was made. libcurl tells it at no other time.
};

/// Acknowledges what has come at once. A server that writes the head and the body of an answer
/// apart, with Nagle's algorithm, sends the body when the head is acknowledged, and Linux takes 40
/// ms for that. Ceph's radosgw is one: a small read took 45 ms, and takes 3.
void AcknowledgeNow(curl_socket_t socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
}

// libcurl's callbacks. Nothing thrown may pass through it: std::bad_alloc ends the transfer.

std::size_t OnSend(char* buffer, std::size_t size, std::size_t count, void* data) {
  auto& exchange = *static_cast<Exchange*>(data);
  const std::size_t bytes = std::min(size * count, exchange.request.body.size() - exchange.sent);
  if (bytes > 0) {
    std::memcpy(buffer, exchange.request.body.data() + exchange.sent, bytes);
  }
  exchange.sent += bytes;
  return bytes;
}

int OnRewind(void* data, curl_off_t offset, int origin) {
  auto& exchange = *static_cast<Exchange*>(data);
  if (origin != SEEK_SET || offset < 0) {
    return CURL_SEEKFUNC_FAIL;
  }
  exchange.sent = static_cast<std::size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

int OnSocket(void* data, curl_socket_t socket, curlsocktype /*purpose*/) {
  *static_cast<curl_socket_t*>(data) = socket;
  return CURL_SOCKOPT_OK;
}

std::size_t OnHeader(char* buffer, std::size_t size, std::size_t count, void* data) {
  auto& transfer = *static_cast<Transfer*>(data);
  Exchange& exchange = transfer.exchange;
  const std::string_view line(buffer, size * count);
  try {
    exchange.header_bytes += line.size();
    if (exchange.header_bytes > kMaxHeaders) {
      exchange.failed = Unavailable("an answer with headers of more than 256 KiB");
      return 0;
    }
    if (line.starts_with("HTTP/")) {
      AcknowledgeNow(*transfer.socket);
      // The final answer, behind a "100 Continue" or a proxy's.
      exchange.response = {};
      return line.size();
    }
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos) {
      exchange.response.headers.emplace_back(LowerCase(line.substr(0, colon)),
                                             WithoutBlanks(line.substr(colon + 1)));
    }
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return line.size();
}

/// Takes bytes of the body. Returns the error that ends the request.
Status TakeBody(Exchange& exchange, std::span<const std::byte> bytes) {
  const bool wanted = exchange.response.status >= 200 && exchange.response.status < 300;
  if (exchange.request.sink == nullptr || !wanted) {
    if (exchange.response.body.size() + bytes.size() > kMaxBody) {
      return DataLoss("an answer of more than 16 MiB");
    }
    exchange.response.body.append(AsText(bytes));
    return Status::Ok();
  }
  if (!std::exchange(exchange.begun, true)) {
    VARVE_RETURN_IF_ERROR(exchange.request.sink->Begin(exchange.response));
  }
  return exchange.request.sink->Take(bytes);
}

/// Ends the request when its thread is asked to stop. Called once a second at least.
int OnProgress(void* data, curl_off_t /*to_come*/, curl_off_t /*came*/, curl_off_t /*to_go*/,
               curl_off_t /*gone*/) {
  return static_cast<const std::stop_token*>(data)->stop_requested() ? 1 : 0;
}

std::size_t OnBody(char* buffer, std::size_t size, std::size_t count, void* data) {
  Exchange& exchange = static_cast<Transfer*>(data)->exchange;
  try {
    if (exchange.response.status == 0) {
      long status = 0;
      ::curl_easy_getinfo(static_cast<Transfer*>(data)->curl, CURLINFO_RESPONSE_CODE, &status);
      exchange.response.status = static_cast<int>(status);
    }
    exchange.failed = TakeBody(exchange, std::as_bytes(std::span(buffer, size * count)));
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return exchange.failed.ok() ? size * count : 0;
}

/// A list of headers for libcurl.
class HeaderList {
 public:
  explicit HeaderList(const std::vector<std::string>& headers) {
    for (const std::string& header : headers) {
      Add(header.c_str());
    }
    Add("Expect:");  // Else large uploads wait for a "100 Continue" that few servers send.
  }
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;
  ~HeaderList() { ::curl_slist_free_all(list_); }
  [[nodiscard]] curl_slist* get() const { return list_; }

 private:
  void Add(const char* header) {
    curl_slist* const longer = ::curl_slist_append(list_, header);
    list_ = longer != nullptr ? longer : list_;  // A header that is lost makes the request refused.
  }
  curl_slist* list_ = nullptr;
};

/// Says what is sent: the method, and the body where there is one.
void SetMethod(CURL* curl, const HttpRequest& request) {
  if (request.method == "HEAD") {
    ::curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    ::curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    ::curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
    ::curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  } else {
    ::curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
    ::curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

/// Returns the file of certificates that this system trusts, empty if none is where the
/// distributions have it. A libcurl that was built on another system (a wheel's) does not know.
const std::string& SystemCertificates() {
  // Never destroyed: threads may outlive main.
  static const auto* const file = new std::string([] {
    for (const char* path : {"/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch
                             "/etc/pki/tls/certs/ca-bundle.crt",    // Red Hat and its kin, Amazon
                             "/etc/ssl/ca-bundle.pem",              // SUSE
                             "/etc/ssl/cert.pem"}) {                // Alpine
      if (::access(path, R_OK) == 0) {
        return std::string(path);
      }
    }
    return std::string();
  }());
  return *file;
}

void SetOptions(CURL* curl, const HttpRequest& request, const HttpOptions& options) {
  ::curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  ::curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);  // Keys may hold "..": they are signed so.
  ::curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);  // Credentials go to no other server.
  ::curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
  ::curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kReceiveBuffer);
  ::curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, kSendBuffer);
  ::curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(options.connect.count()));
  ::curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  ::curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.stall.count()));
  if (!options.proxy) {
    ::curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  }
  const std::string& trusted = options.ca_file.empty() ? SystemCertificates() : options.ca_file;
  if (!trusted.empty()) {
    ::curl_easy_setopt(curl, CURLOPT_CAINFO, trusted.c_str());
  }
}

/// Returns "https://host/path" without the query, which may hold secrets.
std::string_view WithoutQuery(std::string_view url) { return url.substr(0, url.find('?')); }

}  // namespace

std::string Printable(std::string_view text) {
  std::string out(text.substr(0, kMostMessage));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return out;
}

std::string Base64(std::span<const std::byte> bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size = ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::string HeaderLine(std::string_view name, std::string_view value) {
  std::string line(name);
  line += ": ";
  line += value;
  return line;
}

std::string_view HttpResponse::Header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(),
                                  [&](const auto& header) { return header.first == name; });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

struct HttpClient::Handle {
  CURL* const curl = ::curl_easy_init();
  curl_socket_t socket = CURL_SOCKET_BAD;
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (curl != nullptr) {
      ::curl_easy_cleanup(curl);
    }
  }
};

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)), process_(::getpid()) {
  static const CURLcode begun = ::curl_global_init(CURL_GLOBAL_ALL);
  (void)begun;  // A failure shows as handles that cannot be made.
}

HttpClient::~HttpClient() = default;

std::unique_ptr<HttpClient::Handle> HttpClient::Take() {
  const std::scoped_lock lock(mutex_);
  if (process_ != ::getpid()) {
    for (auto& handle : idle_) {
      (void)handle.release();  // The parent's: to close a connection would say so to its server.
    }
    idle_.clear();
    process_ = ::getpid();
  }
  if (idle_.empty()) {
    return std::make_unique<Handle>();
  }
  auto handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

void HttpClient::Return(std::unique_ptr<Handle> handle) {
  const std::scoped_lock lock(mutex_);
  if (idle_.size() < kMostIdle) {
    idle_.push_back(std::move(handle));
  }
}

Result<HttpResponse> HttpClient::Perform(const HttpRequest& request) {
  auto handle = Take();
  CURL* const curl = handle->curl;
  if (curl == nullptr) {
    return Unavailable("libcurl cannot be begun");
  }
  ::curl_easy_reset(curl);  // The connections stay.
  SetOptions(curl, request, options_);
  SetMethod(curl, request);
  Transfer transfer{{request, {}, 0, 0, false, Status::Ok()}, curl, &handle->socket};
  const HeaderList headers(request.headers);
  std::array<char, CURL_ERROR_SIZE> reason{};
  ::curl_easy_setopt(curl, CURLOPT_SOCKOPTFUNCTION, &OnSocket);
  ::curl_easy_setopt(curl, CURLOPT_SOCKOPTDATA, &handle->socket);
  ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  ::curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason.data());
  ::curl_easy_setopt(curl, CURLOPT_READFUNCTION, &OnSend);
  ::curl_easy_setopt(curl, CURLOPT_READDATA, &transfer.exchange);
  ::curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, &OnRewind);
  ::curl_easy_setopt(curl, CURLOPT_SEEKDATA, &transfer.exchange);
  ::curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &OnHeader);
  ::curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &OnBody);
  ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  const std::stop_token stop = CurrentStop();
  ::curl_easy_setopt(curl, CURLOPT_NOPROGRESS, stop.stop_possible() ? 0L : 1L);
  ::curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &OnProgress);
  ::curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &stop);
  const CURLcode code = ::curl_easy_perform(curl);
  Exchange& exchange = transfer.exchange;
  if (code != CURLE_OK && exchange.failed.ok()) {
    const std::string why = reason[0] != '\0' ? reason.data() : ::curl_easy_strerror(code);
    handle.reset();  // With its connection, which may be in any state.
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
        code == CURLE_SSL_CONNECT_ERROR) {  // Would fail again.
      return FailedPrecondition(std::string(WithoutQuery(request.url)) + ": " + why +
                                "; does the server speak TLS (https), and is its certificate among "
                                "those that are trusted (" +
                                options_.ca_variable + ")?");
    }
    return Unavailable(request.method + " " + std::string(WithoutQuery(request.url)) + ": " + why);
  }
  long status = 0;
  ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  exchange.response.status = static_cast<int>(status);
  if (!exchange.failed.ok()) {
    return exchange.header_bytes > kMaxHeaders
               ? exchange.failed.Annotate(request.method + " " +
                                          std::string(WithoutQuery(request.url)))
               : exchange.failed;
  }
  if (request.sink != nullptr && status >= 200 && status < 300 && !exchange.begun) {
    VARVE_RETURN_IF_ERROR(request.sink->Begin(exchange.response));  // An empty body.
  }
  Return(std::move(handle));
  return std::move(exchange.response);
}

}  // namespace varve::http
