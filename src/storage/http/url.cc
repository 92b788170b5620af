#include "storage/http/url.h"

#include <algorithm>
#include <cctype>
#include <memory>

#include <curl/curl.h>

#include "base/ascii.h"

namespace varve::http {
namespace {

constexpr std::string_view kSeparator = "://";
constexpr std::string_view kHexDigits = "0123456789ABCDEF";

bool IsHex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

/// Returns true for the characters that a URL's path holds as they are (RFC 3986, 3.3), and '/'.
bool IsOfPath(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-._~!$&'()*+,;=:@/").find(c) != std::string_view::npos;
}

/// Appends the path of a URL. A '%' that begins no %XX is one itself.
void AppendPath(std::string_view path, std::string* out) {
  for (std::size_t i = 0; i < path.size(); ++i) {
    const char c = path[i];
    const bool escape = c == '%' && path.size() - i > 2 && IsHex(path[i + 1]) && IsHex(path[i + 2]);
    if (escape || (IsOfPath(c) && static_cast<unsigned char>(c) < 0x80)) {
      *out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    *out += '%';
    *out += kHexDigits[byte >> 4];
    *out += kHexDigits[byte & 15];
  }
}

struct FreeUrl {
  void operator()(CURLU* url) const { ::curl_url_cleanup(url); }
};
using ParsedUrl = std::unique_ptr<CURLU, FreeUrl>;

std::string PartOf(const ParsedUrl& url, CURLUPart part, unsigned int flags = 0) {
  char* text = nullptr;
  if (::curl_url_get(url.get(), part, &text, flags) != CURLUE_OK || text == nullptr) {
    return {};
  }
  std::string out(text);
  ::curl_free(text);
  return out;
}

Result<ParsedUrl> Parse(const std::string& url) {
  ParsedUrl parsed(::curl_url());
  if (parsed == nullptr || ::curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(),
                                          CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK) {
    return InvalidArgument("what follows :// is no host and path");
  }
  return parsed;
}

bool HasUser(const ParsedUrl& url) {
  return !PartOf(url, CURLUPART_USER).empty() || !PartOf(url, CURLUPART_PASSWORD).empty();
}

Status Refused(std::string_view shown, std::string_view why) {
  return InvalidArgument("\"" + std::string(shown) + "\"" + std::string(why));
}

/// Returns a name up to `end`, for a message. Where there is an "@" what is before it may be a
/// password, whose "/", "?" or "#" seems to end the host: then nothing behind the scheme is shown.
std::string Shown(std::string_view name, std::size_t host_at, std::size_t end) {
  return name.find('@') == std::string_view::npos ? std::string(name.substr(0, end))
                                                  : std::string(name.substr(0, host_at)) + "...";
}

}  // namespace

std::string_view SchemeOfUrl(std::string_view name) {
  for (const std::string_view scheme : {"http", "https"}) {
    if (name.starts_with(scheme) && name.substr(scheme.size()).starts_with(kSeparator)) {
      return scheme;
    }
  }
  return {};
}

Result<std::string> CheckUrl(std::string_view name) {
  const std::size_t host_at = SchemeOfUrl(name).size() + kSeparator.size();
  const std::size_t path_at = std::min(name.find_first_of("/?#", host_at), name.size());
  const std::string_view host = name.substr(host_at, path_at - host_at);
  if (const std::size_t at = host.rfind('@'); at != std::string_view::npos) {
    return Refused(std::string(name.substr(0, host_at)) + "..." + std::string(host.substr(at)),
                   ": a name with a user or a password would show them in messages and logs; put "
                   "them into ~/.netrc");
  }
  if (const std::size_t query = name.find_first_of("?#"); query != std::string_view::npos) {
    return Refused(Shown(name, host_at, query),
                   " is followed by a query (?...) or a fragment (#...): files of a checkpoint "
                   "are names joined to its URL, and a query that is a key would be shown in "
                   "messages and logs; give a URL without, or download the file");
  }
  while (name.ends_with('/') && name.size() > path_at + 1) {
    name.remove_suffix(1);
  }
  if (host.empty() || !OriginOf(RequestUrl(name)).ok()) {
    return Refused(Shown(name, host_at, name.size()), ": want https://host/path");
  }
  return std::string(name);
}

std::string RequestUrl(std::string_view name) {
  const std::size_t host_at = SchemeOfUrl(name).size() + kSeparator.size();
  const std::size_t path_at = std::min(name.find('/', host_at), name.size());
  std::string url(name.substr(0, path_at));
  AppendPath(path_at == name.size() ? "/" : name.substr(path_at), &url);
  return url;
}

Result<Origin> OriginOf(const std::string& url) {
  VARVE_ASSIGN_OR_RETURN(const ParsedUrl parsed, Parse(url));
  Origin origin{PartOf(parsed, CURLUPART_SCHEME), PartOf(parsed, CURLUPART_HOST),
                PartOf(parsed, CURLUPART_PORT, CURLU_DEFAULT_PORT)};
  std::transform(origin.host.begin(), origin.host.end(), origin.host.begin(), InSmallLetters);
  if ((origin.scheme != "http" && origin.scheme != "https") || origin.host.empty()) {
    return InvalidArgument("neither http nor https");
  }
  return origin;
}

bool IsLoopback(std::string_view host) {
  const bool number = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return host == "localhost" || host == "[::1]" || (number && host.starts_with("127."));
}

Result<std::string> Redirected(const std::string& url, const std::string& location) {
  const auto parsed = Parse(url);
  if (!parsed.ok() || ::curl_url_set(parsed->get(), CURLUPART_URL, location.c_str(),
                                     CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK) {
    return Unimplemented("it redirects to what is no URL");
  }
  ::curl_url_set(parsed->get(), CURLUPART_FRAGMENT, nullptr, 0);
  if (HasUser(*parsed)) {
    return Unimplemented("it redirects to a URL with a user or a password");
  }
  std::string next = PartOf(*parsed, CURLUPART_URL);
  const auto origin = OriginOf(next);
  if (!origin.ok()) {
    return Unimplemented("it redirects to what is neither http nor https");
  }
  if (url.starts_with("https://") && origin->scheme != "https") {
    return Unimplemented("it redirects from https to http (" + origin->host +
                         "), which is not followed: anybody could answer there");
  }
  return next;
}

}  // namespace varve::http
