/// The place of a stored chunk's bytes. Native chunks are row-major runs of a file already; chunks
/// of other software may sit inside an archive, have strides of their own, or be compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "pipeline/file_reader.h"
#include "tensor/region.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// A chunk as plain elements: in a file, or unpacked in memory.
struct ChunkSource {
  Extent extent{};    ///< kPlain.
  Strides strides{};  ///< Of the elements; empty means row-major.
  bool conj = false;
  bool neg = false;
  std::optional<RecordSum> record{};  ///< The stored record the elements are in, with its CRC.
  std::shared_ptr<const std::string> unpacked{};  ///< Row-major elements, instead of the extent.
};

/// Looks into the chunk's archive, if it has one. Unpacks zstd streams, and strides that are not a
/// permutation of a packed tensor; the latter takes memory for one chunk. Errors: DataLoss when the
/// archive does not hold the tensor the index promises.
Result<ChunkSource> ResolveChunk(const TensorMetadata& tensor, const Chunk& chunk,
                                 ReadableFile& file);

/// Returns the correspondence between a chunk that lies at `source` and memory, for their common
/// part: the dimensions are put in the order in which the chunk has them, and where elements do not
/// begin at multiples of their size in the file, their bytes are a dimension of their own.
Region ChunkRegion(Box chunk, const ChunkSource& source, StridedMemory memory, Box common);

/// Conjugates or negates the `common` part of `memory`. Errors: Unimplemented for a dtype that
/// neither is defined for.
Status ApplySigns(bool conj, bool neg, DType dtype, const StridedMemory& memory, const Box& common);

/// Decompresses a zstd stream that holds an archive of at most `max_bytes`. Errors: DataLoss.
Result<std::string> DecompressArchive(std::string_view stream, std::uint64_t max_bytes);

}  // namespace varve
