/// Small data files and metadata, and ways to tamper with their encoded forms.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "format/data_file.h"
#include "format/manifest.h"

namespace varve::test {

/// Returns bytes 0, 1, ... 15, plus `first`.
SaveId SaveIdFrom(std::uint8_t first);

/// Returns a laid-out header of rank `rank` of `world_size` that holds these chunks (fqn, dtype,
/// shape and box are enough) and objects of one byte each, with checksums that differ from one
/// another.
DataFileHeader HeaderWith(std::uint32_t rank, std::uint32_t world_size,
                          std::vector<StoredChunk> chunks,
                          const std::vector<std::string>& objects = {});

/// Returns a header with whole, sharded, twice-sharded, byte-typed, empty and 0-d tensors, two
/// objects and a structure; several checksum blocks.
DataFileHeader SampleHeader();

/// Returns the header's encoding; fails the test when there is none.
Bytes MustEncode(const DataFileHeader& header);

/// Returns a header with its checksum as the encoding has it, ready for MergeHeaders.
CheckedHeader Checked(const DataFileHeader& header);

/// Returns the metadata of two files.
Metadata SampleMetadata();

/// Returns `bytes` with the header's own checksum made right again.
Bytes ResealHeader(Bytes bytes);

/// Returns the frame of a manifest whose plain content is `plain`, framed with right checksums.
Bytes SealManifest(std::string_view plain, std::uint32_t version);
/// Returns the plain content of a manifest's frame.
Bytes PlainOfManifest(std::string_view manifest);

}  // namespace varve::test
