#include "format/json_writer.h"

#include <cstddef>

#include <simdjson.h>

namespace varve {

void AppendJsonString(std::string_view text, std::string* out) {
  static constexpr char kDigits[] = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20) {
      out->append("\\u00");
      out->push_back(kDigits[byte >> 4]);
      out->push_back(kDigits[byte & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void AppendJsonDims(const Dims& dims, std::string* out) {
  out->push_back('[');
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (d != 0) {
      out->push_back(',');
    }
    out->append(std::to_string(dims[d]));
  }
  out->push_back(']');
}

bool IsUtf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

}  // namespace varve
