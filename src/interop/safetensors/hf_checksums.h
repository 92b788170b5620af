/// `model.varve-checksums.json`: checksums of the safetensors files of a folder, which Hugging
/// Face's tools pass over:
///   {"format":"varve-checksums","version":1,"block_bytes":1048576,
///    "files":{"model.safetensors":{"size":2097160,"crc32c":"00112233445566778899aabb"}}}
/// The text of crc32c is, block by block of a file, its CRC-32C as 8 hex digits; the last block may
/// be short. A file that is rewritten by another program no longer matches.
#pragma once

#include <string>
#include <string_view>

#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

inline constexpr std::string_view kHfChecksumsName = "model.varve-checksums.json";

/// Describes the files of `metadata`, with their checksums.
std::string EncodeHfChecksums(const Metadata& metadata);

/// Gives `metadata` the checksums of its files. Files that the text does not name get none. Errors:
/// DataLoss for malformed text, and where a file has another size than its checksums are of.
Status DecodeHfChecksums(std::string_view json, Metadata* metadata);

}  // namespace varve
