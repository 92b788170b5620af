#include "catalogue/chunk_source.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include <zstd.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/checksum.h"
#include "interop/torch/archive.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// Most bytes that a decompressed archive may have beside its tensor: records, padding, the
/// directory.
constexpr std::uint64_t kArchiveSlack = std::uint64_t{1} << 20;

Result<std::string> ReadBytes(ReadableFile& file, std::uint64_t begin, std::uint64_t size) {
  if (begin > file.size() || size > file.size() - begin) {
    return DataLoss("bytes [" + std::to_string(begin) + ", " + std::to_string(begin + size) +
                    ") lie beyond the end of the file, at " + std::to_string(file.size()));
  }
  std::string bytes(size, '\0');
  VARVE_RETURN_IF_ERROR(
      file.ReadAt(begin, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  return bytes;
}

/// Returns the dimensions by falling stride, where the elements are packed in that order; nothing
/// when they overlap or leave gaps.
std::optional<std::vector<std::size_t>> PackedOrder(const Dims& sizes, const Strides& strides) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // A dimension of one element may have any stride; it goes to the front, where it disturbs none.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const bool one_a = sizes[a] == 1;
    const bool one_b = sizes[b] == 1;
    return one_a != one_b ? one_a : !one_a && strides[a] > strides[b];
  });
  std::int64_t expected = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t d = order[i];
    if (sizes[d] == 1) {
      continue;
    }
    if (strides[d] != expected) {
      return std::nullopt;
    }
    expected *= static_cast<std::int64_t>(sizes[d]);
  }
  return order;
}

/// Returns the elements at `bytes`, which have any strides, as a row-major run.
std::shared_ptr<const std::string> Pack(std::string* bytes, std::uint64_t offset, const Dims& sizes,
                                        const Strides& strides, std::uint64_t item_size) {
  const Box box = WholeBox(sizes);
  auto packed = std::make_shared<std::string>(Volume(sizes) * item_size, '\0');
  const StridedMemory memory{reinterpret_cast<std::byte*>(bytes->data()) + offset, box, strides,
                             item_size};
  Region(box, memory, box)
      .CopyFromMemory(0, std::as_writable_bytes(std::span(packed->data(), packed->size())));
  return packed;
}

/// Checks that an archive holds what the index promises.
Status CheckItem(const TensorItem& item, const TensorMetadata& tensor, const Chunk& chunk) {
  if (item.tensor.dtype != tensor.dtype || item.tensor.sizes != chunk.box.sizes) {
    return DataLoss("the stored item is " + std::string(DTypeName(item.tensor.dtype)) +
                    ToString(item.tensor.sizes) + ", the index promises " +
                    std::string(DTypeName(tensor.dtype)) + ToString(chunk.box.sizes));
  }
  return Status::Ok();
}

/// Returns the bytes from a strided tensor's first to its last element. Requires: it is not empty.
std::uint64_t SpanBytes(const Dims& sizes, const Strides& strides, std::uint64_t item_size) {
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    last += (sizes[d] - 1) * static_cast<std::uint64_t>(strides[d]);
  }
  return (last + 1) * item_size;
}

/// Completes a source whose elements are known to be at `begin` of `file`.
Result<ChunkSource> Settle(const TensorMetadata& tensor, const Chunk& chunk, ChunkSource source,
                           ReadableFile& file) {
  if (source.strides.empty() || source.strides == RowMajorStrides(chunk.box.sizes)) {
    source.strides.clear();
    return source;
  }
  if (!PackedOrder(chunk.box.sizes, source.strides)) {
    VARVE_ASSIGN_OR_RETURN(std::string bytes, ReadBytes(file, source.extent.begin,
                                                        source.extent.end - source.extent.begin));
    source.unpacked = Pack(&bytes, 0, chunk.box.sizes, source.strides, ItemSize(tensor.dtype));
    source.strides.clear();
  }
  return source;
}

