/// An S3 server in this process, in memory, that fails as it is told to.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/s3_objects.h"

namespace varve::test {

enum class S3Fault {
  kNone,
  kUnavailable,   ///< 503 SlowDown; nothing is done.
  kResetBefore,   ///< The connection ends; nothing is done.
  kResetAfter,    ///< The request is carried out; the connection ends without an answer.
  kInternalLate,  ///< Carried out, and answered with 500.
  kTruncated,     ///< Carried out; half of the answer's body comes.
  kCorrupted,     ///< Carried out; one byte of the answer's body is another.
  kRefused,       ///< 403; nothing is done.
  kStall,         ///< Nothing is done, and no answer comes while the server lives.
};

class S3Server {
 public:
  /// Decides what becomes of a request; `index` counts all requests from 0 on. Called by the
  /// connections' threads, one at a time.
  using Script = std::function<S3Fault(const S3Request& request, int index)>;

  /// Answers requests in the server's place, which then does nothing; nothing: the server answers.
  using Stand = std::function<std::optional<S3Answer>(const S3Request& request, int index)>;

  explicit S3Server(bool obeys_if_none_match = true);
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;
  ~S3Server();

  [[nodiscard]] std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }

  /// Begins to count anew.
  void SetScript(Script script);
  void SetStand(Stand stand);
  [[nodiscard]] int requests() const;
  /// Of the requests that are being answered, the most that were at once.
  [[nodiscard]] int most_at_once() const;
  /// Lets each request take so long.
  void SetDelay(std::chrono::milliseconds delay);
  /// All objects of all buckets, "bucket/key" by content.
  [[nodiscard]] std::map<std::string, std::string> objects() const;
  void Put(const std::string& name, std::string content);
  /// Answers all requests of this path, whatever the method, with this body.
  void SetPage(const std::string& path, std::string body);
  /// Sets when all objects were written, and what the header Date says; at first they were written
  /// on the first of January 2026, and there is no Date.
  void SetTime(std::string written, std::string date);
  /// Uploads that were begun and neither completed nor given up.
  [[nodiscard]] std::size_t open_uploads() const;
  /// Headers of the last PUT of an object or part.
  [[nodiscard]] std::map<std::string, std::string> last_put() const;

 private:
  void Accept();
  void Serve(int socket);
  std::chrono::milliseconds Enter();

  int listening_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;  // Guards all below.
  bool ends_ = false;
  int count_ = 0;
  Script script_;
  Stand stand_;
  int at_once_ = 0;
  int most_at_once_ = 0;
  std::chrono::milliseconds delay_{0};
  S3Objects objects_;
  std::map<std::string, std::string> pages_;
  std::string date_;
  std::vector<int> sockets_;
  std::vector<std::thread> connections_;
  std::thread acceptor_;
};

}  // namespace varve::test
