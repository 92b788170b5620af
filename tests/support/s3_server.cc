#include "support/s3_server.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <set>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace varve::test {
namespace {

std::string Decoded(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return out;
}

/// Reads from a socket until the buffer holds `size` bytes. Returns false at the end.
bool Fill(int socket, std::string* buffer, std::size_t size) {
  std::string block(std::size_t{1} << 16, '\0');
  while (buffer->size() < size) {
    const ssize_t got = ::recv(socket, block.data(), block.size(), 0);
    if (got <= 0) {
      return false;
    }
    buffer->append(block, 0, static_cast<std::size_t>(got));
  }
  return true;
}

/// Takes one request from the buffer and the socket. Nothing at the end of the connection.
std::optional<S3Request> Receive(int socket, std::string* buffer) {
  std::size_t end = std::string::npos;
  while ((end = buffer->find("\r\n\r\n")) == std::string::npos) {
    if (!Fill(socket, buffer, buffer->size() + 1)) {
      return std::nullopt;
    }
  }
  S3Request request;
  const std::string head = buffer->substr(0, end);
  buffer->erase(0, end + 4);
  const std::size_t line = std::min(head.find("\r\n"), head.size());
  const std::size_t first = head.find(' ');
  const std::size_t second = head.find(' ', first + 1);
  request.method = head.substr(0, first);
  const std::string target = head.substr(first + 1, second - first - 1);
  const std::size_t question = std::min(target.find('?'), target.size());
  request.path = Decoded(target.substr(0, question));
  request.query = question < target.size() ? target.substr(question + 1) : "";
  for (std::size_t at = line; at < head.size();) {
    at += 2;
    const std::size_t next = std::min(head.find("\r\n", at), head.size());
    const std::size_t colon = head.find(':', at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers[name] = head.substr(colon + 2, next - colon - 2);
    at = next;
  }
  std::size_t size = 0;
  if (const auto length = request.headers.find("content-length"); length != request.headers.end()) {
    size = std::stoull(length->second);
  }
  if (!Fill(socket, buffer, size)) {
    return std::nullopt;
  }
  request.body = buffer->substr(0, size);
  buffer->erase(0, size);
  return request;
}

void SendAll(int socket, const std::string& text) {
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t now = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) {
      return;
    }
    sent += static_cast<std::size_t>(now);
  }
}

std::string ErrorXml(const std::string& code) {
  return "<Error><Code>" + code + "</Code><Message>scripted</Message></Error>";
}

}  // namespace

std::optional<std::string> S3Request::Parameter(const std::string& name) const {
  for (std::size_t at = 0; at < query.size();) {
    const std::size_t end = std::min(query.find('&', at), query.size());
    const std::string one = query.substr(at, end - at);
    const std::size_t equals = std::min(one.find('='), one.size());
    if (one.substr(0, equals) == name) {
      return Decoded(equals < one.size() ? one.substr(equals + 1) : "");
    }
    at = end + 1;
  }
  return std::nullopt;
}

S3Server::S3Server(bool obeys_if_none_match)
    : obeys_(obeys_if_none_match), listening_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  socklen_t size = sizeof(address);
  ::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  ::listen(listening_, 64);
  acceptor_ = std::thread([this] { Accept(); });
}

S3Server::~S3Server() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
    for (const int socket : sockets_) {
      ::shutdown(socket, SHUT_RDWR);
    }
  }
  ::shutdown(listening_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& connection : connections_) {
    connection.join();
  }
  ::close(listening_);
}

void S3Server::Accept() {
  while (true) {
    const int socket = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::scoped_lock lock(mutex_);
    if (socket < 0 || ends_) {
      if (socket >= 0) {
        ::close(socket);
      }
      return;
    }
    sockets_.push_back(socket);
    connections_.emplace_back([this, socket] { Serve(socket); });
  }
}

/// Counts a request that begins. Returns how long it shall take.
std::chrono::milliseconds S3Server::Enter() {
  const std::scoped_lock lock(mutex_);
  most_at_once_ = std::max(most_at_once_, ++at_once_);
  return delay_;
}

