#include "interop/olmo/sharded.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/checksum.h"
#include "interop/torch/parts.h"
#include "interop/torch/state_reader.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::string_view kSharded = "ShardedTensor";
constexpr std::string_view kDTensor = "DTensor";

/// Far more ints and tuples than the shape of any mesh has.
constexpr int kMaxMeshNodes = 256;

/// Returns the dict of an object's attributes, or kNoPickle. A class with slots has a pair of dicts
/// for its state, of which the first may be None.
PickleRef AttributesOf(const PickleTree& tree, PickleRef object) {
  PickleRef state = tree.IsObject(object) ? tree.object(object).state : object;
  if (state != kNoPickle && tree.kind(state) == PickleKind::kTuple &&
      tree.items(state).size() == 2) {
    state = tree.items(state)[1];
  }
  return state != kNoPickle && IsAttributes(tree, state) ? state : kNoPickle;
}

PickleRef AttributeOf(const PickleTree& tree, PickleRef object, std::string_view name) {
  const PickleRef attributes = object == kNoPickle ? kNoPickle : AttributesOf(tree, object);
  return attributes == kNoPickle ? kNoPickle : tree.Get(attributes, name);
}

/// Returns the arguments of `_rebuild_from_type_v2(_rebuild_wrapper_subclass, TYPE, ...)` for a
/// type of this name; empty for anything else.
std::span<const PickleRef> WrapperAt(const PickleTree& tree, PickleRef node,
                                     std::string_view type) {
  if (tree.kind(node) != PickleKind::kReduce ||
      !tree.IsMadeBy(node, "torch._tensor", "_rebuild_from_type_v2")) {
    return {};
  }
  const std::span<const PickleRef> arguments = ArgumentsOf(tree, node);
  const bool is_wrapper =
      arguments.size() == 4 &&
      tree.IsGlobal(arguments[0], "torch._utils", "_rebuild_wrapper_subclass") &&
      tree.name(arguments[1]) == type && tree.module(arguments[1]).starts_with("torch.distributed");
  return is_wrapper ? arguments : std::span<const PickleRef>();
}

/// Checks a box that a file names. Errors: DataLoss.
Status CheckPlace(const Dims& shape, const Box& box, DType dtype) {
  const Status status = CheckBox(shape, box, ItemSize(dtype));
  return status.ok() ? status : DataLoss("a sharded tensor: " + status.message());
}

/// Returns dtype and shape from the arguments of _rebuild_wrapper_subclass: (class, dtype, size,
/// stride, ...).
Result<StoredTensor> WholeAt(const PickleTree& tree, PickleRef arguments) {
  const std::span<const PickleRef> items = tree.items(arguments);
  const auto dtype = items.size() > 2 && tree.module(items[1]) == "torch"
                         ? DTypeFromName(tree.name(items[1]))
                         : std::nullopt;
  auto shape = items.size() > 2 ? DimsAt(tree, items[2]) : std::nullopt;
  if (!dtype || !shape) {
    return DataLoss("a sharded tensor has no dtype or shape that Varve knows");
  }
  VARVE_RETURN_IF_ERROR(CheckPlace(*shape, WholeBox(*shape), *dtype));
  return StoredTensor{*dtype, *std::move(shape), {}, {}};
}

/// Returns the rank of a `_remote_device`: its `_rank`, or that of the text "rank:3/cpu".
std::optional<std::uint64_t> RankOf(const PickleTree& tree, PickleRef placement) {
  if (placement == kNoPickle) {
    return std::nullopt;
  }
  if (const PickleRef rank = AttributeOf(tree, placement, "_rank"); rank != kNoPickle) {
    return CountAt(tree, rank);
  }
  std::string_view text = tree.text(placement);
  if (!text.starts_with("rank:")) {
    return std::nullopt;
  }
  text.remove_prefix(5);
  std::uint64_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc{} ? std::optional(rank) : std::nullopt;
}

/// A shard as ShardMetadata describes it.
struct ShardPlace {
  Box box;
  std::uint64_t rank = 0;
  [[nodiscard]] auto Key() const { return std::tie(box.offsets, box.sizes, rank); }
};

bool Before(const ShardPlace& a, const ShardPlace& b) { return a.Key() < b.Key(); }

