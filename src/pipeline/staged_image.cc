#include "pipeline/staged_image.h"

#include <string>

#include "base/checked.h"
#include "pipeline/buffer_pool.h"
#include "varve/storage.h"

namespace varve {

std::uint64_t StagedUnitBytes(std::uint64_t checksum_block_bytes) {
  return kPoolBlockBytes / checksum_block_bytes * checksum_block_bytes;
}

Bytes EncodeStagedImage(const StagedImage& image) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.U64(image.checksum_block_bytes);
  out.Varint(image.parts.size());
  for (const StagedPart& part : image.parts) {
    out.Varint(part.end);
    out.U8(part.content ? 1 : 0);
  }
  out.VarintList(image.blocks);
  out.Varint(image.crc32c.size());
  for (const std::uint32_t crc : image.crc32c) {
    out.U32(crc);
  }
  out.VarintList(image.in_small_pages);
  return bytes;
}

Result<StagedImage> DecodeStagedImage(std::string_view bytes, std::uint64_t pool_blocks) {
  ByteReader in(bytes);
  StagedImage image;
  image.checksum_block_bytes = in.U64();
  const std::uint64_t parts = in.Count(2);
  image.parts.reserve(parts);
  for (std::uint64_t i = 0; i < parts && !in.failed(); ++i) {
    const std::uint64_t end = in.Varint();
    image.parts.push_back({end, in.U8() != 0});
  }
  in.VarintList(&image.blocks);
  const std::uint64_t sums = in.Count(4);
  image.crc32c.reserve(sums);
  for (std::uint64_t i = 0; i < sums && !in.failed(); ++i) {
    image.crc32c.push_back(in.U32());
  }
  in.VarintList(&image.in_small_pages);
  VARVE_RETURN_IF_ERROR(in.Finish());
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
