#include "catalogue/unknown_file.h"

#include <algorithm>
#include <array>

namespace varve {
namespace {

using namespace std::string_view_literals;

struct Sign {
  std::size_t at;
  std::string_view bytes;
  std::string_view meaning;
};

constexpr auto kSigns = std::to_array<Sign>({
    {0, "\x93NUMPY"sv, "a NumPy array (.npy)"},
    {0, "GGUF"sv, "a GGUF model (.gguf)"},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file (.h5)"},
    {0, "PK\x03\x04"sv, "a zip archive (.zip)"},
    {0, "PK\x05\x06"sv, "an empty zip archive (.zip)"},
    {257, "ustar"sv, "a tar archive (.tar)"},
    {0, "\x1f\x8b"sv, "a gzip file (.gz)"},
    {0, "\x28\xb5\x2f\xfd"sv, "a Zstandard file (.zst)"},
    {0, "\xfd\x37zXZ"sv, "an xz file (.xz)"},
    {0, "BZh"sv, "a bzip2 file (.bz2)"},
    {0, "PAR1"sv, "a Parquet file"},
    {0, "\x7f\x45LF"sv, "a program or a library"},
});

/// Returns true for bytes without control characters except those of lines and tabs; bytes above
/// ASCII may be UTF-8.
bool IsText(std::string_view head) {
  return !head.empty() && std::all_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 ? byte != 0x7F : c == '\n' || c == '\r' || c == '\t' || c == '\f';
  });
}

bool IsPickle(std::string_view head) {
  return head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

}  // namespace

std::string_view LooksLike(std::string_view head, std::string_view name) {
  if (head.empty()) {
    return "an empty file";
  }
  for (const Sign& sign : kSigns) {
    if (head.size() > sign.at && head.substr(sign.at).starts_with(sign.bytes)) {
      return sign.meaning;
    }
  }
  // A protobuf of ONNX begins with its version and has no sign of its own.
  if (head[0] == '\x08' && name.ends_with(".onnx")) {
    return "an ONNX model (.onnx)";
  }
  if (IsPickle(head)) {
    return "a pickle that torch.save did not write";
  }
  if (IsText(head)) {
    const std::size_t first = head.find_first_not_of(" \r\n\t");
    const bool json = first != std::string_view::npos && (head[first] == '{' || head[first] == '[');
    return json ? "JSON text" : "text";
  }
  return {};
}

}  // namespace varve
