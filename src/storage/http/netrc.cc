#include "storage/http/netrc.h"

#include <vector>

#include "base/bytes.h"
#include "storage/http/transport.h"

namespace varve::http {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

/// Returns the words of the file, without macros, which end with an empty line.
std::vector<std::string_view> WordsOf(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) {
      return words;
    }
    text.remove_prefix(begin);
    if (text.starts_with('#')) {
      text.remove_prefix(std::min(text.find('\n'), text.size()));
      continue;
    }
    if (text.starts_with("macdef")) {
      text.remove_prefix(std::min(text.find("\n\n"), text.size()));
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(kBlanks), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

}  // namespace

std::optional<std::string> BasicAuthorization(std::string_view netrc, std::string_view host) {
  const std::vector<std::string_view> words = WordsOf(netrc);
  std::string_view login;
  std::string_view password;
  bool here = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "default") {
      here = false;
    }
    if (words[i] == "machine" || words[i] == "login" || words[i] == "password" ||
        words[i] == "account") {
      const std::string_view value = i + 1 < words.size() ? words[i + 1] : std::string_view();
      if (words[i] == "machine") {
        if (here && !(login.empty() && password.empty())) {
          break;  // The first entry of a host counts.
        }
        here = value == host;
      } else if (here && words[i] == "login") {
        login = value;
      } else if (here && words[i] == "password") {
        password = value;
      }
      ++i;
    }
  }
  if (login.empty() && password.empty()) {
    return std::nullopt;
  }
  return "Basic " + Base64(AsByteSpan(std::string(login) + ":" + std::string(password)));
}

}  // namespace varve::http
