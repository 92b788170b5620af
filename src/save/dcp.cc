#include "save/dcp.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "interop/torch/encode.h"
#include "save/dcp_items.h"
#include "save/device_memory.h"
#include "tensor/box.h"
#include "varve/value.h"

namespace varve {
namespace {

/// The memory of a part of a shard.
DcpItem ItemOf(const SourceTensor& source, const Box& part) {
  DcpItem item;
  item.fqn = source.fqn;
  item.is_tensor = true;
  item.dtype = source.dtype;
  item.sizes = part.sizes;
  if (source.produce) {
    item.produce = source.produce;
    return item;
  }
  item.strides = source.strides.empty() ? RowMajorStrides(source.box.sizes) : source.strides;
  std::int64_t first = 0;
  for (std::size_t d = 0; d < part.sizes.size(); ++d) {
    first += static_cast<std::int64_t>(part.offsets[d] - source.box.offsets[d]) * item.strides[d];
  }
  if (source.data != nullptr && !IsEmpty(part)) {
    item.data = static_cast<const std::byte*>(source.data) +
                first * static_cast<std::int64_t>(ItemSize(source.dtype));
  }
  return item;
}

/// The numbers of the chunks in the order in which the file has them, that of native files: larger
/// elements first, then by name and place.
std::vector<std::size_t> FileOrder(const State& state, const RankAssignment& assignment) {
  std::vector<std::size_t> order(assignment.chunks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const ChunkAssignment& left = assignment.chunks[a];
    const ChunkAssignment& right = assignment.chunks[b];
    const SourceTensor& source_a = state.tensors[left.item];
    const SourceTensor& source_b = state.tensors[right.item];
    const std::uint64_t item_a = ItemSize(source_a.dtype);
    const std::uint64_t item_b = ItemSize(source_b.dtype);
    if (item_a != item_b) {
      return item_a > item_b;
    }
    return std::tie(source_a.fqn, left.box.offsets) < std::tie(source_b.fqn, right.box.offsets);
  });
  return order;
}

void PutItems(const std::vector<DcpExtent>& items, ByteWriter* out) {
  out->Varint(items.size());
  for (const DcpExtent& item : items) {
    out->Varint(item.offset);
    out->Varint(item.length);
    out->Varint(item.payload);
  }
}

void GetItems(ByteReader* in, std::vector<DcpExtent>* items) {
  const std::uint64_t count = in->Count(3);
  for (std::uint64_t i = 0; i < count && !in->failed(); ++i) {
    DcpExtent item;
    item.offset = in->Varint();
    item.length = in->Varint();
    item.payload = in->Varint();
    items->push_back(item);
  }
}

/// Gathers what the ranks have written into one index.
class IndexBuilder {
 public:
  Status Add(std::uint32_t rank, const LocalPlan& plan, const RankAssignment& assignment,
             const DcpReceipt& receipt) {
    if (receipt.chunks.size() != assignment.chunks.size() ||
        receipt.objects.size() != assignment.objects.size()) {
      return Internal("rank " + std::to_string(rank) + " reports other items than it was given");
    }
    DataFile file;
    file.name = DcpFileName(rank);
    file.rank = rank;
    file.size = receipt.size;
    file.block_crc32c = receipt.block_crc32c;
    metadata_.files.push_back(std::move(file));
    std::map<std::uint32_t, std::vector<std::uint32_t>> aliases;  // Of an item: items tied to it.
    for (const std::uint32_t alias : assignment.aliases) {
      aliases[*plan.tensors[alias].tied_to].push_back(alias);
    }
    for (std::size_t i = 0; i < receipt.chunks.size(); ++i) {
      const ChunkAssignment& chunk = assignment.chunks[i];
      const WriteItem& item = plan.tensors[chunk.item];
      const DcpExtent& place = receipt.chunks[i];
      Chunk stored;
      stored.box = chunk.box;
      stored.extent = {rank, place.offset, place.offset + place.length, Encoding::kTorchItem};
      stored.payload = place.payload;
      for (const std::uint32_t alias : aliases[chunk.item]) {
        AddChunk(plan.tensors[alias], stored);
      }
      AddChunk(item, std::move(stored));
    }
    for (std::size_t i = 0; i < receipt.objects.size(); ++i) {
      const DcpExtent& place = receipt.objects[i];
      const std::string& fqn = plan.objects[assignment.objects[i]].fqn;
      objects_[fqn] = {fqn,
                       {rank, place.offset, place.offset + place.length, Encoding::kTorchItem}};
    }
    return Status::Ok();
  }

  Metadata Take(std::uint64_t block_bytes) {
    metadata_.format = Format::kDcp;
    metadata_.world_size = static_cast<std::uint32_t>(metadata_.files.size());
    metadata_.block_bytes = block_bytes;
    for (auto& [fqn, tensor] : tensors_) {
      std::sort(tensor.chunks.begin(), tensor.chunks.end(),
                [](const Chunk& a, const Chunk& b) { return a.box.offsets < b.box.offsets; });
      metadata_.tensors.push_back(std::move(tensor));
    }
    for (auto& [fqn, object] : objects_) {
      metadata_.objects.push_back(std::move(object));
    }
    return std::move(metadata_);
  }

 private:
  void AddChunk(const WriteItem& item, Chunk chunk) {
    TensorMetadata& tensor = tensors_[item.fqn];
    tensor.fqn = item.fqn;
    tensor.dtype = item.dtype;
    tensor.shape = item.shape;
    tensor.chunks.push_back(std::move(chunk));
  }

