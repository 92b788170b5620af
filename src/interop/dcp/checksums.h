/// The attribute that Varve adds to a DCP index and that PyTorch keeps and ignores: block checksums
/// of the data files, the beginning of each payload, and a digest of the index itself. With them a
/// load checks every byte and need not look into the archives.
///
/// The attribute is the last thing in the pickle, so that the digest can be that of all bytes
/// before it, by any writer. Its value: version, length and XXH3-128 of what precedes the
/// attribute, bytes of a block, files (name, size, CRC-32C of every block), for each chunk in the
/// order of Metadata::tensors its payload's offset in its item or 0, and a CRC-32C of all that.
/// With side files the version is 2, and the files (name, size, CRC-32C) come before the last
/// CRC-32C.
#pragma once

#include <string>
#include <string_view>

#include "base/bytes.h"
#include "interop/dcp/metadata.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// The attribute's name.
inline constexpr std::string_view kDcpChecksums = "varve_checksums";

/// Adds the attribute to `*index`, a pickle that decodes to `metadata` and whose last object is the
/// one of class Metadata. Of `metadata`, files have size and block checksums, chunks their payload.
/// Errors: InvalidArgument when the pickle ends otherwise than with that object's attributes.
Status AppendDcpChecksums(const Metadata& metadata, std::string* index);

/// Returns true when the attribute stands in the pickle, whether or not a reader finds it: damage
/// before it may have made it part of something else.
[[nodiscard]] bool HoldsDcpChecksums(std::string_view index);

/// Checks `attribute`, which `index` holds, against the rest of `index`, and fills `metadata` (as
/// decoded from it): sizes and checksums of files, payloads of chunks, side files. Errors: DataLoss
/// when the attribute is malformed or the index is not the one it was made for; Unimplemented for a
/// newer one.
Status ApplyDcpChecksums(std::string_view index, std::string_view attribute, Metadata* metadata);

}  // namespace varve
