/// What Varve adds to a DCP index it writes, as an attribute that PyTorch keeps and ignores: block
/// checksums of the data files, where each payload begins, and a digest of the index itself. With
/// them a load checks every byte and need not look into the archives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "interop/dcp_metadata.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// The attribute's name.
inline constexpr std::string_view kDcpChecksums = "varve_checksums";

/// Bytes from an item's begin to its payload, for each chunk in the order of Metadata::tensors and
/// their chunks; 0 where that is not known, or the item is no row-major tensor of its own.
using PayloadOffsets = std::vector<std::uint64_t>;

/// `metadata` as it is encoded: extents are whole items, files have size and block checksums.
Bytes EncodeDcpChecksums(const Metadata& metadata, const PayloadOffsets& payloads);

/// Checks the digest and fills `metadata` (as decoded from the same index): sizes and checksums of
/// files, and plain extents of the chunks whose payload offset is known. Errors: DataLoss when the
/// attribute is malformed or the index is not the one it was made for; Unimplemented for a newer
/// one.
Status ApplyDcpChecksums(std::string_view attribute, Metadata* metadata);

}  // namespace varve
