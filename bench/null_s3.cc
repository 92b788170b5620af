// A server that speaks as much of S3 as the clients in scenarios/s3.py need, and does as little as
// it can: it discards what is uploaded and makes up what is downloaded. It shows what a client can
// do when the server is no limit. No signature is checked.
//
//   null_s3            prints its port, and serves until its standard input ends
//
// Of each object it keeps the first 256 KiB and the last 64 KiB. Between them every object is the
// last 4 KiB of the former, over and over: clients that compare checksums must upload a state that
// is made so. DELETE with the query "all-below" deletes all objects whose names begin so.

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

constexpr std::uint64_t kKept = 256 << 10;
constexpr std::uint64_t kTail = 64 << 10;
constexpr std::uint64_t kPage = 4 << 10;
constexpr std::size_t kBuffer = 1 << 20;

/// An object, or a part of one.
struct Object {
  std::uint64_t size = 0;
  std::string kept;
  std::string tail;
};

using Upload = std::map<int, Object>;

std::mutex mutex;  // Guards these.
std::map<std::string, Object> objects;
std::map<std::string, Upload> uploads;
int next_upload = 1;

struct Request {
  std::string method;
  std::string path;
  std::string query;
  std::map<std::string, std::string> headers;

  std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
  bool Has(const std::string& name) const {
    return ("&" + query).find("&" + name) != std::string::npos;
  }
  std::string Parameter(const std::string& name) const {
    const std::string all = "&" + query + "&";
    const std::size_t at = all.find("&" + name + "=");
    if (at == std::string::npos) {
      return "";
    }
    const std::size_t begin = at + name.size() + 2;
    return all.substr(begin, all.find('&', begin) - begin);
  }
};

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

class Connection {
 public:
  explicit Connection(int socket) : socket_(socket), buffer_(kBuffer) {}
  ~Connection() { ::close(socket_); }

  void Serve() {
    Request request;
    while (ReceiveHead(&request)) {
      Answer(request);
      request = {};
    }
  }

 private:
  bool Fill() {
    const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    begin_ = 0;
    end_ = got > 0 ? static_cast<std::size_t>(got) : 0;
    return got > 0;
  }

