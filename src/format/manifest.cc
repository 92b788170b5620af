#include "format/manifest.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <flatbuffers/flatbuffers.h>
#include <zstd.h>

#include "base/checksum.h"
#include "format/chunk_grid.h"
#include "format/manifest_frame.h"
#include "format/manifest_generated.h"
#include "format/variants.h"
#include "varve/metadata.h"

namespace varve {
namespace {

// The estimate of a manifest may be low by a few bytes: the writer leaves a sixteenth for them.
constexpr std::uint64_t kMaxWrittenBytes = kMaxPlainBytes / 16 * 15;
constexpr int kZstdLevel = 1;  // Names and offsets shrink 4-5 times at any level; speed decides.

ManifestCounts CountsOf(const Metadata& metadata) {
  ManifestCounts counts{.files = metadata.files.size(),
                        .tensors = metadata.tensors.size(),
                        .objects = metadata.objects.size()};
  for (const DataFile& file : metadata.files) {
    counts.name_bytes += file.name.size();
    counts.blocks += file.block_crc32c.size();
  }
  for (const TensorMetadata& tensor : metadata.tensors) {
    counts.name_bytes += tensor.fqn.size();
    counts.chunks += tensor.chunks.size();
    counts.dims += tensor.shape.size() * (1 + 2 * tensor.chunks.size());
  }
  for (const ObjectMetadata& object : metadata.objects) {
    counts.name_bytes += object.fqn.size();
  }
  return counts;
}

std::uint64_t EstimateBytes(const ManifestCounts& counts) {
  return 4096 + 128 * counts.files + 4 * counts.blocks +
         (sizeof(fb::LayoutRecord) + 8) * counts.tensors + sizeof(fb::RunRecord) * counts.chunks +
         (sizeof(fb::ExtentRecord) + 8) * counts.objects + 8 * counts.dims + counts.name_bytes;
}

/// The records of tensors.
struct Layouts {
  std::vector<std::uint64_t> dims;
  std::vector<fb::LayoutRecord> layouts;
  std::vector<ChunkRun> runs;

  void AddDims(const Dims& more) { dims.insert(dims.end(), more.begin(), more.end()); }
  void Add(const TensorMetadata& tensor);
};

void Layouts::Add(const TensorMetadata& tensor) {
  const std::uint64_t dims_begin = dims.size();
  AddDims(tensor.shape);
  const std::uint64_t boxes_begin = dims.size();
  const std::uint64_t runs_begin = runs.size();
  const ChunkList& chunks = tensor.chunks;
  const auto cells = CellsOf(tensor.shape, ItemSize(tensor.dtype), chunks);
  if (cells) {
    AddDims(cells->cell());
  }
  if (const ChunkGrid* const grid = chunks.grid(); grid != nullptr && cells) {
    runs.insert(runs.end(), grid->runs.begin(), grid->runs.end());
  } else {
    for (const Chunk& chunk : chunks) {
      AddPlace(chunk.extent.file, chunk.extent.begin, runs_begin, &runs);
      if (!cells) {
        AddDims(chunk.box.offsets);
        AddDims(chunk.box.sizes);
      }
    }
  }
  layouts.emplace_back(dims_begin, boxes_begin, chunks.size(), runs_begin, runs.size() - runs_begin,
                       static_cast<std::uint32_t>(tensor.shape.size()),
                       static_cast<std::uint8_t>(tensor.dtype), cells.has_value());
}

/// Returns the bytes of the frame before they are compressed.
flatbuffers::DetachedBuffer BuildPlain(const Metadata& metadata) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<fb::File>> files;
  files.reserve(metadata.files.size());
  for (const DataFile& file : metadata.files) {
    files.push_back(fb::CreateFile(builder, builder.CreateString(file.name), file.rank, file.size,
                                   file.data_begin, file.header_crc32c,
                                   builder.CreateVector(file.block_crc32c)));
  }
  std::string names;
  std::vector<std::uint64_t> name_ends;
  Layouts made;
  for (const TensorMetadata& tensor : metadata.tensors) {
    names += tensor.fqn;
    name_ends.push_back(names.size());
    made.Add(tensor);
  }
  const auto record = [](const Extent& extent) {
    return fb::ExtentRecord(extent.begin, extent.end, extent.file);
  };
  std::vector<fb::ExtentRecord> objects;
  for (const ObjectMetadata& object : metadata.objects) {
    names += object.fqn;
    name_ends.push_back(names.size());
    objects.push_back(record(object.extent));
  }
  std::vector<fb::ExtentRecord> structures;
  structures.reserve(metadata.structures.size());
  for (const Extent& extent : metadata.structures) {
    structures.push_back(record(extent));
  }
  std::vector<fb::RunRecord> runs;
  runs.reserve(made.runs.size());
  for (const ChunkRun& run : made.runs) {
    runs.emplace_back(run.end, run.begin, run.file, run.step);
  }
  builder.Finish(fb::CreateManifest(
      builder, kFormatVersion,
      builder.CreateVector(metadata.save_id.bytes.data(), metadata.save_id.bytes.size()),
      metadata.world_size, metadata.block_bytes, builder.CreateVector(files),
      builder.CreateString(names), builder.CreateVector(name_ends),
      builder.CreateVectorOfStructs(std::vector<fb::TensorRecord>()),
      builder.CreateVectorOfStructs(std::vector<fb::ChunkRecord>()),
      builder.CreateVector(made.dims), builder.CreateVectorOfStructs(objects),
      builder.CreateVectorOfStructs(structures), builder.CreateVectorOfStructs(made.layouts),
      builder.CreateVectorOfStructs(runs)));
  return builder.Release();
}

}  // namespace

