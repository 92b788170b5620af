#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <flatbuffers/flatbuffers.h>
#include <zstd.h>

#include "base/checked.h"
#include "base/checksum.h"
#include "format/chunk_grid.h"
#include "format/json_writer.h"
#include "format/manifest.h"
#include "format/manifest_frame.h"
#include "format/manifest_generated.h"
#include "format/variants.h"
#include "tensor/box.h"
#include "varve/metadata.h"

namespace varve {
namespace {

// Manifests of this version have a record for each chunk.
constexpr std::uint32_t kChunkRecordVersion = 1;
// Three times what the writer's limit allows, which counts a run for each. To look at all takes
// less than a second.
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 28;
// A manifest has at least so many bytes for a chunk that is kept by itself.
constexpr std::uint64_t kLeastChunkBytes = 16;
// The ratio of zstd for zeros: blocks of 128 KiB in 4 bytes. A frame that claims more is refused.
constexpr std::uint64_t kMaxZstdRatio = 32768;

Status MalformedManifest(std::string_view what) {
  return DataLoss("malformed manifest: " + std::string(what));
}

/// Returns true when the elements are aligned. FlatBuffers' verifier checks where a vector begins,
/// not that its 8-byte elements are aligned: a hostile manifest can shift them.
template <class Vector>
bool IsAligned(const Vector* vector) {
  return vector == nullptr || vector->size() == 0 ||
         reinterpret_cast<std::uintptr_t>(vector->Data()) % sizeof(std::uint64_t) == 0;
}

/// Reads the records out of a verified buffer. FlatBuffers has checked that vectors lie inside
/// the buffer; that their numbers refer to each other rightly is checked here.
class Decoder {
 public:
  Decoder(const fb::Manifest& manifest, std::uint32_t version, std::uint64_t bytes)
      : in_(manifest), version_(version), most_listed_(bytes / kLeastChunkBytes) {}

