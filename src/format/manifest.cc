#include "format/manifest.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <flatbuffers/flatbuffers.h>
#include <zstd.h>

#include "base/checked.h"
#include "base/checksum.h"
#include "format/manifest_generated.h"
#include "format/variants.h"
#include "tensor/box.h"
#include "varve/metadata.h"

namespace varve {
namespace {

// The frame: magic, format version, compressed size, plain size, zstd frame, CRC-32C of all before.
constexpr std::string_view kMagic = "VARVEMF\n";
constexpr std::size_t kFrameHeadBytes = 8 + 4 + 8 + 8;
constexpr std::size_t kCrcBytes = 4;
constexpr std::uint64_t kMaxPlainBytes = FLATBUFFERS_MAX_BUFFER_SIZE;  // 2 GiB.
// The estimate of a manifest may be low by a few bytes: the writer leaves a sixteenth for them.
constexpr std::uint64_t kMaxWrittenBytes = kMaxPlainBytes / 16 * 15;
// The ratio of zstd for zeros: blocks of 128 KiB in 4 bytes. A frame that claims more is refused.
constexpr std::uint64_t kMaxZstdRatio = 32768;
constexpr int kZstdLevel = 1;  // Names and offsets shrink 4-5 times at any level; speed decides.

std::uint64_t LoadBigEndian(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) {
    value = value << 8 | bytes[i];
  }
  return value;
}

void StoreBigEndian(std::uint64_t value, std::uint8_t* bytes) {
  for (int i = 7; i >= 0; --i) {
    bytes[i] = static_cast<std::uint8_t>(value);
    value >>= 8;
  }
}

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
         (sizeof(fb::TensorRecord) + 8) * counts.tensors + sizeof(fb::ChunkRecord) * counts.chunks +
         (sizeof(fb::ExtentRecord) + 8) * counts.objects + 8 * counts.dims + counts.name_bytes;
}

