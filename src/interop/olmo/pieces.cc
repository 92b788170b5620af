#include "interop/olmo/pieces.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve {
namespace {

constexpr std::uint64_t kCompareBytes = std::uint64_t{4} << 20;

std::string Range(std::uint64_t begin, std::uint64_t end) {
  return "elements [" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

/// Returns the part of a piece from its element `begin` to `end`.
FlatPiece PartOf(const FlatPiece& piece, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t item = ItemSize(piece.dtype);
  FlatPiece part = piece;
  part.begin = begin;
  part.end = end;
  part.extent.begin += (begin - piece.begin) * item;
  part.extent.end = part.extent.begin + (end - begin) * item;
  return part;
}

void AddChunks(const Dims& shape, const FlatPiece& piece, std::vector<Chunk>* chunks) {
  std::uint64_t at = piece.extent.begin;
  for (Box& box : FlatRunBoxes(shape, piece.begin, piece.end)) {
    const std::uint64_t bytes = Volume(box.sizes) * ItemSize(piece.dtype);
    Chunk chunk{.box = std::move(box),
                .extent = {piece.extent.file, at, at + bytes, Encoding::kPlain},
                .content = {},
                .strides = {}};
    chunks->push_back(std::move(chunk));
    at += bytes;
  }
}

}  // namespace

ReplicaCheck::ReplicaCheck(FileNames names, std::vector<RecordCrc> records, ExtentReader read)
    : names_(std::move(names)), records_(std::move(records)), read_(std::move(read)) {
  std::sort(records_.begin(), records_.end(), [](const RecordCrc& a, const RecordCrc& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
}

/// Returns the record that holds the extent, or null.
const RecordCrc* ReplicaCheck::RecordOf(const Extent& extent) const {
  auto after = std::upper_bound(
      records_.begin(), records_.end(), extent, [](const Extent& want, const RecordCrc& record) {
        return std::tie(want.file, want.begin) < std::tie(record.file, record.begin);
      });
  if (after == records_.begin()) {
    return nullptr;
  }
  --after;
  return after->file == extent.file && extent.end <= after->end ? &*after : nullptr;
}

Status ReplicaCheck::Equal(const Extent& a, const Extent& b, const std::string& what) const {
  Status unequal = DataLoss(what + ": " + names_[a.file] + " and " + names_[b.file] +
                            " store different values of it");
  const std::uint64_t bytes = a.end - a.begin;
  if (bytes != b.end - b.begin) {
    return unequal;
  }
  const RecordCrc* const of_a = RecordOf(a);
  const RecordCrc* const of_b = RecordOf(b);
  if (of_a != nullptr && of_b != nullptr && a.begin - of_a->begin == b.begin - of_b->begin &&
      of_a->end - of_a->begin == of_b->end - of_b->begin) {
    if (of_a->crc == of_b->crc) {
      return Status::Ok();
    }
    if (of_a->end - of_a->begin == bytes) {
      return unequal;
    }
  }
  for (std::uint64_t at = 0; at < bytes; at += kCompareBytes) {
    const std::uint64_t end = std::min(bytes, at + kCompareBytes);
    VARVE_ASSIGN_OR_RETURN(const std::string left, read_(a.file, a.begin + at, a.begin + end));
    VARVE_ASSIGN_OR_RETURN(const std::string right, read_(b.file, b.begin + at, b.begin + end));
    if (left != right) {
      return unequal;
    }
  }
  return Status::Ok();
}

Result<StoredTensor> TensorOfPieces(const std::string& fqn, const Dims& shape,
                                    std::vector<FlatPiece> pieces, const ReplicaCheck& check) {
  StoredTensor tensor{.dtype = pieces.empty() ? DType::kUInt8 : pieces.front().dtype,
                      .shape = shape,
                      .chunks = {},
                      .sharding = {}};
  for (const FlatPiece& piece : pieces) {
    if (piece.dtype != tensor.dtype) {
      return DataLoss("\"" + fqn + "\" is " + std::string(DTypeName(tensor.dtype)) + " in " +
                      check.name(pieces.front().extent.file) + " and " +
                      std::string(DTypeName(piece.dtype)) + " in " + check.name(piece.extent.file));
    }
  }
  if (const Status status = CheckBox(shape, WholeBox(shape), ItemSize(tensor.dtype));
      !status.ok()) {
    return DataLoss("\"" + fqn + "\": " + status.message());
  }
  // The first rank's piece comes first where two begin at one element.
  std::stable_sort(pieces.begin(), pieces.end(), [](const FlatPiece& a, const FlatPiece& b) {
    return std::tie(a.begin, a.extent.file) < std::tie(b.begin, b.extent.file);
  });
  // Disjoint, in order: what later pieces are compared with.
  std::vector<FlatPiece> kept;
  for (const FlatPiece& piece : pieces) {
    std::uint64_t begin = piece.begin;
    // Kept pieces that reach into this one are the last ones: all begin before it.
    auto earlier = std::lower_bound(
        kept.begin(), kept.end(), piece.begin,
        [](const FlatPiece& before, std::uint64_t at) { return before.end <= at; });
    for (; earlier != kept.end() && begin < piece.end; ++earlier) {
      const std::uint64_t end = std::min(piece.end, earlier->end);
      const FlatPiece a = PartOf(*earlier, begin, end);
      const FlatPiece b = PartOf(piece, begin, end);
      VARVE_RETURN_IF_ERROR(
          check.Equal(a.extent, b.extent, "\"" + fqn + "\", " + Range(begin, end)));
      begin = end;
    }
    if (begin < piece.end) {
      kept.push_back(PartOf(piece, begin, piece.end));
    }
  }
  for (const FlatPiece& piece : kept) {
    AddChunks(shape, piece, &tensor.chunks);
  }
  return tensor;
}

Result<std::vector<Chunk>> ChunksOnce(const std::string& fqn, std::vector<Chunk> parts,
                                      const ReplicaCheck& check) {
  std::vector<Chunk> chunks;
  std::map<std::pair<Dims, Dims>, std::size_t> by_box;
  for (Chunk& part : parts) {
    const auto [same, is_new] =
        by_box.try_emplace({part.box.offsets, part.box.sizes}, chunks.size());
    if (is_new) {
      chunks.push_back(std::move(part));
      continue;
    }
    const Chunk& first = chunks[same->second];
    if (first.strides != part.strides || first.conj != part.conj || first.neg != part.neg) {
      return DataLoss("\"" + fqn + "\", " + ToString(part.box) + ": " +
                      check.name(first.extent.file) + " and " + check.name(part.extent.file) +
                      " store it with different strides");
    }
    VARVE_RETURN_IF_ERROR(
        check.Equal(first.extent, part.extent, "\"" + fqn + "\", " + ToString(part.box)));
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const Chunk& a, const Chunk& b) { return a.box.offsets < b.box.offsets; });
  VARVE_ASSIGN_OR_RETURN(const auto overlap, FindOverlap(BoxesOf(chunks)));
  if (overlap) {
    const Chunk& a = chunks[overlap->first];
    const Chunk& b = chunks[overlap->second];
    return DataLoss("\"" + fqn + "\": " + ToString(a.box) + " in " + check.name(a.extent.file) +
                    " and " + ToString(b.box) + " in " + check.name(b.extent.file) + " overlap");
  }
  return chunks;
}

// ---- states of all ranks ----

namespace {

Status Differs(const std::string& name, const std::string& how, std::size_t rank,
               const ReplicaCheck& check) {
  return DataLoss("\"" + name + "\" " + how + " in " + check.name(0) + " and " +
                  check.name(static_cast<std::uint32_t>(rank)));
}

/// Puts the parts of a sharded tensor together.
Result<StateNode> MergeShards(const std::string& name, const std::vector<StateNode*>& ranks,
                              const ReplicaCheck& check) {
  StateNode merged = std::move(*ranks[0]);
  std::vector<Chunk> parts = std::move(merged.tensor.chunks);
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    std::move(ranks[r]->tensor.chunks.begin(), ranks[r]->tensor.chunks.end(),
              std::back_inserter(parts));
  }
  VARVE_ASSIGN_OR_RETURN(merged.tensor.chunks, ChunksOnce(name, std::move(parts), check));
  return merged;
}

Result<StateNode> MergeTensors(const std::string& name, const std::vector<StateNode*>& ranks,
                               const ReplicaCheck& check) {
  const StoredTensor& first = ranks[0]->tensor;
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const StoredTensor& tensor = ranks[r]->tensor;
    if (tensor.dtype != first.dtype || tensor.shape != first.shape ||
        tensor.sharding != first.sharding) {
      return Differs(name, "has different dtypes, shapes or shards", r, check);
    }
    if (!first.sharding.empty()) {
      continue;
    }
    const Chunk& a = first.chunks[0];
    const Chunk& b = tensor.chunks[0];
    if (a.strides != b.strides || a.conj != b.conj || a.neg != b.neg) {
      return Differs(name, "has different strides", r, check);
    }
    VARVE_RETURN_IF_ERROR(check.Equal(a.extent, b.extent, "\"" + name + "\""));
  }
  return first.sharding.empty() ? Result<StateNode>(std::move(*ranks[0]))
                                : MergeShards(name, ranks, check);
}

/// Gives a mapping's items the order of `keys`, of which there are as many. Returns a key that the
/// mapping lacks, or nothing.
std::optional<Value> Reorder(const std::vector<Value>& keys, StateNode* mapping) {
  if (mapping->keys == keys) {
    return std::nullopt;
  }
  std::unordered_map<std::string, std::size_t> places;  // Looked up only.
  for (std::size_t i = 0; i < mapping->keys.size(); ++i) {
    places.emplace(EncodeValue(mapping->keys[i]), i);
  }
  std::vector<StateNode> items;
  items.reserve(keys.size());
  for (const Value& key : keys) {
    const auto place = places.extract(EncodeValue(key));
    if (place.empty()) {
      return key;
    }
    items.push_back(std::move(mapping->items[place.mapped()]));
  }
  mapping->keys = keys;
  mapping->items = std::move(items);
  return std::nullopt;
}

}  // namespace