Metadata WithoutHashes(Metadata metadata) {
  for (TensorMetadata& tensor : metadata.tensors) {
    tensor.chunks.ForgetHashes();
  }
  for (TensorVariant& variant : metadata.tensor_variants) {
    for (Chunk& chunk : variant.chunks) {
      chunk.content = {};
    }
  }
  return metadata;
}

Status CheckManifestSize(const ManifestCounts& counts) {
  const std::uint64_t estimate = EstimateBytes(counts);
  if (estimate <= kMaxWrittenBytes) {
    return Status::Ok();
  }
  return InvalidArgument(
      "the manifest would take about " + std::to_string(estimate) + " bytes, at most " +
      std::to_string(kMaxWrittenBytes) + " can be written (" + std::to_string(counts.tensors) +
      " tensors in " + std::to_string(counts.chunks) + " chunks, " + std::to_string(counts.blocks) +
      " checksum blocks); save fewer tensors or use larger blocks");
}

Result<EncodedManifest> EncodeManifest(const Metadata& metadata) {
  if (!metadata.tensor_variants.empty() || !metadata.object_variants.empty()) {
    return EncodeManifest(WithVariantsAsEntries(metadata));
  }
  VARVE_RETURN_IF_ERROR(CheckManifestSize(CountsOf(metadata)));
  const flatbuffers::DetachedBuffer plain = BuildPlain(metadata);
  const std::size_t bound = ZSTD_compressBound(plain.size());
  const auto compressed = std::make_unique_for_overwrite<char[]>(bound);  // Mostly never touched.
  const std::size_t size =
      ZSTD_compress(compressed.get(), bound, plain.data(), plain.size(), kZstdLevel);
  if (ZSTD_isError(size) != 0) {
    return Internal(std::string("compress manifest: ") + ZSTD_getErrorName(size));
  }
  EncodedManifest made;
  made.bytes.reserve(kManifestHeadBytes + size + kManifestCrcBytes);
  ByteWriter writer(&made.bytes);
  writer.Raw(kManifestMagic);
  writer.U32(kFormatVersion);
  writer.U64(size);
  writer.U64(plain.size());
  writer.Raw({compressed.get(), size});
  made.crc32c = Crc32c(AsByteSpan(made.bytes));
  writer.U32(made.crc32c);
  return made;
}

}  // namespace varve
