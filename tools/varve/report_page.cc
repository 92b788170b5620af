#include "report_page.h"

#include <array>
#include <cstdio>
#include <random>

#include "report_assets.h"
#include "text.h"

namespace varve::cli {
namespace {

/// Returns the document with every text Printable.
Json Shown(const Json& json) {
  if (json.is_string()) {
    return Printable(json.get_ref<const std::string&>());
  }
  if (!json.is_structured()) {
    return json;
  }
  Json shown = json.is_object() ? Json::object() : Json::array();
  for (const auto& [name, value] : json.items()) {
    if (json.is_object()) {
      shown[Printable(name)] = Shown(value);
    } else {
      shown.push_back(Shown(value));
    }
  }
  return shown;
}

/// Returns JSON that no parser of HTML takes for markup, wherever it stands.
std::string WithoutMarkup(const std::string& json) {
  std::string safe;
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      safe += code.data();
    } else {
      safe.push_back(c);
    }
  }
  return safe;
}

/// Returns 32 hex digits that no process which wrote into the run could know: only scripts of the
/// page's own carry them.
std::string Nonce() {
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) {
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "%08x", random());
    nonce += text.data();
  }
  return nonce;
}

}  // namespace

std::string PageOf(const Json& report) {
  const std::string nonce = Nonce();
  const auto script = [&](std::string_view text) {
    return "<script nonce=\"" + nonce + "\">" + std::string(text) + "</script>\n";
  };
  const auto data = [](const std::string& id, const std::string& json) {
    return R"(<script type="application/json" id=")" + id + "\">" + WithoutMarkup(json) +
           "</script>\n";
  };
  // No network, whatever a browser might try.
  return std::string(kPageBegin) +
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
         "style-src 'unsafe-inline'; img-src data:; script-src 'nonce-" +
         nonce +
         "'\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<link rel=\"icon\" href=\"data:,\">\n<title>varve report</title>\n<style>\n" +
         std::string(kReportStyle) +
         "</style>\n</head>\n<body>\n<noscript>This page needs scripts; it loads none from "
         "elsewhere. `varve report --json` prints the same numbers.</noscript>\n" +
         data("report", ToLine(Shown(report))) +
         data("license", ToLine(Json(std::string(kChartLibraryLicense)))) + script(kChartLibrary) +
         script(kReportScript) + "</body>\n</html>\n";
}

}  // namespace varve::cli