Result<StateNode> MergeRanks(const std::string& name, std::vector<StateNode*> ranks,
                             const ReplicaCheck& check) {
  StateNode& first = *ranks[0];
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r]->kind != first.kind || ranks[r]->items.size() != first.items.size() ||
        ranks[r]->factory != first.factory) {
      return Differs(name, "is of different kinds or lengths", r, check);
    }
    if (first.kind == ValueKind::kObjectLeaf && ranks[r]->value != first.value) {
      return Differs(name, "has different values", r, check);
    }
  }
  if (first.kind == ValueKind::kTensorLeaf) {
    return MergeTensors(name, ranks, check);
  }
  const auto below = [&](const std::string& part) {
    return name.empty() ? part : name + "." + part;
  };
  for (std::size_t r = 1; r < ranks.size() && first.IsMapping(); ++r) {
    if (const auto missing = Reorder(first.keys, ranks[r])) {
      return DataLoss("\"" + below(KeyText(*missing)) + "\" is in " + check.name(0) +
                      " and not in " + check.name(static_cast<std::uint32_t>(r)));
    }
  }
  StateNode merged;
  merged.kind = first.kind;
  merged.factory = first.factory;
  merged.value = first.value;
  merged.stored_key = first.stored_key;
  merged.keys = first.keys;
  for (std::size_t i = 0; i < first.items.size(); ++i) {
    std::vector<StateNode*> items;
    items.reserve(ranks.size());
    for (StateNode* const rank : ranks) {
      items.push_back(&rank->items[i]);
    }
    const std::string part = first.IsMapping() ? KeyText(first.keys[i]) : std::to_string(i);
    VARVE_ASSIGN_OR_RETURN(StateNode item, MergeRanks(below(part), std::move(items), check));
    merged.items.push_back(std::move(item));
  }
  return merged;
}

}  // namespace varve
