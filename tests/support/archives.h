/// Zip archives made by hand, and readers that record their reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "interop/zip/directory.h"
#include "support/test_data.h"

namespace varve::test {

/// Returns a number as `bytes` little-endian bytes.
inline std::string Le(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(value >> (8 * i));
  }
  return out;
}

/// Returns `bytes` with `value` written over it at `at`.
inline std::string With(std::string bytes, std::size_t at, std::string_view value) {
  return bytes.replace(at, value.size(), value);
}

inline std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

/// One record as it is to be written.
struct ZipPart {
  std::string name;
  std::string content;
  std::uint32_t crc32 = 0;
  std::uint16_t method = 0;
  std::uint16_t flags = 0;
  std::string local_extra{};
  bool zip64 = false;  ///< The directory gives sizes and place in a ZIP64 field.
};

inline std::string CentralEntry(const ZipPart& part, std::uint64_t header_begin) {
  const std::uint64_t size = part.content.size();
  const std::string extra =
      part.zip64 ? Le(1, 2) + Le(24, 2) + Le(size, 8) + Le(size, 8) + Le(header_begin, 8) : "";
  const auto field = [&](std::uint64_t value) { return Le(part.zip64 ? 0xFFFFFFFF : value, 4); };
  return "PK\1\2" + Le(0, 4) + Le(part.flags, 2) + Le(part.method, 2) + Le(0, 4) +
         Le(part.crc32, 4) + field(size) + field(size) + Le(part.name.size(), 2) +
         Le(extra.size(), 2) + Le(0, 2) + Le(0, 2) + Le(0, 6) + field(header_begin) + part.name +
         extra;
}

/// Returns the end records for a directory that begins at `begin`.
inline std::string EndOfZip(std::uint64_t count, std::uint64_t begin, std::uint64_t bytes,
                            bool zip64, const std::string& comment = "") {
  std::string out;
  if (zip64) {
    out += "PK\6\6" + Le(44, 8) + Le(0, 4) + Le(0, 8) + Le(count, 8) + Le(count, 8) + Le(bytes, 8) +
           Le(begin, 8);
    out += "PK\6\7" + Le(0, 4) + Le(begin + bytes, 8) + Le(1, 4);
  }
  return out + "PK\5\6" + Le(0, 4) + Le(count, 2) + Le(count, 2) + Le(bytes, 4) + Le(begin, 4) +
         Le(comment.size(), 2) + comment;
}

/// Returns an archive with these records, as torch lays them out when `zip64`.
inline std::string ZipOf(const std::vector<ZipPart>& parts, bool zip64 = true,
                         const std::string& comment = "") {
  std::string out;
  std::string directory;
  for (const ZipPart& part : parts) {
    directory += CentralEntry(part, out.size());
    out += "PK\3\4" + Le(0, 2) + Le(part.flags, 2) + Le(part.method, 2) + Le(0, 4) +
           Le(part.crc32, 4) + Le(part.content.size(), 4) + Le(part.content.size(), 4) +
           Le(part.name.size(), 2) + Le(part.local_extra.size(), 2) + part.name + part.local_extra +
           part.content;
  }
  const std::uint64_t begin = out.size();
  out += directory;
  return out + EndOfZip(parts.size(), begin, directory.size(), zip64, comment);
}

/// The reads that were asked of a reader.
struct Asked {
  int reads = 0;
  std::uint64_t largest = 0;
};

/// Gives bytes of `file`; a range outside it fails the test.
inline RangeReader Watched(std::string_view file, Asked* asked = nullptr) {
  return [file, asked](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
    if (asked != nullptr) {
      ++asked->reads;
      asked->largest = std::max(asked->largest, size);
    }
    if (begin > file.size() || size > file.size() - begin) {
      ADD_FAILURE() << "read of " << size << " bytes from byte " << begin << " of " << file.size();
      return Internal("outside the file");
    }
    return std::string(file.substr(begin, size));
  };
}

/// Returns a file of tests/golden.
inline std::string Golden(const std::string& name) {
  std::ifstream file(TestData() / "golden" / name, std::ios::binary);
  EXPECT_TRUE(file) << "no golden file " << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace varve::test