/// Returns the bytes before they are compressed.
flatbuffers::DetachedBuffer BuildBuffer(const Metadata& metadata) {
  const ManifestCounts counts = CountsOf(metadata);
  flatbuffers::FlatBufferBuilder builder(EstimateBytes(counts));
  std::vector<flatbuffers::Offset<fb::File>> files;
  files.reserve(metadata.files.size());
  for (const DataFile& file : metadata.files) {
    files.push_back(fb::CreateFile(builder, builder.CreateString(file.name), file.rank, file.size,
                                   file.data_begin, file.header_crc32c,
                                   builder.CreateVector(file.block_crc32c)));
  }
  std::string names;
  std::vector<std::uint64_t> name_ends;
  std::vector<std::uint64_t> dims;
  std::vector<fb::TensorRecord> tensors;
  std::vector<fb::ChunkRecord> chunks;
  names.reserve(counts.name_bytes);
  name_ends.reserve(counts.tensors + counts.objects);
  dims.reserve(counts.dims);
  tensors.reserve(counts.tensors);
  chunks.reserve(counts.chunks);
  for (const TensorMetadata& tensor : metadata.tensors) {
    names += tensor.fqn;
    name_ends.push_back(names.size());
    tensors.emplace_back(dims.size(), chunks.size(), tensor.chunks.size(),
                         static_cast<std::uint32_t>(tensor.shape.size()),
                         static_cast<std::uint8_t>(tensor.dtype));
    dims.insert(dims.end(), tensor.shape.begin(), tensor.shape.end());
    for (const Chunk& chunk : tensor.chunks) {
      chunks.emplace_back(dims.size(), chunk.extent.begin, chunk.extent.end,
                          LoadBigEndian(chunk.content.bytes.data()),
                          LoadBigEndian(chunk.content.bytes.data() + 8), chunk.extent.file);
      dims.insert(dims.end(), chunk.box.offsets.begin(), chunk.box.offsets.end());
      dims.insert(dims.end(), chunk.box.sizes.begin(), chunk.box.sizes.end());
    }
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
  builder.Finish(fb::CreateManifest(
      builder, kFormatVersion,
      builder.CreateVector(metadata.save_id.bytes.data(), metadata.save_id.bytes.size()),
      metadata.world_size, metadata.block_bytes, builder.CreateVector(files),
      builder.CreateString(names), builder.CreateVector(name_ends),
      builder.CreateVectorOfStructs(tensors), builder.CreateVectorOfStructs(chunks),
      builder.CreateVector(dims), builder.CreateVectorOfStructs(objects),
      builder.CreateVectorOfStructs(structures)));
  return builder.Release();
}

Status MalformedManifest(std::string_view what) {
  return DataLoss("malformed manifest: " + std::string(what));
}

/// Returns true when the elements are aligned. FlatBuffers' verifier checks where a vector begins,
/// not that its 8-byte elements are aligned: a hostile manifest can shift them.
template <class Vector>
bool IsAligned(const Vector* vector) {
  return vector->size() == 0 ||
         reinterpret_cast<std::uintptr_t>(vector->Data()) % sizeof(std::uint64_t) == 0;
}

/// Reads the records out of a verified buffer. FlatBuffers has checked that vectors lie inside
/// the buffer; that their numbers refer to each other rightly is checked here.
class Decoder {
 public:
  explicit Decoder(const fb::Manifest& manifest) : in_(manifest) {}

  Result<Metadata> Decode() {
    if (!IsAligned(in_.tensors()) || !IsAligned(in_.chunks()) || !IsAligned(in_.dims()) ||
        !IsAligned(in_.objects()) || !IsAligned(in_.structures()) || !IsAligned(in_.name_ends())) {
      return MalformedManifest("misaligned records");
    }
    if (in_.save_id()->size() != out_.save_id.bytes.size()) {
      return MalformedManifest("save id");
    }
    std::copy(in_.save_id()->begin(), in_.save_id()->end(), out_.save_id.bytes.begin());
    out_.world_size = in_.world_size();
    out_.block_bytes = in_.block_bytes();
    if (out_.world_size == 0 || out_.block_bytes == 0 || out_.block_bytes % kDataAlignment != 0 ||
        out_.block_bytes > kMaxBlockBytes) {
      return MalformedManifest("world size or block size");
    }
    VARVE_RETURN_IF_ERROR(Files());
    VARVE_RETURN_IF_ERROR(Tensors());
    for (std::uint32_t i = 0; i < in_.objects()->size(); ++i) {
      ObjectMetadata object;
      VARVE_RETURN_IF_ERROR(Name(std::uint64_t{in_.tensors()->size()} + i, &object.fqn));
      VARVE_RETURN_IF_ERROR(ReadExtent(*in_.objects()->Get(i), &object.extent));
      if (!out_.objects.empty() && out_.objects.back().fqn >= object.fqn) {
        return MalformedManifest("object names are not in order");
      }
      out_.objects.push_back(std::move(object));
    }
    for (const fb::ExtentRecord* record : *in_.structures()) {
      out_.structures.emplace_back();
      VARVE_RETURN_IF_ERROR(ReadExtent(*record, &out_.structures.back()));
    }
    VARVE_RETURN_IF_ERROR(SeparateVariants(&out_));
    return std::move(out_);
  }

 private:
  Status Files() {
    for (const fb::File* record : *in_.files()) {
      DataFile file{record->name()->str(), record->rank(),          record->size(),
                    record->data_begin(),  record->header_crc32c(), {}};
      const auto* blocks = record->block_crc32c();
      file.block_crc32c.assign(blocks->begin(), blocks->end());
      if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.' ||
          file.size < file.data_begin || file.data_begin % kDataAlignment != 0 ||
          DivideUp(file.size - file.data_begin, out_.block_bytes) != file.block_crc32c.size()) {
        return MalformedManifest("data file \"" + file.name + "\"");
      }
      out_.files.push_back(std::move(file));
    }
    return Status::Ok();
  }

  Status Name(std::uint64_t index, std::string* name) {
    const auto& ends = *in_.name_ends();
    if (index >= ends.size()) {
      return MalformedManifest("too few names");
    }
    const std::uint64_t begin = index == 0 ? 0 : ends[static_cast<std::uint32_t>(index - 1)];
    const std::uint64_t end = ends[static_cast<std::uint32_t>(index)];
    if (begin > end || end > in_.names()->size()) {
      return MalformedManifest("name out of range");
    }
    name->assign(in_.names()->c_str() + begin, end - begin);
    return Status::Ok();
  }

  Status ReadDims(std::uint64_t begin, std::uint64_t count, Dims* dims) {
    const auto& all = *in_.dims();
    if (begin > all.size() || count > all.size() - begin) {
      return MalformedManifest("dimensions out of range");
    }
    dims->assign(all.data() + begin, all.data() + begin + count);
    return Status::Ok();
  }

  Status ReadExtent(const fb::ExtentRecord& record, Extent* extent) {
    *extent = {record.file(), record.begin(), record.end()};
    if (extent->file >= out_.files.size() || extent->begin > extent->end ||
        extent->begin < out_.files[extent->file].data_begin ||
        extent->end > out_.files[extent->file].size) {
      return MalformedManifest("extent outside its file");
    }
    return Status::Ok();
  }

  Status Tensors() {
    for (std::uint32_t i = 0; i < in_.tensors()->size(); ++i) {
      const fb::TensorRecord& record = *in_.tensors()->Get(i);
      TensorMetadata tensor;
      VARVE_RETURN_IF_ERROR(Name(i, &tensor.fqn));
      if (record.dtype() >= kDTypeCount ||
          (!out_.tensors.empty() && out_.tensors.back().fqn >= tensor.fqn)) {
        return MalformedManifest("tensor \"" + tensor.fqn + "\"");
      }
      tensor.dtype = static_cast<DType>(record.dtype());
      VARVE_RETURN_IF_ERROR(ReadDims(record.dims_begin(), record.rank(), &tensor.shape));
      if (record.chunks_begin() > in_.chunks()->size() ||
          record.chunk_count() > in_.chunks()->size() - record.chunks_begin()) {
        return MalformedManifest("chunks of tensor \"" + tensor.fqn + "\" out of range");
      }
      tensor.chunks.reserve(record.chunk_count());
      for (std::uint64_t c = 0; c < record.chunk_count(); ++c) {
        VARVE_RETURN_IF_ERROR(AddChunk(record.chunks_begin() + c, &tensor));
      }
      VARVE_RETURN_IF_ERROR(CheckTiling(tensor));
      out_.tensors.push_back(std::move(tensor));
    }
    return Status::Ok();
  }

  Status AddChunk(std::uint64_t index, TensorMetadata* tensor) {
    const fb::ChunkRecord& record = *in_.chunks()->Get(static_cast<std::uint32_t>(index));
    Chunk chunk;
    const std::uint64_t rank = tensor->shape.size();
    VARVE_RETURN_IF_ERROR(ReadDims(record.dims_begin(), rank, &chunk.box.offsets));
    VARVE_RETURN_IF_ERROR(ReadDims(record.dims_begin() + rank, rank, &chunk.box.sizes));
    VARVE_RETURN_IF_ERROR(
        ReadExtent(fb::ExtentRecord(record.begin(), record.end(), record.file()), &chunk.extent));
    if (Status status = CheckBox(tensor->shape, chunk.box, ItemSize(tensor->dtype));
        !status.ok() || chunk.extent.end - chunk.extent.begin !=
                            Volume(chunk.box.sizes) * ItemSize(tensor->dtype)) {
      return MalformedManifest("chunk of tensor \"" + tensor->fqn + "\"");
    }
    StoreBigEndian(record.content_high(), chunk.content.bytes.data());
    StoreBigEndian(record.content_low(), chunk.content.bytes.data() + 8);
    tensor->chunks.push_back(std::move(chunk));
    return Status::Ok();
  }

  const fb::Manifest& in_;
  Metadata out_;
};

}  // namespace

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