void S3Server::Serve(int socket) {
  std::string buffer;
  while (const auto request = Receive(socket, &buffer)) {
    Answer answer;
    S3Fault fault = S3Fault::kNone;
    const std::chrono::milliseconds delay = Enter();
    std::this_thread::sleep_for(delay);
    {
      const std::scoped_lock lock(mutex_);
      --at_once_;
      fault = script_ ? script_(*request, count_) : S3Fault::kNone;
      const auto stood = stand_ ? stand_(*request, count_) : std::nullopt;
      ++count_;
      if (fault == S3Fault::kUnavailable) {
        answer = {503, {}, ErrorXml("SlowDown")};
      } else if (fault == S3Fault::kRefused) {
        answer = {403, {}, ErrorXml("AccessDenied")};
      } else if (stood) {
        answer = *stood;
      } else if (fault != S3Fault::kResetBefore && fault != S3Fault::kStall) {
        answer = Handle(*request);
      }
      if (!date_.empty()) {
        answer.headers.push_back("Date: " + date_);
      }
    }
    if (fault == S3Fault::kResetBefore || fault == S3Fault::kResetAfter) {
      break;
    }
    if (fault == S3Fault::kStall) {
      continue;  // The client has to go.
    }
    if (fault == S3Fault::kInternalLate) {
      answer = {500, {}, ErrorXml("InternalError")};
    }
    std::string body = request->method == "HEAD" ? "" : answer.body;
    std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " Scripted\r\n";
    for (const std::string& header : answer.headers) {
      head += header + "\r\n";
    }
    head += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n\r\n";
    if (fault == S3Fault::kTruncated && !body.empty()) {
      SendAll(socket, head + body.substr(0, body.size() / 2));
      break;
    }
    if (fault == S3Fault::kCorrupted && !body.empty()) {
      body[body.size() / 2] = static_cast<char>(body[body.size() / 2] ^ 1);
    }
    SendAll(socket, head + body);
  }
  const std::scoped_lock lock(mutex_);
  std::erase(sockets_, socket);
  ::close(socket);
}

S3Server::Answer S3Server::Handle(const S3Request& request) {
  if (const auto page = pages_.find(request.path); page != pages_.end()) {
    return {200, {}, page->second};
  }
  const std::string name = request.path.substr(1);
  const std::size_t slash = name.find('/');
  const std::string bucket = name.substr(0, slash);
  if (slash == std::string::npos) {
    return request.Parameter("delete") ? DeleteMany(bucket, request) : List(bucket, request);
  }
  if (request.method == "GET" || request.method == "HEAD") {
    return Get(name, request);
  }
  if (request.method == "PUT") {
    return Write(name, request);
  }
  if (request.method == "DELETE") {
    const auto upload = request.Parameter("uploadId");
    if (upload) {
      return uploads_.erase(*upload) == 1 ? Answer{204, {}, ""}
                                          : Answer{404, {}, ErrorXml("NoSuchUpload")};
    }
    objects_.erase(name);
    return {204, {}, ""};
  }
  if (request.Parameter("uploads")) {
    const std::string id = "u" + std::to_string(next_upload_++);
    uploads_[id] = {name, {}};
    return {200,
            {},
            "<InitiateMultipartUploadResult><UploadId>" + id +
                "</UploadId></InitiateMultipartUploadResult>"};
  }
  return Complete(name, request);
}

S3Server::Answer S3Server::Get(const std::string& name, const S3Request& request) const {
  const auto found = objects_.find(name);
  if (found == objects_.end()) {
    return {404, {}, ErrorXml("NoSuchKey")};
  }
  const std::string& content = found->second;
  const std::string etag = "ETag: \"" + std::to_string(std::hash<std::string>()(content)) + "\"";
  const auto range = request.headers.find("range");
  if (range == request.headers.end()) {
    return {200, {etag}, content};
  }
  std::size_t begin = 0;
  std::size_t end = 0;
  const std::string text = range->second.substr(std::strlen("bytes="));
  const auto dash = text.find('-');
  begin = std::stoull(text.substr(0, dash));
  end = std::min<std::size_t>(std::stoull(text.substr(dash + 1)), content.size() - 1);
  if (begin >= content.size()) {
    return {416, {}, ErrorXml("InvalidRange")};
  }
  return {206,
          {etag, "Content-Range: bytes " + std::to_string(begin) + "-" + std::to_string(end) + "/" +
                     std::to_string(content.size())},
          content.substr(begin, end - begin + 1)};
}

S3Server::Answer S3Server::Write(const std::string& name, const S3Request& request) {
  last_put_ = request.headers;
  if (const auto upload = request.Parameter("uploadId")) {
    const auto found = uploads_.find(*upload);
    if (found == uploads_.end()) {
      return {404, {}, ErrorXml("NoSuchUpload")};
    }
    found->second.parts[std::stoi(*request.Parameter("partNumber"))] = request.body;
    return {200, {"ETag: \"part\""}, ""};
  }
  if (obeys_ && request.headers.contains("if-none-match") && objects_.contains(name)) {
    return {412, {}, ErrorXml("PreconditionFailed")};
  }
  objects_[name] = request.body;
  return {200, {"ETag: \"object\""}, ""};
}

