#include "storage/s3/signature.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <span>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "base/checksum.h"
#include "storage/s3/object_name.h"

namespace varve::s3 {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr std::size_t kDateDigits = 8;

const unsigned char* AsUnsigned(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string Hmac(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), AsUnsigned(text), text.size(),
         digest.data(), &size);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

std::string HexOf(std::string_view bytes) {
  return Hex(std::span(AsUnsigned(bytes), bytes.size()));
}

/// Returns `value` without blanks at its ends and with one for each run of them.
std::string Trimmed(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c != ' ' || (!out.empty() && out.back() != ' ')) {
      out += c;
    }
  }
  while (out.ends_with(' ')) {
    out.pop_back();
  }
  return out;
}

}  // namespace

std::string Sha256Hex(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(AsUnsigned(text), text.size(), digest.data());
  return Hex(digest);
}

std::string CanonicalQuery(NameValues query) {
  for (auto& [name, value] : query) {
    name = UriEncode(name, /*keep_slashes=*/false);
    value = UriEncode(value, /*keep_slashes=*/false);
  }
  std::sort(query.begin(), query.end());
  std::string out;
  for (const auto& [name, value] : query) {
    out += out.empty() ? "" : "&";
    out += name;
    out += '=';
    out += value;
  }
  return out;
}

std::string AmzDate(std::int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  return {text.data(), size};
}

std::string Authorization(const ToSign& request, const Credentials& credentials,
                          std::string_view region, std::string_view service,
                          std::string_view amz_date) {
  NameValues headers = request.headers;
  std::sort(headers.begin(), headers.end());
  std::string canonical_headers;
  std::string names;
  for (const auto& [name, value] : headers) {
    canonical_headers += name + ':' + Trimmed(value) + '\n';
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical = request.method + '\n' + request.path + '\n' +
                                CanonicalQuery(request.query) + '\n' + canonical_headers + '\n' +
                                names + '\n' + request.payload;
  const std::string date(amz_date.substr(0, kDateDigits));
  const std::string scope =
      date + '/' + std::string(region) + '/' + std::string(service) + "/aws4_request";
  const std::string to_sign = std::string(kAlgorithm) + '\n' + std::string(amz_date) + '\n' +
                              scope + '\n' + Sha256Hex(canonical);
  std::string key = Hmac("AWS4" + credentials.secret_key, date);
  key = Hmac(Hmac(Hmac(key, region), service), "aws4_request");
  return std::string(kAlgorithm) + " Credential=" + credentials.access_key + '/' + scope +
         ",SignedHeaders=" + names + ",Signature=" + HexOf(Hmac(key, to_sign));
}

}  // namespace varve::s3
