/// `model.varve-checksums.json`: checksums of the files of a folder of safetensors files, which
/// Hugging Face's tools pass over:
///   {"format":"varve-checksums","version":1,"block_bytes":1048576,
///    "files":{"model.safetensors":{"size":2101248,"header_bytes":4096,
///     "header_crc32c":"01234567","crc32c":"00112233445566778899aabb"}},
///    "side_files":{"config.json":{"bytes":654,"crc32c":"89abcdef"}},"crc32c":"fedcba98"}
/// `files` are the data files of the index, all of them and no other. The text of a file's crc32c
/// is, block by block, its CRC-32C as 8 hex digits; the last block may be short. Its header, which
/// is the length prefix and the JSON, has a checksum of its own. `side_files` are saved with the
/// tensors (catalogue/side_files.h). The last member is the checksum of this text, in which its own
/// digits count as zeros. A file that is rewritten by another program no longer matches.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "interop/safetensors/decode.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

inline constexpr std::string_view kHfChecksumsName = "model.varve-checksums.json";

struct HfChecksums {
  struct File {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t header_bytes = 0;
    std::uint32_t header_crc32c = 0;
    std::vector<std::uint32_t> block_crc32c;
    friend bool operator==(const File&, const File&) = default;
  };
  std::uint64_t block_bytes = 0;
  std::vector<File> files;             ///< By name.
  std::vector<StoredFile> side_files;  ///< By name.
  [[nodiscard]] const File* Find(std::string_view name) const;
  friend bool operator==(const HfChecksums&, const HfChecksums&) = default;
};

/// Encodes the text. `files` need not be in order.
std::string EncodeHfChecksums(const HfChecksums& checksums);

/// Decodes the text. Errors: DataLoss for malformed text and for one whose own checksum does not
/// match; Unimplemented for another version.
Result<HfChecksums> DecodeHfChecksums(std::string_view json);

/// Returns true when the file has the size and the header that Varve wrote. Errors: those of
/// reading.
Result<bool> HasWrittenHeader(const HfChecksums::File& wanted, const NamedFile& file);

/// Checks a file's size and header. Errors: DataLoss.
Status CheckHfFile(const HfChecksums::File& wanted, const NamedFile& file);

/// Gives the files and side files of the folder's `metadata` their checksums. `files` are the data
/// files, in any order. Errors: DataLoss, naming the file, where the folder has another set of
/// files, and where a file has another size or another header.
Status ApplyHfChecksums(HfChecksums checksums, const std::vector<NamedFile>& files,
                        Metadata* metadata);

}  // namespace varve
