/// The description of a staged copy, by which another process can use its bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/fields.h"
#include "varve/status.h"

namespace varve {

/// A segment of a staged copy, without its source.
struct StagedPart {
  std::uint64_t end = 0;  ///< End of the part, bytes from the beginning of the data.
  bool content = false;
  friend bool operator==(const StagedPart&, const StagedPart&) = default;
};

/// A file's data, cut into units of StagedUnitBytes that each lie at the beginning of a block of
/// kPoolBlockBytes. The last unit may be shorter; it is followed by zeros to the end of its page.
struct StagedImage {
  std::uint64_t checksum_block_bytes = 0;
  std::vector<StagedPart> parts;
  std::vector<std::uint64_t> blocks;  ///< In file order: number of the block in its pool.
  std::vector<std::uint32_t> crc32c;  ///< Checksums of all checksum blocks, in file order.
  /// Blocks that did not get pages of 2 MiB, by their place in `blocks`, ascending.
  std::vector<std::uint64_t> in_small_pages;
  [[nodiscard]] std::uint64_t bytes() const { return parts.empty() ? 0 : parts.back().end; }
  friend bool operator==(const StagedImage&, const StagedImage&) = default;
};

/// Returns the size of a unit, bytes: whole checksum blocks, at most a pool's block.
std::uint64_t StagedUnitBytes(std::uint64_t checksum_block_bytes);

/// For processes of one version of Varve on one machine; never stored.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, StagedImage>& image);
Bytes EncodeStagedImage(const StagedImage& image);
/// Decodes an image. Errors: DataLoss; also for images that CheckStagedImage refuses.
Result<StagedImage> DecodeStagedImage(std::string_view bytes, std::uint64_t pool_blocks);

/// Checks that the image is consistent and lies within a pool of that many blocks. Errors:
/// DataLoss.
Status CheckStagedImage(const StagedImage& image, std::uint64_t pool_blocks);

}  // namespace varve
