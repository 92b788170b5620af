/// Functions for a backend that keeps plain bytes: from a planner's memory to bytes and back.
#pragma once

#include <string>
#include <string_view>

#include "varve/protocol/plan.h"
#include "varve/protocol/planner.h"
#include "varve/status.h"

namespace varve::protocol {

/// Returns the content of an item: a chunk's elements in row-major order, without gaps, or a
/// value's bytes. ItemBytes(item) of them for a tensor.
std::string ContentOf(const WriteItem& item, const ItemData& data);

/// Copies the part of a stored chunk that `item` asks for to where it belongs. `chunk` is the one
/// that item.storage_index names (Metadata::FindChunk), `content` the result of ContentOf when it
/// was written. Errors: DataLoss when `content` has another size than the chunk; InvalidArgument
/// when the item reaches outside of the chunk.
Status CopyContent(const ReadItem& item, const ChunkStorageMetadata& chunk,
                   std::string_view content, const TensorMemory& memory);

}  // namespace varve::protocol
