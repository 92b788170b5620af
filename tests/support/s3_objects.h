/// The objects of an S3 server, in memory, without connections: one request in, one answer out. It
/// knows the requests that Varve makes and checks no signatures: a real server does that in other
/// tests.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace varve::test {

struct S3Request {
  std::string method;
  std::string path;                            ///< "/bucket/key", decoded.
  std::string query;                           ///< As it came.
  std::map<std::string, std::string> headers;  ///< Names in lower case.
  std::string body;
  /// Returns the value of a query parameter, decoded; nothing where it is not there.
  [[nodiscard]] std::optional<std::string> Parameter(const std::string& name) const;
};

struct S3Answer {
  int status = 200;
  std::vector<std::string> headers;  ///< "Name: value"
  std::string body;
};

/// Returns text with %XX replaced by the bytes they stand for.
std::string UriDecoded(const std::string& text);

/// Returns the body of an error.
std::string S3ErrorXml(const std::string& code);

/// Threads: none; the caller guards it.
class S3Objects {
 public:
  explicit S3Objects(bool obeys_if_none_match = true) : obeys_(obeys_if_none_match) {}

  S3Answer Handle(const S3Request& request);

  /// All objects of all buckets, "bucket/key" by content.
  [[nodiscard]] const std::map<std::string, std::string>& objects() const { return objects_; }
  void Put(const std::string& name, std::string content);
  /// Sets when all objects were written, for listings.
  void SetWritten(std::string written) { written_ = std::move(written); }
  /// Uploads that were begun and neither completed nor given up.
  [[nodiscard]] std::size_t open_uploads() const { return uploads_.size(); }
  /// Gives up all of them, as a lifecycle rule of the bucket does.
  void EndUploads() { uploads_.clear(); }
  /// Headers of the last PUT of an object or part.
  [[nodiscard]] const std::map<std::string, std::string>& last_put() const { return last_put_; }

 private:
  struct Upload {
    std::string name;
    std::map<int, std::string> parts;
    std::vector<std::string> metadata;  ///< Header lines.
  };

  S3Answer List(const std::string& bucket, const S3Request& request) const;
  S3Answer Get(const std::string& name, const S3Request& request) const;
  S3Answer Write(const std::string& name, const S3Request& request);
  S3Answer DeleteMany(const std::string& bucket, const S3Request& request);
  S3Answer Begin(const std::string& name, const S3Request& request);
  S3Answer Complete(const std::string& name, const S3Request& request);

  const bool obeys_;
  int next_upload_ = 1;
  std::map<std::string, std::string> objects_;
  std::map<std::string, std::vector<std::string>> metadata_;  // Of objects, as header lines.
  std::string written_ = "2026-01-01T00:00:00.000Z";
  std::map<std::string, Upload> uploads_;
  std::map<std::string, std::string> last_put_;
};

}  // namespace varve::test