Result<ChunkSource> ResolveArchive(const TensorMetadata& tensor, const Chunk& chunk,
                                   ReadableFile& file) {
  const std::uint64_t item_size = ItemSize(tensor.dtype);
  const std::uint64_t wanted = Volume(chunk.box.sizes) * item_size;
  std::string unpacked;
  RangeReader read = [&](std::uint64_t begin, std::uint64_t size) {
    return ReadBytes(file, chunk.extent.begin + begin, size);
  };
  std::uint64_t archive_bytes = chunk.extent.end - chunk.extent.begin;
  const bool compressed = chunk.extent.encoding == Encoding::kZstdTorchItem;
  if (compressed) {
    VARVE_ASSIGN_OR_RETURN(const std::string stream,
                           ReadBytes(file, chunk.extent.begin, archive_bytes));
    VARVE_ASSIGN_OR_RETURN(unpacked, DecompressArchive(stream, 2 * wanted + kArchiveSlack));
    read = ReadFrom(unpacked);
    archive_bytes = unpacked.size();
  }
  VARVE_ASSIGN_OR_RETURN(const TensorItem item, ReadTensorItem(archive_bytes, read));
  VARVE_RETURN_IF_ERROR(CheckItem(item, tensor, chunk));
  ChunkSource source{
      .strides = item.tensor.strides, .conj = item.tensor.conj, .neg = item.tensor.neg};
  const std::uint64_t first = item.storage.begin + item.tensor.offset * item_size;
  if (compressed) {
    const std::uint64_t end = item.storage.begin + item.storage.bytes;
    const auto stored = AsByteSpan(unpacked).subspan(item.storage.begin, end - item.storage.begin);
    if (item.storage.crc32 && Crc32ZipExtend(0, stored) != *item.storage.crc32) {
      return DataLoss("the checksum of the archive's storage does not match");
    }
    source.unpacked = Pack(&unpacked, first, chunk.box.sizes, source.strides, item_size);
    source.strides.clear();
    return source;
  }
  const std::uint64_t begin = chunk.extent.begin + first;
  source.extent = {chunk.extent.file, begin,
                   begin + SpanBytes(chunk.box.sizes, source.strides, item_size)};
  if (item.storage.crc32) {
    const std::uint64_t storage = chunk.extent.begin + item.storage.begin;
    source.record = RecordSum{storage, storage + item.storage.bytes, *item.storage.crc32};
  }
  return Settle(tensor, chunk, std::move(source), file);
}

template <class List>
List Permuted(const List& values, const std::vector<std::size_t>& order) {
  List out;
  out.reserve(order.size());
  for (const std::size_t d : order) {
    out.push_back(values[d]);
  }
  return out;
}

Box Permuted(const Box& box, const std::vector<std::size_t>& order) {
  return {Permuted(box.offsets, order), Permuted(box.sizes, order)};
}

}  // namespace

Result<std::string> DecompressArchive(std::string_view stream, std::uint64_t max_bytes) {
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                        ZSTD_freeDCtx);
  std::string out;
  ZSTD_inBuffer in{stream.data(), stream.size(), 0};
  std::vector<char> step(ZSTD_DStreamOutSize());
  std::size_t left = 1;
  while (in.pos < in.size || left != 0) {
    ZSTD_outBuffer produced{step.data(), step.size(), 0};
    const std::size_t before = in.pos;
    left = ZSTD_decompressStream(context.get(), &produced, &in);
    if (ZSTD_isError(left) != 0) {
      return DataLoss(std::string("zstd: ") + ZSTD_getErrorName(left));
    }
    if (produced.pos == 0 && in.pos == before) {
      return DataLoss("the zstd stream ends early");
    }
    if (produced.pos > max_bytes - out.size()) {
      return DataLoss("the zstd stream holds more than the " + std::to_string(max_bytes) +
                      " bytes that can be in it");
    }
    out.append(step.data(), produced.pos);
  }
  return out;
}

Result<ChunkSource> ResolveChunk(const TensorMetadata& tensor, const Chunk& chunk,
                                 ReadableFile& file) {
  if (chunk.payload > 0) {
    const std::uint64_t begin = chunk.extent.begin + chunk.payload;
    const std::uint64_t bytes = Volume(chunk.box.sizes) * ItemSize(tensor.dtype);
    return ChunkSource{.extent = {chunk.extent.file, begin, begin + bytes}};
  }
  if (chunk.extent.encoding == Encoding::kPlain) {
    return Settle(
        tensor, chunk,
        {.extent = chunk.extent, .strides = chunk.strides, .conj = chunk.conj, .neg = chunk.neg},
        file);
  }
  return ResolveArchive(tensor, chunk, file);
}

Region ChunkRegion(Box chunk, const ChunkSource& source, StridedMemory memory, Box common) {
  if (!source.strides.empty()) {
    // Settle has unpacked all that has no such order.
    const auto order = PackedOrder(chunk.sizes, source.strides).value();
    chunk = Permuted(chunk, order);
    memory.box = Permuted(memory.box, order);
    memory.strides = Permuted(memory.strides, order);
    common = Permuted(common, order);
  }
  if (source.unpacked == nullptr && source.extent.begin % memory.item_size != 0) {
    // Files are read in blocks whose ends would cut elements in two. Their bytes become the
    // innermost dimension.
    for (Box* box : {&chunk, &memory.box, &common}) {
      box->offsets.push_back(0);
      box->sizes.push_back(memory.item_size);
    }
    for (std::int64_t& stride : memory.strides) {
      stride *= static_cast<std::int64_t>(memory.item_size);
    }
    memory.strides.push_back(1);
    memory.item_size = 1;
  }
  return {chunk, memory, common};
}

}  // namespace varve