Result<Bytes> EncodeManifest(const Metadata& metadata) {
  if (!metadata.tensor_variants.empty() || !metadata.object_variants.empty()) {
    return EncodeManifest(WithVariantsAsEntries(metadata));
  }
  VARVE_RETURN_IF_ERROR(CheckManifestSize(CountsOf(metadata)));
  const flatbuffers::DetachedBuffer plain = BuildBuffer(metadata);
  const std::size_t bound = ZSTD_compressBound(plain.size());
  const auto compressed = std::make_unique_for_overwrite<char[]>(bound);  // Mostly never touched.
  const std::size_t size =
      ZSTD_compress(compressed.get(), bound, plain.data(), plain.size(), kZstdLevel);
  if (ZSTD_isError(size) != 0) {
    return Internal(std::string("compress manifest: ") + ZSTD_getErrorName(size));
  }
  Bytes out;
  ByteWriter writer(&out);
  writer.Raw(kMagic);
  writer.U32(kFormatVersion);
  writer.U64(size);
  writer.U64(plain.size());
  writer.Raw({compressed.get(), size});
  writer.U32(Crc32c(AsByteSpan(out)));
  return out;
}

Result<Metadata> DecodeManifest(std::string_view bytes) {
  if (bytes.size() < kFrameHeadBytes + kCrcBytes || !bytes.starts_with(kMagic)) {
    return MalformedManifest("no manifest frame");
  }
  ByteReader tail(bytes.substr(bytes.size() - kCrcBytes));
  const std::uint32_t crc = Crc32c(AsByteSpan(bytes.substr(0, bytes.size() - kCrcBytes)));
  if (const std::uint32_t stored = tail.U32(); stored != crc) {
    return DataLoss("manifest checksum mismatch (stored " + HexU32(stored) + ", computed " +
                    HexU32(crc) + ")");
  }
  ByteReader head(bytes.substr(kMagic.size(), kFrameHeadBytes - kMagic.size()));
  const std::uint32_t version = head.U32();
  const std::uint64_t compressed_bytes = head.U64();
  const std::uint64_t plain_bytes = head.U64();
  if (version > kFormatVersion) {
    return Unimplemented("manifest has format version " + std::to_string(version) +
                         ", this Varve reads up to " + std::to_string(kFormatVersion) +
                         "; use a newer Varve");
  }
  if (compressed_bytes != bytes.size() - kFrameHeadBytes - kCrcBytes ||
      plain_bytes > kMaxPlainBytes || plain_bytes / kMaxZstdRatio > compressed_bytes) {
    return MalformedManifest("frame sizes");
  }
  // 64-bit words: FlatBuffers reads 8-byte fields in place and wants them aligned.
  const std::unique_ptr<std::uint64_t[]> plain(new (std::nothrow)
                                                   std::uint64_t[plain_bytes / 8 + 1]);
  if (plain == nullptr) {
    return Status(StatusCode::kOutOfSpace,
                  "no memory for a manifest of " + std::to_string(plain_bytes) + " bytes")
        .With({.system_error = ENOMEM});
  }
  const std::size_t got =
      ZSTD_decompress(plain.get(), plain_bytes, bytes.data() + kFrameHeadBytes, compressed_bytes);
  if (ZSTD_isError(got) != 0 || got != plain_bytes) {
    return MalformedManifest("zstd frame");
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(plain.get());
  flatbuffers::Verifier verifier(data, plain_bytes);
  if (!fb::VerifyManifestBuffer(verifier)) {
    return MalformedManifest("FlatBuffers verification failed");
  }
  return Decoder(*fb::GetManifest(data)).Decode();
}

}  // namespace varve
