// The dtype that a model's configuration states.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_parser.h"
#include "convert/writers.h"

namespace varve {

std::string WithDType(const std::string& config, DType dtype) {
  JsonParser parser;
  const auto root = parser.Parse(config);
  if (root.error() != simdjson::SUCCESS || !root.is_object()) {
    return config;
  }
  // The text is JSON, so strings end and containers are closed. Everything else stays as it is.
  const std::string_view text = config;
  std::string out;
  std::vector<bool>
      of_model;  // For each open container: whether it configures the model or a part.
  std::string_view key;
  bool is_value = false;
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size(); at = end) {
    end = at + 1;
    switch (text[at]) {
      case '{':
        of_model.push_back(of_model.empty() ||
                           (of_model.back() && is_value && key.ends_with("_config\"") &&
                            key != "\"quantization_config\""));
        is_value = false;
        break;
      case '[': of_model.push_back(false); break;
      case '}':
      case ']': of_model.pop_back(); break;
      case ':': is_value = true; break;
      case ',': is_value = false; break;
      case '"':
        while (text[end] != '"') {
          end += text[end] == '\\' ? 2 : 1;
        }
        ++end;
        if (!is_value) {
          key = text.substr(at, end - at);
        } else if (of_model.back() && (key == "\"dtype\"" || key == "\"torch_dtype\"")) {
          out += '"';
          out += DTypeName(dtype);
          out += '"';
          continue;
        }
        break;
      default: break;
    }
    out += text.substr(at, end - at);
  }
  return out;
}

}  // namespace varve
