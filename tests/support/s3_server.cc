#include "support/s3_server.h"

#include <algorithm>
#include <cctype>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace varve::test {
namespace {

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
  request.path = UriDecoded(target.substr(0, question));
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

}  // namespace

S3Server::S3Server(bool obeys_if_none_match)
    : listening_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), objects_(obeys_if_none_match) {
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
    S3Answer answer;
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
        answer = {503, {}, S3ErrorXml("SlowDown")};
      } else if (fault == S3Fault::kRefused) {
        answer = {403, {}, S3ErrorXml("AccessDenied")};
      } else if (stood) {
        answer = *stood;
      } else if (fault != S3Fault::kResetBefore && fault != S3Fault::kStall) {
        const auto page = pages_.find(request->path);
        answer = page != pages_.end() ? S3Answer{200, {}, page->second} : objects_.Handle(*request);
        answer.headers.emplace_back("x-amz-request-id: 1");
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
      answer = {500, {}, S3ErrorXml("InternalError")};
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
  return objects_.objects();
}
void S3Server::Put(const std::string& name, std::string content) {
  const std::scoped_lock lock(mutex_);
  objects_.Put(name, std::move(content));
}
void S3Server::SetTime(std::string written, std::string date) {
  const std::scoped_lock lock(mutex_);
  objects_.SetWritten(std::move(written));
  date_ = std::move(date);
}
void S3Server::SetPage(const std::string& path, std::string body) {
  const std::scoped_lock lock(mutex_);
  pages_[path] = std::move(body);
}
std::size_t S3Server::open_uploads() const {
  const std::scoped_lock lock(mutex_);
  return objects_.open_uploads();
}
std::map<std::string, std::string> S3Server::last_put() const {
  const std::scoped_lock lock(mutex_);
  return objects_.last_put();
}

}  // namespace varve::test