  bool ReceiveHead(Request* request) {
    std::string head;
    while (head.find("\r\n\r\n") == std::string::npos) {
      if (begin_ == end_ && !Fill()) {
        return false;
      }
      // Byte by byte: a head is short, and the rest is the body.
      head += buffer_[begin_++];
    }
    const std::size_t first = head.find(' ');
    const std::size_t second = head.find(' ', first + 1);
    const std::string target = head.substr(first + 1, second - first - 1);
    const std::size_t question = std::min(target.find('?'), target.size());
    request->method = head.substr(0, first);
    request->path = Decoded(target.substr(0, question));
    request->query = question < target.size() ? target.substr(question + 1) : "";
    for (std::size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
      const std::size_t next = head.find("\r\n", at);
      const std::size_t colon = head.find(':', at);
      if (colon < next) {
        std::string name = head.substr(at, colon - at);
        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        const std::size_t value = head.find_first_not_of(' ', colon + 1);
        request->headers[name] = head.substr(value, next - value);
      }
      at = next + 2;
    }
    if (request->Header("expect") == "100-continue") {
      Send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    return true;
  }

  /// Receives the body. Returns what is kept of it.
  Object ReceiveBody(const Request& request, std::uint64_t kept) {
    std::uint64_t left = std::strtoull(request.Header("content-length").c_str(), nullptr, 10);
    Object object{SizeOf(request), "", ""};
    while (left > 0) {
      if (begin_ == end_ && !Fill()) {
        return object;
      }
      const std::size_t now = std::min<std::uint64_t>(left, end_ - begin_);
      object.kept.append(buffer_.data() + begin_,
                         std::min<std::uint64_t>(now, kept - object.kept.size()));
      const std::size_t skip = left > kTail ? std::min<std::uint64_t>(now, left - kTail) : 0;
      object.tail.append(buffer_.data() + begin_ + skip, now - skip);
      begin_ += now;
      left -= now;
    }
    return object;
  }

  void Send(const char* data, std::size_t size) {
    while (size > 0) {
      const ssize_t sent = ::send(socket_, data, size, MSG_NOSIGNAL);
      if (sent <= 0) {
        return;
      }
      data += sent;
      size -= static_cast<std::size_t>(sent);
    }
  }
  void Send(const std::string& text) { Send(text.data(), text.size()); }

  void Reply(int status, const std::string& body, const std::string& headers = "") {
    Send("HTTP/1.1 " + std::to_string(status) + " -\r\nETag: \"null\"\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }

  void Fail(int status, const char* code) {
    Reply(status, std::string("<Error><Code>") + code + "</Code><Message>-</Message></Error>");
  }

  static std::uint64_t SizeOf(const Request& request) {
    const std::string decoded = request.Header("x-amz-decoded-content-length");
    const std::string text = decoded.empty() ? request.Header("content-length") : decoded;
    return std::strtoull(text.c_str(), nullptr, 10);
  }

  void Answer(const Request& request) {
    const bool bucket = request.path.find('/', 1) == std::string::npos ||
                        request.path.find('/', 1) + 1 == request.path.size();
    if (request.method == "PUT") {
      return bucket ? Discard(request) : Put(request);
    }
    if (request.method == "POST") {
      return Post(request, bucket);
    }
    if (request.method == "DELETE") {
      const std::scoped_lock lock(mutex);
      uploads.erase(request.Parameter("uploadId"));
      if (request.Has("all-below")) {
        std::erase_if(objects,
                      [&](const auto& each) { return each.first.starts_with(request.path); });
      } else if (!request.Has("uploadId")) {
        objects.erase(request.path);
      }
      return Reply(204, "");
    }
    return bucket && request.method == "GET" ? List(request) : Get(request);
  }

  void Discard(const Request& request) {
    ReceiveBody(request, 0);
    Reply(200, "");
  }

  void Put(const Request& request) {
    const std::string id = request.Parameter("uploadId");
    const int number = std::atoi(request.Parameter("partNumber").c_str());
    Object received = ReceiveBody(request, number > 1 ? 0 : kKept);
    const std::scoped_lock lock(mutex);
    if (!id.empty()) {
      uploads[id][number] = std::move(received);
    } else if (const std::string source = Decoded(request.Header("x-amz-copy-source"));
               !source.empty()) {
      objects[request.path] = objects[source.front() == '/' ? source : "/" + source];
      return Reply(200,
                   "<CopyObjectResult><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                   "<ETag>\"null\"</ETag></CopyObjectResult>");
    } else if (request.Header("if-none-match") == "*" && objects.contains(request.path)) {
      return Fail(412, "PreconditionFailed");
    } else {
      objects[request.path] = std::move(received);
    }
    Reply(200, "");
  }

  void Post(const Request& request, bool bucket) {
    const std::string body = ReceiveBody(request, std::uint64_t{1} << 22).kept;
    const std::scoped_lock lock(mutex);
    if (bucket) {  // DeleteObjects
      const std::string prefix = request.path.substr(0, request.path.find('/', 1)) + "/";
      for (std::size_t at = body.find("<Key>"); at != std::string::npos;
           at = body.find("<Key>", at + 1)) {
        objects.erase(prefix + body.substr(at + 5, body.find("</Key>", at) - at - 5));
      }
      return Reply(200, "<DeleteResult/>");
    }
    if (request.Has("uploads")) {
      const std::string id = "u" + std::to_string(next_upload++);
      uploads[id] = {};
      return Reply(200, "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>" +
                            id + "</UploadId></InitiateMultipartUploadResult>");
    }
    const auto upload = uploads.find(request.Parameter("uploadId"));
    if (upload == uploads.end()) {
      return Fail(404, "NoSuchUpload");
    }
    Object object;
    for (auto& [number, part] : upload->second) {
      object.size += part.size;
      if (number == 1) {
        object.kept = std::move(part.kept);
      }
      object.tail = std::move(part.tail);
    }
    objects[request.path] = std::move(object);
    uploads.erase(upload);
    Reply(200,
          "<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>\"null\"</ETag>"
          "</CompleteMultipartUploadResult>");
  }

  void List(const Request& request) {
    if (request.Has("uploads")) {
      return Reply(200, "<ListMultipartUploadsResult/>");
    }
    const std::string bucket = request.path.substr(0, request.path.find('/', 1)) + "/";
    const std::string prefix = bucket + Decoded(request.Parameter("prefix"));
    const bool folders = !request.Parameter("delimiter").empty();
    std::string body = "<ListBucketResult><IsTruncated>false</IsTruncated>";
    std::map<std::string, bool> seen;
    const std::scoped_lock lock(mutex);
    for (auto at = objects.lower_bound(prefix);
         at != objects.end() && at->first.starts_with(prefix); ++at) {
      const std::size_t slash = at->first.find('/', prefix.size());
      if (folders && slash != std::string::npos) {
        const std::string folder = at->first.substr(bucket.size(), slash + 1 - bucket.size());
        if (seen.emplace(folder, true).second) {
          body += "<CommonPrefixes><Prefix>" + folder + "</Prefix></CommonPrefixes>";
        }
        continue;
      }
      body += "<Contents><Key>" + at->first.substr(bucket.size()) +
              "</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>\"null\"</ETag>"
              "<Size>" +
              std::to_string(at->second.size) + "</Size></Contents>";
    }
    Reply(200, body + "</ListBucketResult>");
  }

  void Get(const Request& request) {
    Object object;
    {
      const std::scoped_lock lock(mutex);
      const auto found = objects.find(request.path);
      if (found == objects.end()) {
        return request.method == "HEAD" ? Reply(404, "") : Fail(404, "NoSuchKey");
      }
      object = found->second;
    }
    std::uint64_t begin = 0;
    std::uint64_t end = object.size;
    std::string range;
    if (const std::string wanted = request.Header("range"); wanted.starts_with("bytes=")) {
      char* rest = nullptr;
      begin = std::min<std::uint64_t>(std::strtoull(wanted.c_str() + 6, &rest, 10), object.size);
      if (*rest == '-' && rest[1] != '\0') {
        end = std::min<std::uint64_t>(std::strtoull(rest + 1, nullptr, 10) + 1, object.size);
      }
      range = "Content-Range: bytes " + std::to_string(begin) + "-" + std::to_string(end - 1) +
              "/" + std::to_string(object.size) + "\r\n";
    }
    const std::uint64_t length = end - begin;
    Send("HTTP/1.1 " + std::to_string(range.empty() ? 200 : 206) +
         " -\r\nETag: \"null\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n" + range +
         "Content-Length: " + std::to_string(length) + "\r\n\r\n");
    if (request.method == "GET") {
      MakeUp(object, begin, end);
    }
  }

  void MakeUp(const Object& object, std::uint64_t begin, std::uint64_t end) {
    if (begin < object.kept.size()) {
      const std::uint64_t now = std::min<std::uint64_t>(end, object.kept.size()) - begin;
      Send(object.kept.data() + begin, now);
      begin += now;
    }
    if (begin >= end) {
      return;
    }
    // Two buffers' worth of pages, so that any page offset has a whole buffer behind it.
    const std::string page =
        object.kept.size() == kKept ? object.kept.substr(kKept - kPage) : std::string(kPage, '\0');
    made_up_.resize(kBuffer + kPage);
    for (std::size_t at = 0; at < made_up_.size(); at += kPage) {
      std::memcpy(made_up_.data() + at, page.data(), kPage);
    }
    const std::uint64_t tail_at = object.size - object.tail.size();
    while (begin < std::min(end, tail_at)) {
      const std::uint64_t now = std::min<std::uint64_t>(std::min(end, tail_at) - begin, kBuffer);
      Send(made_up_.data() + begin % kPage, now);
      begin += now;
    }
    if (begin < end) {
      Send(object.tail.data() + (begin - tail_at), end - begin);
    }
  }

  const int socket_;
  std::vector<char> buffer_;
  std::vector<char> made_up_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace

int main() {
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (::bind(listening, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listening, 256) != 0 ||
      ::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("null_s3");
    return 1;
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  std::thread([listening] {
    while (true) {
      const int socket = ::accept(listening, nullptr, nullptr);
      if (socket < 0) {
        return;
      }
      const int on = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      std::thread([socket] { Connection(socket).Serve(); }).detach();
    }
  }).detach();
  char ignored = 0;
  while (::read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  std::_Exit(0);
}