Result<ShardPlace> ShardPlaceAt(const PickleTree& tree, PickleRef node, const StoredTensor& whole,
                                std::uint32_t world_size) {
  const PickleRef offsets = AttributeOf(tree, node, "shard_offsets");
  const PickleRef sizes = AttributeOf(tree, node, "shard_sizes");
  auto begin = offsets == kNoPickle ? std::nullopt : DimsAt(tree, offsets);
  auto size = sizes == kNoPickle ? std::nullopt : DimsAt(tree, sizes);
  const auto rank = RankOf(tree, AttributeOf(tree, node, "placement"));
  if (!begin || !size || !rank) {
    return DataLoss("a shard's metadata have no valid offsets, sizes or placement");
  }
  ShardPlace place{{*std::move(begin), *std::move(size)}, *rank};
  VARVE_RETURN_IF_ERROR(CheckPlace(whole.shape, place.box, whole.dtype));
  if (place.rank >= world_size) {
    return DataLoss("a shard is placed on rank " + std::to_string(place.rank) +
                    ", but the checkpoint has " + std::to_string(world_size) + " ranks");
  }
  return place;
}

void AddDims(const Dims& dims, ByteWriter* out) {
  out->U64(dims.size());
  for (const std::uint64_t size : dims) {
    out->U64(size);
  }
}

/// Checks that the tensor's metadata list the shards that a rank holds. Takes linear time for few
/// shards of a rank among many: each rank's file lists those of all ranks.
Status CheckListed(const std::vector<ShardPlace>& places, std::vector<ShardPlace> own) {
  std::sort(own.begin(), own.end(), Before);
  std::vector<bool> listed(own.size(), false);
  for (const ShardPlace& place : places) {
    const auto [first, last] = std::equal_range(own.begin(), own.end(), place, Before);
    if (first != last && !listed[static_cast<std::size_t>(first - own.begin())]) {
      std::fill(listed.begin() + (first - own.begin()), listed.begin() + (last - own.begin()),
                true);
    }
  }
  const auto missing = std::find(listed.begin(), listed.end(), false);
  if (missing == listed.end()) {
    return Status::Ok();
  }
  const ShardPlace& place = own[static_cast<std::size_t>(missing - listed.begin())];
  return DataLoss("the shard " + ToString(place.box) + " of rank " + std::to_string(place.rank) +
                  " is not in the tensor's metadata");
}

std::string DigestOf(const StoredTensor& whole, const std::vector<ShardPlace>& places) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.U8(static_cast<std::uint8_t>(whole.dtype));
  AddDims(whole.shape, &out);
  for (const ShardPlace& place : places) {
    AddDims(place.box.offsets, &out);
    AddDims(place.box.sizes, &out);
    out.U64(place.rank);
  }
  const Hash128 hash = Xxh3(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return {hash.bytes.begin(), hash.bytes.end()};
}

/// Returns the chunk that `node`, a plain tensor, stores of `box`; nothing for an empty one.
Result<std::optional<Chunk>> ChunkAt(const TorchArchive& archive, PickleRef node, const Box& box,
                                     DType dtype, std::uint32_t file) {
  if (node == kNoPickle) {
    return DataLoss("a shard has no tensor");
  }
  VARVE_ASSIGN_OR_RETURN(const auto tensor, archive.TensorAt(node));
  if (!tensor) {
    return DataLoss("a shard's tensor is none that Varve can read");
  }
  if (tensor->dtype != dtype || tensor->sizes != box.sizes) {
    return DataLoss("a shard of " + ToString(box) + " and " + std::string(DTypeName(dtype)) +
                    " holds a " + std::string(DTypeName(tensor->dtype)) + " tensor of shape " +
                    ToString(tensor->sizes));
  }
  if (IsEmpty(box)) {
    return std::optional<Chunk>();
  }
  Chunk chunk = std::move(StoredWhole(archive, *tensor, file).chunks[0]);
  chunk.box = box;
  return std::optional(std::move(chunk));
}

