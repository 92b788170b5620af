/// Writes zip files with stored records, front to back. Contents need not pass through: a header
/// says where they go, and the caller that writes the file puts them there. The reading side is
/// interop/zip/directory.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"

namespace varve {

/// A record to come.
struct ZipEntry {
  std::string_view name;  ///< UTF-8, less than 64 KiB.
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;      ///< Of the content; 0 where it is not known.
  std::uint64_t alignment = 1;  ///< The content begins at a multiple of it. At most 32 KiB.
  /// A ZipDescriptor follows the content, for a checksum that is unknown when the header is
  /// written. The directory has `crc32` all the same.
  bool descriptor = false;
};

/// Returns the descriptor with a record's checksum that follows its content: 16 bytes, 24 for a
/// content of 4 GiB and more.
Bytes ZipDescriptor(std::uint32_t crc32, std::uint64_t bytes);

/// Sizes and places of 4 GiB and more go into ZIP64 fields; no timestamps. The same calls always
/// give the same bytes.
class ZipWriter {
 public:
  /// Appends the header of a record to `*out`; its content, `entry.bytes` of them, comes next in
  /// the file. Alignment is made by an extra field `FB` filled with 'Z', as torch.save makes it;
  /// returns how many of these end the header.
  std::uint64_t AddHeader(const ZipEntry& entry, Bytes* out);

  /// Appends a record with its content.
  void AddRecord(std::string_view name, std::string_view content, std::uint64_t alignment,
                 Bytes* out);

  /// Appends the directory and the end records, ZIP64's among them whether needed or not, as
  /// torch.save does.
  void Finish(Bytes* out);

 private:
  std::uint64_t position_ = 0;  // In the file: where the next header comes.
  std::uint64_t count_ = 0;
  Bytes directory_;
};

}  // namespace varve
