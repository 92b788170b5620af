/// The directory of a zip file, ZIP64 included: where the stored records lie. No decompression.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve {

/// Bytes [begin, begin + size) of whatever is being decoded. The decoders ask for few, small
/// ranges and never for one outside [0, total size).
using RangeReader = std::function<Result<std::string>(std::uint64_t begin, std::uint64_t size)>;

/// Returns a RangeReader over bytes in memory, which must outlive it.
RangeReader ReadFrom(std::string_view bytes);

struct ZipRecord {
  std::string name;
  std::uint64_t header_begin = 0;  ///< Of the local header.
  std::uint64_t size = 0;
  std::uint32_t crc32 = 0;  ///< CRC-32 of the content; 0 when the writer left it out.
  std::uint64_t limit = 0;  ///< Where the next record or the directory begins: content ends before.
};

/// Reads the records of a zip file of `size` bytes, in the directory's order; no two of them have
/// the same name or share bytes. Two reads for a directory of up to 1 KiB with what follows it.
/// Errors: DataLoss for what is malformed or points outside the file; Unimplemented for compressed
/// or encrypted records and directories of more than 256 MiB.
Result<std::vector<ZipRecord>> ReadZipDirectory(std::uint64_t size, const RangeReader& read);

/// Returns the beginning of the record's content, from its local header, which must agree with the
/// directory. Errors: DataLoss.
Result<std::uint64_t> FindRecordContent(const ZipRecord& record, std::uint64_t size,
                                        const RangeReader& read);

}  // namespace varve