/// Reads (list of Shard, ShardedTensorMetadata, process group, sharding spec, bool).
/// Takes the shards that it walks from `*shards_left`.
Result<StateNode> ShardedAt(const TorchArchive& archive, std::span<const PickleRef> arguments,
                            std::uint32_t file, std::uint32_t world_size,
                            std::uint64_t* shards_left) {
  const PickleTree& tree = archive.tree();
  const std::span<const PickleRef> state = tree.items(arguments[3]);
  const PickleRef listed =
      state.size() < 2 ? kNoPickle : AttributeOf(tree, state[1], "shards_metadata");
  if (listed == kNoPickle) {
    return DataLoss("a ShardedTensor has no metadata of its shards");
  }
  const std::uint64_t shards = tree.items(listed).size() + tree.items(state[0]).size();
  if (shards > *shards_left) {
    return DataLoss("the sharded tensors have more shards than a pickle of its size can list");
  }
  *shards_left -= shards;
  VARVE_ASSIGN_OR_RETURN(StoredTensor whole, WholeAt(tree, arguments[2]));
  std::vector<ShardPlace> places;
  for (const PickleRef node : tree.items(listed)) {
    VARVE_ASSIGN_OR_RETURN(ShardPlace place, ShardPlaceAt(tree, node, whole, world_size));
    places.push_back(std::move(place));
  }
  std::vector<ShardPlace> own;
  for (const PickleRef shard : tree.items(state[0])) {
    const PickleRef metadata = AttributeOf(tree, shard, "metadata");
    if (metadata == kNoPickle) {
      return DataLoss("a shard has no metadata");
    }
    VARVE_ASSIGN_OR_RETURN(ShardPlace place, ShardPlaceAt(tree, metadata, whole, world_size));
    VARVE_ASSIGN_OR_RETURN(auto chunk, ChunkAt(archive, AttributeOf(tree, shard, "tensor"),
                                               place.box, whole.dtype, file));
    if (chunk) {
      whole.chunks.push_back(*std::move(chunk));
    }
    own.push_back(std::move(place));
  }
  VARVE_RETURN_IF_ERROR(CheckListed(places, std::move(own)));
  whole.sharding = DigestOf(whole, places);
  return StateNode::OfTensor(std::move(whole));
}

/// Returns the product of an int, or of the ints in tuples of tuples; nothing where they are more
/// than `*nodes_left`. Meshes have few; tuples that use one another many times would take forever.
std::optional<std::uint64_t> ProductAt(const PickleTree& tree, PickleRef node, int* nodes_left) {
  if (--*nodes_left < 0) {
    return std::nullopt;
  }
  if (tree.kind(node) == PickleKind::kInt) {
    return CountAt(tree, node);
  }
  if (tree.kind(node) != PickleKind::kTuple) {
    return std::nullopt;
  }
  std::uint64_t product = 1;
  for (const PickleRef item : tree.items(node)) {
    const auto factor = ProductAt(tree, item, nodes_left);
    const auto larger = factor ? CheckedMul(product, *factor) : std::nullopt;
    if (!larger) {
      return std::nullopt;
    }
    product = *larger;
  }
  return product;
}

/// Returns a mesh's shape: of the tensor `mesh` (until torch 2.8), or of `_layout`, whose `shape`
/// or `axes` newer versions keep.
Result<Dims> MeshShapeAt(const TorchArchive& archive, PickleRef mesh) {
  const PickleTree& tree = archive.tree();
  if (const PickleRef ranks = AttributeOf(tree, mesh, "mesh"); ranks != kNoPickle) {
    VARVE_ASSIGN_OR_RETURN(const auto tensor, archive.TensorAt(ranks));
    if (tensor) {
      return tensor->sizes;
    }
  }
  Dims shape;
  const PickleRef layout = AttributeOf(tree, mesh, "_layout");
  PickleRef axes = AttributeOf(tree, layout, "axes");
  const bool nested = axes != kNoPickle;
  axes = nested ? axes : AttributeOf(tree, layout, "shape");
  if (axes == kNoPickle) {
    return DataLoss("a DTensor's mesh has no shape that Varve knows");
  }
  if (tree.kind(axes) == PickleKind::kInt) {  // One dimension.
    return Dims{static_cast<std::uint64_t>(tree.integer(axes))};
  }
  int nodes_left = kMaxMeshNodes;
  for (const PickleRef axis : tree.items(axes)) {
    const PickleRef size = nested ? AttributeOf(tree, axis, "shape") : axis;
    const auto product = size == kNoPickle ? std::nullopt : ProductAt(tree, size, &nodes_left);
    if (!product) {
      return DataLoss("a DTensor's mesh has no shape that Varve knows");
    }
    shape.push_back(*product);
  }
  return shape;
}

/// Cuts [offset, offset + size) of one dimension into `count` parts as torch.chunk does and keeps
/// part `index`.
void KeepChunk(std::uint64_t count, std::uint64_t index, std::uint64_t* offset,
               std::uint64_t* size) {
  const std::uint64_t step = *size / count + (*size % count == 0 ? 0 : 1);
  const std::uint64_t begin = std::min(step * index, *size);
  *offset += begin;
  *size = std::min(step, *size - begin);
}