S3Server::Answer S3Server::Complete(const std::string& name, const S3Request& request) {
  const auto found = uploads_.find(request.Parameter("uploadId").value_or(""));
  if (found == uploads_.end()) {
    return {404, {}, ErrorXml("NoSuchUpload")};
  }
  std::string content;
  for (const auto& [number, part] : found->second.parts) {
    content += part;
  }
  objects_[name] = std::move(content);
  uploads_.erase(found);
  return {200, {}, "<CompleteMultipartUploadResult/>"};
}

S3Server::Answer S3Server::DeleteMany(const std::string& bucket, const S3Request& request) {
  for (std::size_t at = request.body.find("<Key>"); at != std::string::npos;
       at = request.body.find("<Key>", at + 1)) {
    const std::size_t begin = at + std::strlen("<Key>");
    objects_.erase(bucket + "/" +
                   request.body.substr(begin, request.body.find("</Key>", begin) - begin));
  }
  return {200, {}, "<DeleteResult/>"};
}

S3Server::Answer S3Server::List(const std::string& bucket, const S3Request& request) const {
  const std::string prefix = bucket + "/" + request.Parameter("prefix").value_or("");
  if (request.Parameter("uploads")) {
    std::string body = "<ListMultipartUploadsResult>";
    for (const auto& [id, upload] : uploads_) {
      if (upload.name.starts_with(prefix)) {
        body += "<Upload><Key>" + Escaped(upload.name.substr(bucket.size() + 1)) +
                "</Key><UploadId>" + id +
                "</UploadId><Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>";
      }
    }
    return {200, {}, body + "</ListMultipartUploadsResult>"};
  }
  const bool folders = request.Parameter("delimiter").has_value();
  std::string body = "<ListBucketResult><IsTruncated>false</IsTruncated>";
  std::set<std::string> prefixes;
  for (const auto& [name, content] : objects_) {
    if (!name.starts_with(prefix)) {
      continue;
    }
    const std::size_t slash = name.find('/', prefix.size());
    if (folders && slash != std::string::npos) {
      prefixes.insert(name.substr(bucket.size() + 1, slash - bucket.size()));
      continue;
    }
    body += "<Contents><Key>" + Escaped(name.substr(bucket.size() + 1)) + "</Key><Size>" +
            std::to_string(content.size()) + "</Size><LastModified>" + written_ +
            "</LastModified></Contents>";
  }
  for (const std::string& folder : prefixes) {
    body += "<CommonPrefixes><Prefix>" + Escaped(folder) + "</Prefix></CommonPrefixes>";
  }
  return {200, {}, body + "</ListBucketResult>"};
}

void S3Server::SetScript(Script script) {
  const std::scoped_lock lock(mutex_);
  script_ = std::move(script);
  count_ = 0;
}
void S3Server::SetStand(Stand stand) {
  const std::scoped_lock lock(mutex_);
  stand_ = std::move(stand);
  count_ = 0;
}
int S3Server::most_at_once() const {
  const std::scoped_lock lock(mutex_);
  return most_at_once_;
}
void S3Server::SetDelay(std::chrono::milliseconds delay) {
  const std::scoped_lock lock(mutex_);
  delay_ = delay;
}
int S3Server::requests() const {
  const std::scoped_lock lock(mutex_);
  return count_;
}
std::map<std::string, std::string> S3Server::objects() const {
  const std::scoped_lock lock(mutex_);
  return objects_;
}
void S3Server::Put(const std::string& name, std::string content) {
  const std::scoped_lock lock(mutex_);
  objects_[name] = std::move(content);
}
void S3Server::SetTime(std::string written, std::string date) {
  const std::scoped_lock lock(mutex_);
  written_ = std::move(written);
  date_ = std::move(date);
}
void S3Server::SetPage(const std::string& path, std::string body) {
  const std::scoped_lock lock(mutex_);
  pages_[path] = std::move(body);
}
std::size_t S3Server::open_uploads() const {
  const std::scoped_lock lock(mutex_);
  return uploads_.size();
}
std::map<std::string, std::string> S3Server::last_put() const {
  const std::scoped_lock lock(mutex_);
  return last_put_;
}

}  // namespace varve::test
