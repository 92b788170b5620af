#include "pipeline/staged_image.h"

#include <string>

#include "base/checked.h"
#include "pipeline/buffer_pool.h"
#include "varve/storage.h"

namespace varve {

std::uint64_t StagedUnitBytes(std::uint64_t checksum_block_bytes) {
  return kPoolBlockBytes / checksum_block_bytes * checksum_block_bytes;
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, StagedPart>& part) {
  archive(part.end, part.content);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, StagedImage>& image) {
  archive(image.checksum_block_bytes, image.parts, image.blocks);
  archive.Fixed(image.crc32c);
  archive(image.in_small_pages);
}

template void Fields(FieldWriter& archive, const StagedImage& image);
template void Fields(FieldReader& archive, StagedImage& image);

Bytes EncodeStagedImage(const StagedImage& image) { return EncodeFields(image); }

Result<StagedImage> DecodeStagedImage(std::string_view bytes, std::uint64_t pool_blocks) {
  VARVE_ASSIGN_OR_RETURN(StagedImage image, DecodeFields<StagedImage>(bytes));
  VARVE_RETURN_IF_ERROR(CheckStagedImage(image, pool_blocks));
  return image;
}

Status CheckStagedImage(const StagedImage& image, std::uint64_t pool_blocks) {
  if (image.checksum_block_bytes == 0 || image.checksum_block_bytes > kPoolBlockBytes ||
      image.checksum_block_bytes % kDirectAlignment != 0) {
    return DataLoss("a staged copy with checksum blocks of " +
                    std::to_string(image.checksum_block_bytes) + " bytes");
  }
  std::uint64_t end = 0;
  for (const StagedPart& part : image.parts) {
    if (part.end < end) {
      return DataLoss("a staged copy whose parts are out of order");
    }
    end = part.end;
  }
  if (image.blocks.size() != DivideUp(end, StagedUnitBytes(image.checksum_block_bytes)) ||
      image.crc32c.size() != DivideUp(end, image.checksum_block_bytes)) {
    return DataLoss("a staged copy of " + std::to_string(end) + " bytes in " +
                    std::to_string(image.blocks.size()) + " blocks with " +
                    std::to_string(image.crc32c.size()) + " checksums");
  }
  for (const std::uint64_t block : image.blocks) {
    if (block >= pool_blocks) {
      return DataLoss("a staged copy in block " + std::to_string(block) + " of a pool of " +
                      std::to_string(pool_blocks));
    }
  }
  for (const std::uint64_t place : image.in_small_pages) {
    if (place >= image.blocks.size()) {
      return DataLoss("a staged copy that has no block " + std::to_string(place));
    }
  }
  return Status::Ok();
}

}  // namespace varve