/// Returns the part of a DTensor that its rank holds. Adds the placements to `*digest`.
Result<Box> PartAt(const TorchArchive& archive, PickleRef spec, const Dims& shape,
                   ByteWriter* digest) {
  const PickleTree& tree = archive.tree();
  const PickleRef mesh = AttributeOf(tree, spec, "mesh");
  const PickleRef placements = AttributeOf(tree, spec, "placements");
  const PickleRef place = AttributeOf(tree, mesh, "_coordinate_on_dim");
  const auto coordinate = place == kNoPickle ? std::nullopt : DimsAt(tree, place);
  if (placements == kNoPickle || !coordinate) {
    return DataLoss("a DTensor has no placements, or its mesh not the rank's coordinate");
  }
  VARVE_ASSIGN_OR_RETURN(const Dims mesh_shape, MeshShapeAt(archive, mesh));
  const std::span<const PickleRef> items = tree.items(placements);
  if (items.size() != mesh_shape.size() || coordinate->size() != mesh_shape.size()) {
    return DataLoss("a DTensor has " + std::to_string(items.size()) + " placements on a mesh of " +
                    std::to_string(mesh_shape.size()) + " dimensions");
  }
  Box part = WholeBox(shape);
  for (std::size_t m = 0; m < items.size(); ++m) {
    const PickleRef callee = tree.IsObject(items[m]) ? tree.object(items[m]).callee : kNoPickle;
    const std::string_view kind = callee == kNoPickle ? "" : tree.name(callee);
    digest->U64(mesh_shape[m]);
    if (kind == "Replicate") {
      digest->U64(~std::uint64_t{0});
      continue;
    }
    if (kind != "Shard") {
      return Unimplemented("a DTensor has the placement " + std::string(kind) +
                           "; Varve reads Shard and Replicate");
    }
    const PickleRef dim = AttributeOf(tree, items[m], "dim");
    const auto d = dim == kNoPickle ? std::nullopt : CountAt(tree, dim);
    if (!d || *d >= shape.size() || mesh_shape[m] == 0 || (*coordinate)[m] >= mesh_shape[m]) {
      return DataLoss("a DTensor is sharded along a dimension, or by a rank, that is not there");
    }
    digest->U64(*d);
    KeepChunk(mesh_shape[m], (*coordinate)[m], &part.offsets[*d], &part.sizes[*d]);
  }
  return part;
}

Result<StateNode> DTensorAt(const TorchArchive& archive, std::span<const PickleRef> arguments,
                            std::uint32_t file) {
  const PickleTree& tree = archive.tree();
  const PickleRef attributes = AttributesOf(tree, arguments[3]);
  if (attributes == kNoPickle || tree.Get(attributes, "_spec") == kNoPickle) {
    return DataLoss("a DTensor has no _spec");
  }
  VARVE_ASSIGN_OR_RETURN(StoredTensor whole, WholeAt(tree, arguments[2]));
  Bytes bytes;
  ByteWriter digest(&bytes);
  AddDims(whole.shape, &digest);
  VARVE_ASSIGN_OR_RETURN(const Box part,
                         PartAt(archive, tree.Get(attributes, "_spec"), whole.shape, &digest));
  VARVE_ASSIGN_OR_RETURN(
      auto chunk, ChunkAt(archive, tree.Get(attributes, "_local_tensor"), part, whole.dtype, file));
  if (chunk) {
    whole.chunks.push_back(*std::move(chunk));
  }
  whole.sharding = "dtensor " + std::string(bytes.data(), bytes.size());
  return StateNode::OfTensor(std::move(whole));
}

}  // namespace

Result<std::optional<StateNode>> ShardedTensors::At(PickleRef node) {
  const PickleTree& tree = archive_.tree();
  const auto sharded = WrapperAt(tree, node, kSharded);
  const auto dtensor = WrapperAt(tree, node, kDTensor);
  if (sharded.empty() && dtensor.empty()) {
    return std::optional<StateNode>();
  }
  if (const auto known = read_.find(node); known != read_.end()) {
    return std::optional(known->second);
  }
  VARVE_ASSIGN_OR_RETURN(const StateNode tensor,
                         sharded.empty()
                             ? DTensorAt(archive_, dtensor, file_)
                             : ShardedAt(archive_, sharded, file_, world_size_, &shards_left_));
  read_.emplace(node, tensor);
  return std::optional(tensor);
}

}  // namespace varve