  Result<Metadata> Decode() {
    if (!IsAligned(in_.tensors()) || !IsAligned(in_.chunks()) || !IsAligned(in_.dims()) ||
        !IsAligned(in_.objects()) || !IsAligned(in_.structures()) || !IsAligned(in_.name_ends()) ||
        !IsAligned(in_.layouts()) || !IsAligned(in_.runs())) {
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
    VARVE_RETURN_IF_ERROR(version_ == kChunkRecordVersion ? Tensors() : Layouts());
    for (std::uint32_t i = 0; i < in_.objects()->size(); ++i) {
      ObjectMetadata object;
      VARVE_RETURN_IF_ERROR(Name(std::uint64_t{out_.tensors.size()} + i, &object.fqn));
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
    if (!IsUtf8(*name)) {
      return MalformedManifest("a name that is not UTF-8");
    }
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

  /// Reads what a record says of a tensor itself.
  Status Begin(std::uint64_t number, std::uint8_t dtype, std::uint64_t dims_begin,
               std::uint32_t rank, TensorMetadata* tensor) {
    VARVE_RETURN_IF_ERROR(Name(number, &tensor->fqn));
    if (dtype >= kDTypeCount || (!out_.tensors.empty() && out_.tensors.back().fqn >= tensor->fqn)) {
      return MalformedManifest("tensor \"" + tensor->fqn + "\"");
    }
    tensor->dtype = static_cast<DType>(dtype);
    return ReadDims(dims_begin, rank, &tensor->shape);
  }

  Status Tensors() {
    for (std::uint32_t i = 0; i < in_.tensors()->size(); ++i) {
      const fb::TensorRecord& record = *in_.tensors()->Get(i);
      TensorMetadata tensor;
      VARVE_RETURN_IF_ERROR(Begin(i, record.dtype(), record.dims_begin(), record.rank(), &tensor));
      if (record.chunks_begin() > in_.chunks()->size() ||
          record.chunk_count() > in_.chunks()->size() - record.chunks_begin()) {
        return MalformedManifest("chunks of tensor \"" + tensor.fqn + "\" out of range");
      }
      VARVE_RETURN_IF_ERROR(Count(record.chunk_count(), true));
      ChunkCollector chunks(tensor.shape, tensor.dtype);
      for (std::uint64_t c = 0; c < record.chunk_count(); ++c) {
        VARVE_RETURN_IF_ERROR(AddChunk(record.chunks_begin() + c, tensor, &chunks));
      }
      tensor.chunks = chunks.Take();
      VARVE_RETURN_IF_ERROR(CheckTiling(tensor));
      out_.tensors.push_back(std::move(tensor));
    }
    return Status::Ok();
  }

  static Status CheckInShape(const TensorMetadata& tensor, const Box& box) {
    const Status status = CheckBox(tensor.shape, box, ItemSize(tensor.dtype));
    return status.ok() ? status : DataLoss(status.message());
  }

  Status AddChunk(std::uint64_t index, const TensorMetadata& tensor, ChunkCollector* chunks) {
    const fb::ChunkRecord& record = *in_.chunks()->Get(static_cast<std::uint32_t>(index));
    Chunk chunk;
    const std::uint64_t rank = tensor.shape.size();
    VARVE_RETURN_IF_ERROR(ReadDims(record.dims_begin(), rank, &chunk.box.offsets));
    VARVE_RETURN_IF_ERROR(ReadDims(record.dims_begin() + rank, rank, &chunk.box.sizes));
    VARVE_RETURN_IF_ERROR(CheckInShape(tensor, chunk.box));
    VARVE_RETURN_IF_ERROR(
        ReadExtent(fb::ExtentRecord(record.begin(), record.end(), record.file()), &chunk.extent));
    if (chunk.extent.end - chunk.extent.begin != Volume(chunk.box.sizes) * ItemSize(tensor.dtype)) {
      return MalformedManifest("chunk of tensor \"" + tensor.fqn + "\"");
    }
    chunks->Add(std::move(chunk));
    return Status::Ok();
  }

  /// Counts chunks, so that a few bytes cannot claim many: records may share what they refer to.
  Status Count(std::uint64_t chunks, bool listed) {
    if (chunks > kMostChunks - chunks_ || (listed && chunks > most_listed_ - listed_)) {
      return MalformedManifest("more chunks than there can be");
    }
    chunks_ += chunks;
    listed_ += listed ? chunks : 0;
    return Status::Ok();
  }

  // ---- from version 4 on ----

  Status Layouts() {
    if (in_.layouts() == nullptr || in_.runs() == nullptr) {
      return MalformedManifest("no layouts");
    }
    for (const DataFile& file : out_.files) {
      common_begin_ = std::max(common_begin_, file.data_begin);
      common_end_ = std::min(common_end_, file.size);
    }
    for (std::uint32_t i = 0; i < in_.layouts()->size(); ++i) {
      const fb::LayoutRecord& record = *in_.layouts()->Get(i);
      TensorMetadata tensor;
      VARVE_RETURN_IF_ERROR(Begin(i, record.dtype(), record.dims_begin(), record.rank(), &tensor));
      // Variants are kept chunk by chunk.
      VARVE_RETURN_IF_ERROR(
          Count(record.chunk_count(), !record.is_grid() || IsVariantName(tensor.fqn)));
      const Status added = record.is_grid() ? AddGrid(record, &tensor) : AddBoxes(record, &tensor);
      VARVE_RETURN_IF_ERROR(added.Annotate("malformed manifest: tensor \"" + tensor.fqn + "\""));
      out_.tensors.push_back(std::move(tensor));
    }
    return Status::Ok();
  }

  /// Reads the runs of a tensor, which are as many chunks as the record says.
  Status ReadRuns(const fb::LayoutRecord& record, std::vector<ChunkRun>* runs) {
    const auto& all = *in_.runs();
    if (record.runs_begin() > all.size() || record.run_count() > all.size() - record.runs_begin()) {
      return DataLoss("runs out of range");
    }
    if (record.chunk_count() > std::numeric_limits<std::uint32_t>::max()) {
      return DataLoss("more chunks than are numbered");  // Below, no product can overflow.
    }
    std::uint64_t before = 0;
    runs->clear();
    runs->reserve(record.run_count());
    for (std::uint64_t i = 0; i < record.run_count(); ++i) {
      const auto& run = *all.Get(static_cast<std::uint32_t>(record.runs_begin() + i));
      if (run.end() <= before || run.end() > record.chunk_count()) {
        return DataLoss("runs that do not ascend");
      }
      const std::int64_t last =
          run.file() + run.step() * static_cast<std::int64_t>(run.end() - before - 1);
      if (run.file() >= out_.files.size() || last < 0 ||
          last >= static_cast<std::int64_t>(out_.files.size())) {
        return DataLoss("a run of files that are not there");
      }
      before = run.end();
      runs->push_back({run.end(), run.begin(), run.file(), run.step()});
    }
    return before == record.chunk_count() ? Status::Ok() : DataLoss("chunks without a place");
  }

  /// Checks that a chunk lies in the data of its file.
  Status CheckInFile(const Extent& extent) const {
    const DataFile& file = out_.files[extent.file];
    return extent.begin >= file.data_begin && extent.begin <= extent.end && extent.end <= file.size
               ? Status::Ok()
               : DataLoss("a chunk outside its file");
  }

  Status AddGrid(const fb::LayoutRecord& record, TensorMetadata* tensor) {
    Dims cell;
    VARVE_RETURN_IF_ERROR(ReadDims(record.boxes_begin(), record.rank(), &cell));
    VARVE_RETURN_IF_ERROR(CheckInShape(*tensor, WholeBox(tensor->shape)));
    auto cells = Cells::Of(tensor->shape, cell);
    if (!cells || cells->count() != record.chunk_count()) {
      return DataLoss("a grid of other cells than it has chunks");
    }
    ChunkGrid grid{*std::move(cells), ItemSize(tensor->dtype), std::move(runs_)};
    VARVE_RETURN_IF_ERROR(ReadRuns(record, &grid.runs));
    // Where the largest cell fits into the smallest file, each cell fits into its own.
    const std::uint64_t cell_bytes = Volume(cell) * grid.item_bytes;
    const bool fit = std::all_of(grid.runs.begin(), grid.runs.end(), [&](const ChunkRun& run) {
      return run.begin >= common_begin_ && run.begin <= common_end_ &&
             cell_bytes <= common_end_ - run.begin;
    });
    std::size_t number = 0;
    for (const ChunkRun& run : grid.runs) {
      for (std::int64_t file = run.file; !fit && number < run.end; ++number, file += run.step) {
        const DataFile& data = out_.files[static_cast<std::size_t>(file)];
        if (run.begin < data.data_begin || run.begin > data.size ||
            cell_bytes > data.size - run.begin) {  // The cell may be cut off.
          VARVE_RETURN_IF_ERROR(CheckInFile(grid.At(number).extent));
        }
      }
    }
    if (grid.size() >= kFewChunks) {
      tensor->chunks = ChunkList(std::make_shared<const ChunkGrid>(std::move(grid)));
      return Status::Ok();
    }
    std::vector<Chunk>& chunks = tensor->chunks.Listed();
    chunks.reserve(grid.size());
    for (std::size_t i = 0; i < grid.size(); ++i) {
      chunks.push_back(grid.At(i));
    }
    runs_ = std::move(grid.runs);
    return Status::Ok();
  }

  Status AddBoxes(const fb::LayoutRecord& record, TensorMetadata* tensor) {
    const std::uint64_t rank = record.rank();
    const std::uint64_t dims_left =
        in_.dims()->size() - std::min<std::uint64_t>(record.boxes_begin(), in_.dims()->size());
    if (rank == 0 ? record.chunk_count() > 1 : record.chunk_count() > dims_left / rank / 2) {
      return DataLoss("more chunks than boxes");
    }
    VARVE_RETURN_IF_ERROR(ReadRuns(record, &runs_));
    const std::uint64_t item_bytes = ItemSize(tensor->dtype);
    std::vector<Chunk> chunks;
    std::uint64_t dims = record.boxes_begin();
    for (const ChunkRun& run : runs_) {
      for (std::int64_t file = run.file; chunks.size() < run.end; file += run.step) {
        Chunk chunk;
        VARVE_RETURN_IF_ERROR(ReadDims(dims, rank, &chunk.box.offsets));
        VARVE_RETURN_IF_ERROR(ReadDims(dims + rank, rank, &chunk.box.sizes));
        VARVE_RETURN_IF_ERROR(CheckInShape(*tensor, chunk.box));
        dims += 2 * rank;
        chunk.extent = {static_cast<std::uint32_t>(file), run.begin,
                        run.begin + Volume(chunk.box.sizes) * item_bytes};
        VARVE_RETURN_IF_ERROR(CheckInFile(chunk.extent));
        chunks.push_back(std::move(chunk));
      }
    }
    tensor->chunks = std::move(chunks);
    return CheckTiling(*tensor);
  }

  const fb::Manifest& in_;
  const std::uint32_t version_;
  const std::uint64_t most_listed_;
  std::uint64_t chunks_ = 0;
  std::uint64_t listed_ = 0;  // Of `chunks_`, those that take memory each.
  Metadata out_;
  std::vector<ChunkRun> runs_;  // Of the tensor that is being read; kept for its memory.
  // Bytes that are data of each file.
  std::uint64_t common_begin_ = 0;
  std::uint64_t common_end_ = ~std::uint64_t{0};
};

/// Checks a frame, and returns what it holds.
struct Plain {
  std::unique_ptr<std::uint64_t[]> words;  // FlatBuffers reads 8-byte fields and wants alignment.
  std::uint64_t bytes = 0;
  std::uint32_t version = 0;
};

Result<Plain> OpenFrame(std::string_view bytes) {
  if (bytes.size() < kManifestHeadBytes + kManifestCrcBytes || !bytes.starts_with(kManifestMagic)) {
    return MalformedManifest("no manifest frame");
  }
  const std::uint32_t crc = Crc32c(AsByteSpan(bytes.substr(0, bytes.size() - kManifestCrcBytes)));
  ByteReader tail(bytes.substr(bytes.size() - kManifestCrcBytes));
  if (const std::uint32_t stored = tail.U32(); stored != crc) {
    return DataLoss("manifest checksum mismatch (stored " + HexU32(stored) + ", computed " +
                    HexU32(crc) + ")");
  }
  Plain plain;
  ByteReader head(bytes.substr(kManifestMagic.size(), kManifestHeadBytes - kManifestMagic.size()));
  plain.version = head.U32();
  const std::uint64_t compressed_bytes = head.U64();
  plain.bytes = head.U64();
  if (plain.version > kFormatVersion) {
    return Unimplemented("manifest has format version " + std::to_string(plain.version) +
                         ", this Varve reads up to " + std::to_string(kFormatVersion) +
                         "; use a newer Varve");
  }
  if (compressed_bytes != bytes.size() - kManifestHeadBytes - kManifestCrcBytes ||
      plain.bytes > kMaxPlainBytes || plain.bytes / kMaxZstdRatio > compressed_bytes) {
    return MalformedManifest("frame sizes");
  }
  plain.words.reset(new (std::nothrow) std::uint64_t[plain.bytes / 8 + 1]);
  if (plain.words == nullptr) {
    return Status(StatusCode::kOutOfSpace,
                  "no memory for a manifest of " + std::to_string(plain.bytes) + " bytes")
        .With({.system_error = ENOMEM});
  }
  const std::size_t got = ZSTD_decompress(plain.words.get(), plain.bytes,
                                          bytes.data() + kManifestHeadBytes, compressed_bytes);
  if (ZSTD_isError(got) != 0 || got != plain.bytes) {
    return MalformedManifest("zstd frame");
  }
  return plain;
}

}  // namespace

Result<Metadata> DecodeManifest(std::string_view frame) {
  VARVE_ASSIGN_OR_RETURN(const Plain plain, OpenFrame(frame));
  const auto* data = reinterpret_cast<const std::uint8_t*>(plain.words.get());
  flatbuffers::Verifier verifier(data, plain.bytes);
  if (!fb::VerifyManifestBuffer(verifier)) {
    return MalformedManifest("FlatBuffers verification failed");
  }
  return Decoder(*fb::GetManifest(data), plain.version, plain.bytes).Decode();
}

}  // namespace varve
