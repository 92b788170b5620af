#include "save/hf/pieces.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "interop/safetensors/encode.h"
#include "load/tensor_stream.h"
#include "publish/commit.h"
#include "save/hf/layout.h"
#include "save/hf/scatter_file.h"
#include "save/hf/shared_pages.h"
#include "save/native.h"

namespace varve {
namespace {

/// The tensors that a rank reads ahead take so much memory at most.
constexpr std::uint64_t kReadAheadBytes = std::uint64_t{256} << 20;

/// Returns the identity of the files of pieces. A reader fetches whole blocks, to check them. A
/// batch needs a share of each rank's file, and with many ranks the share is less than a block of
/// the usual size. So blocks are at most half a share, but not below kLeastBlockBytes.
FileIdentity IdentityOfPieces(const SettledSave& settled) {
  constexpr std::uint64_t kLeastBlockBytes = std::uint64_t{64} << 10;
  FileIdentity identity = settled.identity;
  const std::uint64_t share = TensorStream::kMaxBatchBytes / identity.world_size;
  identity.block_bytes =
      std::min(identity.block_bytes, std::max(kLeastBlockBytes, std::bit_floor(share / 2)));
  return identity;
}

bool HasPieces(const SettledSave& settled) {
  const auto placement = DecodeFields<HfPlacement>(settled.placement);
  return placement.ok() && placement->way == HfWay::kPieces;
}

Status GatherPieces(const SettledSave& settled, const std::vector<std::string>& receipts,
                    const std::string& staging, Storage& storage) {
  const std::string directory = JoinPath(staging, kPiecesDirectory);
  VARVE_ASSIGN_OR_RETURN(const CheckpointIndex made,
                         MakeNativeIndex(settled, receipts, IdentityOfPieces(settled)));
  VARVE_RETURN_IF_ERROR(CheckFilesAreThere(storage, directory, made.files));
  for (const IndexFile& file : made.index) {
    VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, JoinPath(directory, file.name), file.content));
  }
  return Status::Ok();
}

/// A file of this rank's share.
struct JoinedFile {
  std::uint32_t number = 0;
  HfFile file;
};

/// Divides the tensors into files, as the coordinator does, and returns those of a rank: each goes
/// to the rank with the fewest bytes so far.
std::vector<JoinedFile> FilesOf(const Metadata& metadata, const SettledSave& settled) {
  std::vector<SafetensorsEntry> entries;
  entries.reserve(metadata.tensors.size());
  for (const TensorMetadata& tensor : metadata.tensors) {
    entries.push_back({tensor.fqn, tensor.dtype, tensor.shape});
  }
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.fqn < b.fqn; });
  std::vector<std::uint64_t> bytes(settled.identity.world_size, 0);
  std::vector<JoinedFile> mine;
  std::uint32_t number = 0;
  for (HfFile& file : DivideIntoHfFiles(entries, settled.shard_size)) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    for (const SafetensorsEntry& entry : file.entries) {
      *least += entry.bytes();
    }
    if (least - bytes.begin() == settled.identity.rank) {
      mine.push_back({number, std::move(file)});
    }
    ++number;
  }
  return mine;
}

/// Writes a file whose tensors are the stream's from item `first` on. Returns the sums of its
/// blocks.
Result<std::vector<BytesSum>> WriteJoined(Storage& storage, const std::string& path,
                                          const JoinedFile& joined, TensorStream& stream,
                                          std::size_t first, const SettledSave& settled,
                                          const SaveOptions& options) {
  const Bytes header = EncodeSafetensorsHeader(joined.file.entries, kDirectAlignment);
  std::vector<FileSegment> segments{{.bytes = header.size(), .literal = AsByteSpan(header)}};
  std::uint64_t size = header.size();
  for (std::size_t i = 0; i < joined.file.entries.size(); ++i) {
    const std::uint64_t bytes = joined.file.entries[i].bytes();
    segments.push_back(
        {.bytes = bytes,
         .produce = [&stream, item = first + i](std::uint64_t at, std::span<std::byte> out) {
           return stream.Read(item, at, out);
         }});
    size += bytes;
  }
  VARVE_ASSIGN_OR_RETURN(const auto file, storage.OpenForWrite(path, {.size = size}));
  const WriteSegmentsOptions write{.block_bytes = settled.identity.block_bytes,
                                   .writes_in_flight = options.writes_in_flight,
                                   .max_bytes_per_second = options.max_write_bandwidth,
                                   .stop = options.stop};
  VARVE_ASSIGN_OR_RETURN(const WrittenSegments written,
                         WriteSegments(*file, 0, segments, BufferPool::Shared(), write));
  VARVE_RETURN_IF_ERROR(file->Sync(size));
  std::vector<BytesSum> sums;
  for (std::uint64_t begin = 0; const std::uint32_t crc32c : written.block_crc32c) {
    const std::uint64_t bytes = std::min(settled.identity.block_bytes, size - begin);
    sums.push_back({joined.number, begin, bytes, crc32c});
    begin += bytes;
  }
  return sums;
}

Result<WrittenShare> JoinPieces(const SettledSave& settled, const std::string& staging,
                                Storage& storage, const SaveOptions& options) {
  VARVE_ASSIGN_OR_RETURN(
      const auto reader,
      CheckpointReader::Open(JoinPath(staging, kPiecesDirectory), storage, options.stop));
  const Metadata& metadata = reader->metadata();
  std::map<std::string_view, const TensorMetadata*> by_name;
  for (const TensorMetadata& tensor : metadata.tensors) {
    by_name[tensor.fqn] = &tensor;
  }
  const std::vector<JoinedFile> mine = FilesOf(metadata, settled);
  std::vector<StreamItem> items;
  for (const JoinedFile& joined : mine) {
    for (const SafetensorsEntry& entry : joined.file.entries) {
      items.push_back({by_name.at(entry.fqn), entry.dtype});
    }
  }
  TensorStream stream(*reader, std::move(items), kReadAheadBytes, options.stop);
  HfReceipt receipt;
  std::size_t first = 0;
  for (const JoinedFile& joined : mine) {
    VARVE_ASSIGN_OR_RETURN(const auto sums,
                           WriteJoined(storage, JoinPath(staging, joined.file.name), joined, stream,
                                       first, settled, options));
    receipt.sums.insert(receipt.sums.end(), sums.begin(), sums.end());
    first += joined.file.entries.size();
  }
  std::uint64_t bytes = 0;
  for (const BytesSum& sum : receipt.sums) {
    bytes += sum.bytes;
  }
  return WrittenShare{EncodeFields(receipt), bytes};
}

}  // namespace

Status PreparePieces(SettledSave* settled) {
  for (RankAssignment& assignment : settled->settled.ranks) {
    assignment.aliases.clear();
  }
  return CheckNative(*settled, IdentityOfPieces(*settled));
}

Result<RankFile> LayOutPiece(const State* state, const SettledSave& settled) {
  VARVE_ASSIGN_OR_RETURN(RankFile file, LayOutNative(state, settled, IdentityOfPieces(settled)));
  file.name = JoinPath(kPiecesDirectory, file.name);
  return file;
}

const JoinedFiles kJoinedHfFiles{
    .is_needed = HasPieces, .gather = GatherPieces, .join = JoinPieces};

}  // namespace varve
