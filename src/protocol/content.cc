#include "base/bytes.h"
#include "protocol/strided.h"
#include "tensor/box.h"
#include "tensor/region.h"
#include "varve/protocol/storage_layer.h"

namespace varve::protocol {

std::string ContentOf(const WriteItem& item, const ItemData& data) {
  if (!item.tensor_data) {
    return std::string(data.bytes);
  }
  const Box& chunk = item.tensor_data->chunk;
  std::string content(ItemBytes(item), '\0');
  if (!content.empty()) {
    // The region reads through this pointer and does not write.
    auto* memory = static_cast<std::byte*>(const_cast<void*>(data.data));
    const Region region(chunk,
                        {memory, chunk, StridesOr(data.strides, chunk.sizes),
                         ItemSize(item.tensor_data->properties.dtype)},
                        chunk);
    region.CopyFromMemory(0, std::as_writable_bytes(std::span(content.data(), content.size())));
  }
  return content;
}

Status CopyContent(const ReadItem& item, const ChunkStorageMetadata& chunk,
                   std::string_view content, const TensorMemory& memory) {
  const Box part{item.storage_offsets, item.lengths};
  const std::uint64_t item_size = ItemSize(memory.dtype);
  if (const Status status = CheckBox(chunk.sizes, part, item_size); !status.ok()) {
    return status.Annotate(ToString(item.storage_index));
  }
  const std::uint64_t wanted = Volume(chunk.sizes) * item_size;
  if (content.size() != wanted) {
    return DataLoss(ToString(item.storage_index) + ": " + std::to_string(content.size()) +
                    " bytes are stored, not " + std::to_string(wanted));
  }
  if (IsEmpty(part)) {
    return Status::Ok();
  }
  const Region region(WholeBox(chunk.sizes),
                      {static_cast<std::byte*>(memory.data), part,
                       StridesOr(memory.strides, part.sizes), item_size},
                      part);
  const ByteRange touched = region.extent();
  region.CopyToMemory(touched.begin,
                      AsByteSpan(content).subspan(touched.begin, touched.end - touched.begin));
  return Status::Ok();
}

}  // namespace varve::protocol
