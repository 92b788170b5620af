/// What there is to know of a staged copy beside its bytes, so that another process can use it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/fields.h"
#include "varve/status.h"

namespace varve {

/// What stays known of a segment when its source is gone.
struct StagedPart {
  std::uint64_t end = 0;  ///< In the file, from its data on.
  bool content = false;
  friend bool operator==(const StagedPart&, const StagedPart&) = default;
};

/// A file's data, cut into units of StagedUnitBytes that each lie at the beginning of a block of
/// kPoolBlockBytes. The last unit may be shorter; it is followed by zeros to the end of its page.
struct StagedImage {
  std::uint64_t checksum_block_bytes = 0;
  std::vector<StagedPart> parts;
  std::vector<std::uint64_t> blocks;  ///< In file order: number of the block in its pool.
  std::vector<std::uint32_t> crc32c;  ///< Of all checksum blocks, in file order.
  /// Those of `blocks`, by their place in it and ascending, that did not get pages of 2 MiB.
  std::vector<std::uint64_t> in_small_pages;
  [[nodiscard]] std::uint64_t bytes() const { return parts.empty() ? 0 : parts.back().end; }
  friend bool operator==(const StagedImage&, const StagedImage&) = default;
};

/// Whole checksum blocks, at most a pool's block.
std::uint64_t StagedUnitBytes(std::uint64_t checksum_block_bytes);

/// For processes of one version of Varve on one machine; never stored.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, StagedImage>& image);
Bytes EncodeStagedImage(const StagedImage& image);
/// Errors: DataLoss; also for what CheckStagedImage refuses.
Result<StagedImage> DecodeStagedImage(std::string_view bytes, std::uint64_t pool_blocks);

/// True to itself, and within a pool of that many blocks. Errors: DataLoss.
Status CheckStagedImage(const StagedImage& image, std::uint64_t pool_blocks);

}  // namespace varve
