/// AWS Signature Version 4 in request headers. Pure. The rules are those of "Authenticating
/// Requests: Using the Authorization Header" in the Amazon S3 API reference; its examples are the
/// tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "storage/s3/shared.h"

namespace varve::s3 {

struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  ///< Empty: none.
  /// Empty keys stand for requests without a signature.
  [[nodiscard]] bool anonymous() const { return access_key.empty(); }
};

/// A request as far as its signature goes.
struct ToSign {
  std::string method;
  std::string path;    ///< From '/' on, percent-encoded.
  NameValues query;    ///< Not encoded, in any order.
  NameValues headers;  ///< Names in lower case; "host" and "x-amz-date" are among them.
  std::string payload = "UNSIGNED-PAYLOAD";  ///< Or the SHA-256 of the body in hex.
};

/// Returns "name=value&..." in the order and encoding that a signature covers.
std::string CanonicalQuery(NameValues query);

/// Returns the time in the form "20130524T000000Z".
std::string AmzDate(std::int64_t unix_seconds);

/// Returns the value of the header Authorization. `amz_date` is that of the header x-amz-date.
std::string Authorization(const ToSign& request, const Credentials& credentials,
                          std::string_view region, std::string_view service,
                          std::string_view amz_date);

/// Returns the SHA-256 in lower-case hex.
std::string Sha256Hex(std::string_view text);

}  // namespace varve::s3