  Metadata metadata_;
  std::map<std::string, TensorMetadata> tensors_;
  std::map<std::string, ObjectMetadata> objects_;
};

}  // namespace

std::string DcpFileName(std::uint32_t rank) { return "__" + std::to_string(rank) + "_0.distcp"; }

Bytes EncodeDcpReceipt(const DcpReceipt& receipt) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(receipt.size);
  PutItems(receipt.chunks, &out);
  PutItems(receipt.objects, &out);
  out.Varint(receipt.block_crc32c.size());
  for (const std::uint32_t crc : receipt.block_crc32c) {
    out.U32(crc);
  }
  return bytes;
}

Result<DcpReceipt> DecodeDcpReceipt(std::string_view bytes) {
  ByteReader in(bytes);
  DcpReceipt receipt;
  receipt.size = in.Varint();
  GetItems(&in, &receipt.chunks);
  GetItems(&in, &receipt.objects);
  const std::uint64_t count = in.Count(4);
  for (std::uint64_t i = 0; i < count; ++i) {
    receipt.block_crc32c.push_back(in.U32());
  }
  VARVE_RETURN_IF_ERROR(in.Finish());
  return receipt;
}

Result<FileWork> PrepareDcpShare(const State& state, const RankAssignment& assignment,
                                 const SaveOptions& options) {
  struct Parts {
    std::vector<DcpItem> items;
    std::shared_ptr<const void> layout;
  };
  const auto parts = std::make_shared<Parts>();
  std::vector<DcpItem>& items = parts->items;
  items.reserve(assignment.chunks.size() + assignment.objects.size());
  const std::vector<std::size_t> order = FileOrder(state, assignment);
  for (const std::size_t number : order) {
    const ChunkAssignment& chunk = assignment.chunks[number];
    const SourceTensor& source = state.tensors[chunk.item];
    if (source.produce && chunk.box != source.box) {
      return InvalidArgument("tensor \"" + source.fqn +
                             "\" is produced, not in memory; only a single rank can save it");
    }
    items.push_back(ItemOf(source, chunk.box));
  }
  for (const std::uint32_t number : assignment.objects) {
    const SourceObject& object = state.objects[number];
    VARVE_ASSIGN_OR_RETURN(const Value value, DecodeValue(object.encoded));
    auto archive = EncodeValueArchive(value);
    if (!archive.ok()) {
      return archive.status().Annotate("\"" + object.fqn + "\"");
    }
    DcpItem item;
    item.fqn = object.fqn;
    item.bytes = std::move(*archive);
    items.push_back(std::move(item));
  }
  VARVE_ASSIGN_OR_RETURN(DcpWork laid_out, LayOutDcpItems(items));
  parts->layout = std::move(laid_out.keep);
  DcpReceipt receipt;
  receipt.size = laid_out.size;
  receipt.chunks.resize(order.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i < order.size()) {
      receipt.chunks[order[i]] = laid_out.items[i];
    } else {
      receipt.objects.push_back(laid_out.items[i]);
    }
  }
  VARVE_ASSIGN_OR_RETURN(FileWork work,
                         DescribeDcpShare(EncodeDcpReceipt(receipt), options.block_bytes));
  work.segments = std::move(laid_out.segments);
  for (FileSegment& segment : work.segments) {
    if (segment.region) {
      segment.device = DeviceOf(state.tensors[assignment.chunks[order[segment.owner]].item]);
    }
  }
  work.keep = parts;
  work.name_of = [parts](std::uint32_t owner) { return parts->items[owner].fqn; };
  return work;
}

Result<FileWork> DescribeDcpShare(std::string_view layout, std::uint64_t block_bytes) {
  VARVE_ASSIGN_OR_RETURN(DcpReceipt receipt, DecodeDcpReceipt(layout));
  FileWork work;
  work.size = receipt.size;
  work.block_bytes = block_bytes;
  work.layout = layout;
  work.finish = [receipt = std::move(receipt)](WrittenSegments data) -> Result<FinishedFile> {
    DcpReceipt complete = receipt;
    complete.block_crc32c = std::move(data.block_crc32c);
    return FinishedFile{{}, EncodeDcpReceipt(complete)};
  };
  return work;
}

Result<DcpIndexFiles> MakeDcpIndex(const std::vector<LocalPlan>& plans,
                                   const std::vector<RankAssignment>& assignments,
                                   const std::vector<DcpReceipt>& receipts,
                                   std::vector<StoredFile> side_files, std::uint64_t block_bytes) {
  IndexBuilder builder;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    VARVE_RETURN_IF_ERROR(builder.Add(static_cast<std::uint32_t>(rank), plans[rank],
                                      assignments[rank], receipts[rank]));
  }
  Metadata metadata = builder.Take(block_bytes);
  metadata.side_files = std::move(side_files);
  std::optional<Value> structure;
  if (!assignments.empty() && !assignments[0].structure.empty()) {
    VARVE_ASSIGN_OR_RETURN(structure, DecodeValue(assignments[0].structure));
  }
  VARVE_ASSIGN_OR_RETURN(std::string index,
                         EncodeDcpIndex(metadata, structure ? &*structure : nullptr));
  return DcpIndexFiles{metadata.files, {{".metadata", std::move(index)}}};
}

}  // namespace varve
