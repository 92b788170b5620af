// Model files of the `local` layout.

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "interop/olmo/local.h"
#include "interop/olmo/names.h"
#include "interop/torch/archive.h"
#include "interop/torch/parts.h"
#include "interop/torch/state_reader.h"
#include "interop/torch/values.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// A handle of a model file: one flat parameter.
struct Handle {
  std::string prefix;  ///< Of its parameters' names: the module's, with a dot, or empty.
  PickleRef node = kNoPickle;
  ArchiveTensor data;
};

Status MalformedModel(const std::string& problem) {
  return DataLoss("no model file of OLMo's local layout: " + problem);
}

/// Returns a handle's attribute of the flat parameter, or kNoPickle.
PickleRef FlatParamAttribute(const PickleTree& tree, PickleRef handle, std::string_view name) {
  return tree.Get(handle, "flat_param." + std::string(name));
}

Result<Handle> HandleAt(const TorchArchive& archive, PickleRef node, const std::string& prefix) {
  const PickleTree& tree = archive.tree();
  if (!IsAttributes(tree, node)) {
    return MalformedModel("a handle is no dict of attributes");
  }
  const PickleRef data = FlatParamAttribute(tree, node, "data");
  if (data == kNoPickle) {
    return MalformedModel("a handle has no flat_param.data");
  }
  VARVE_ASSIGN_OR_RETURN(auto tensor, archive.TensorAt(data));
  if (!tensor || tensor->sizes.size() != 1 || (tensor->sizes[0] > 1 && tensor->strides[0] != 1)) {
    return MalformedModel("flat_param.data is no contiguous 1-d tensor");
  }
  return Handle{prefix, node, *std::move(tensor)};
}

/// Reads the handles of all modules. Counts them as `*values` does: modules, handles and lists of
/// names that a pickle uses many times could ask for any amount of memory.
Result<std::vector<Handle>> HandlesOf(const TorchArchive& archive, TorchValues* values) {
  const PickleTree& tree = archive.tree();
  const PickleRef modules = tree.Get(tree.root(), "modules");
  if (tree.kind(tree.root()) != PickleKind::kDict || modules == kNoPickle) {
    return MalformedModel("it holds no dict with \"modules\"");
  }
  std::vector<Handle> handles;
  for (const PickleRef module : tree.items(modules)) {
    if (!IsAttributes(tree, module) || tree.Get(module, "name") == kNoPickle ||
        tree.Get(module, "handles") == kNoPickle) {
      return MalformedModel("a module has no name or no handles");
    }
    // A name may end with the wrapper's, which the dot behind it completes.
    const std::string_view name = tree.text(tree.Get(module, "name"));
    const std::string prefix = name.empty() ? "" : CleanName(std::string(name) + ".");
    for (const PickleRef handle : tree.items(tree.Get(module, "handles"))) {
      VARVE_RETURN_IF_ERROR(values->Charge(sizeof(Handle) + prefix.size()));
      VARVE_ASSIGN_OR_RETURN(Handle found, HandleAt(archive, handle, prefix));
      handles.push_back(std::move(found));
    }
  }
  return handles;
}

/// The parameters of one handle: names, shapes.
struct Described {
  std::span<const PickleRef> fqns;
  std::span<const PickleRef> shapes;
};

Result<Described> DescribedBy(const PickleTree& tree, const Handle& handle) {
  const PickleRef fqns = FlatParamAttribute(tree, handle.node, "_fqns");
  const PickleRef shapes = FlatParamAttribute(tree, handle.node, "_shapes");
  if (fqns == kNoPickle || shapes == kNoPickle) {
    return MalformedModel("a handle has no flat_param._fqns or no flat_param._shapes");
  }
  Described described{tree.items(fqns), tree.items(shapes)};
  if (described.fqns.size() != described.shapes.size()) {
    return MalformedModel(std::to_string(described.fqns.size()) + " names and " +
                          std::to_string(described.shapes.size()) + " shapes in one handle");
  }
  return described;
}

/// Elements [begin, end) of a parameter, from element `at` of the flat shard.
struct Shard {
  std::size_t parameter = 0;  ///< In the handle.
  std::uint64_t at = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Reads `_shard_param_infos`: (in_shard, offset_in_shard, numel_in_shard, intra_param_start_idx,
/// intra_param_end_idx), the last one inclusive.
Result<std::vector<Shard>> ShardsByInfo(const PickleTree& tree, PickleRef infos,
                                        std::size_t parameters) {
  const std::span<const PickleRef> items = tree.items(infos);
  if (items.size() != parameters) {
    return MalformedModel(std::to_string(parameters) + " parameters and " +
                          std::to_string(items.size()) + " _shard_param_infos");
  }
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::span<const PickleRef> fields =
        tree.IsObject(items[i]) ? ArgumentsOf(tree, items[i]) : tree.items(items[i]);
    if (fields.size() != 5 || tree.kind(fields[0]) != PickleKind::kBool) {
      return MalformedModel("a _ShardParamInfo has not the five fields it needs");
    }
    if (tree.integer(fields[0]) == 0) {
      continue;
    }
    const auto at = CountAt(tree, fields[1]);
    const auto count = CountAt(tree, fields[2]);
    const auto first = CountAt(tree, fields[3]);
    const auto last = CountAt(tree, fields[4]);
    if (!at || !count || !first || !last || *last < *first || *last - *first + 1 != *count) {
      return MalformedModel("a _ShardParamInfo contradicts itself");
    }
    shards.push_back({i, *at, *first, *last + 1});
  }
  return shards;
}

/// Reads `_shard_indices` and `_shard_param_offsets` of torch 2.0: the parameters from the first
/// index on have pieces, one behind the other in the flat shard. A shard of padding alone has no
/// offsets.
Result<std::vector<Shard>> ShardsByOffset(const PickleTree& tree, PickleRef indices,
                                          PickleRef offsets, std::size_t parameters) {
  const std::span<const PickleRef> bounds = tree.items(indices);
  const auto first = bounds.size() == 2 ? CountAt(tree, bounds[0]) : std::nullopt;
  if (!first || offsets == kNoPickle) {
    return MalformedModel("_shard_indices or _shard_param_offsets is not what torch 2.0 writes");
  }
  std::vector<Shard> shards;
  std::uint64_t at = 0;
  for (const PickleRef pair : tree.items(offsets)) {
    const std::span<const PickleRef> range = tree.items(pair);
    const auto begin = range.size() == 2 ? CountAt(tree, range[0]) : std::nullopt;
    const auto last = range.size() == 2 ? CountAt(tree, range[1]) : std::nullopt;
    const auto parameter = CheckedAdd(*first, shards.size());
    if (!begin || !last || *last < *begin || !parameter || *parameter >= parameters) {
      return MalformedModel("_shard_param_offsets names elements that no parameter has");
    }
    shards.push_back({static_cast<std::size_t>(*parameter), at, *begin, *last + 1});
    const auto next = CheckedAdd(at, *last - *begin + 1);
    if (!next) {
      return MalformedModel("_shard_param_offsets names too many elements");
    }
    at = *next;
  }
  return shards;
}

Result<std::vector<Shard>> ShardsOf(const PickleTree& tree, const Handle& handle,
                                    std::size_t parameters) {
  if (const PickleRef indices = FlatParamAttribute(tree, handle.node, "_shard_indices");
      indices != kNoPickle) {
    return ShardsByOffset(
        tree, indices, FlatParamAttribute(tree, handle.node, "_shard_param_offsets"), parameters);
  }
  const PickleRef infos = FlatParamAttribute(tree, handle.node, "_shard_param_infos");
  if (infos == kNoPickle) {
    return MalformedModel("a handle has neither _shard_param_infos nor _shard_indices");
  }
  return ShardsByInfo(tree, infos, parameters);
}

/// Returns the piece of the archive's file that elements [at, at + count) of a 1-d tensor are.
FlatPiece PieceAt(const TorchArchive& archive, const ArchiveTensor& data, std::uint32_t number,
                  std::uint64_t at, std::uint64_t count) {
  const std::uint64_t item = ItemSize(data.dtype);
  const ArchiveStorage& storage = archive.storages()[data.storage];
  const std::uint64_t begin = (data.offset + at) * item;
  return {.begin = 0,
          .end = count,
          .dtype = data.dtype,
          .extent = {number, storage.begin + begin, storage.begin + begin + count * item,
                     Encoding::kPlain}};
}

/// Checks that the padding at the right end is zero. Takes its bytes from `*bytes_left`, those of
/// the file: flat parameters that share one storage could ask for any number of reads.
Status CheckPadding(const TorchArchive& archive, const RangeReader& read, const Handle& handle,
                    std::uint64_t* bytes_left) {
  const PickleTree& tree = archive.tree();
  const PickleRef node = FlatParamAttribute(tree, handle.node, "_shard_numel_padded");
  if (node == kNoPickle || tree.kind(node) == PickleKind::kNone) {
    return Status::Ok();
  }
  const auto padding = CountAt(tree, node);
  const std::uint64_t size = handle.data.sizes[0];
  if (!padding || *padding > size) {
    return MalformedModel("_shard_numel_padded is not a part of the flat shard");
  }
  constexpr std::uint64_t kReadBytes = std::uint64_t{4} << 20;
  const FlatPiece piece = PieceAt(archive, handle.data, 0, size - *padding, *padding);
  const std::uint64_t padding_bytes = piece.extent.end - piece.extent.begin;
  if (padding_bytes > *bytes_left) {
    return MalformedModel("its flat parameters have more padding than the file has bytes");
  }
  *bytes_left -= padding_bytes;
  for (std::uint64_t at = piece.extent.begin; at < piece.extent.end; at += kReadBytes) {
    VARVE_ASSIGN_OR_RETURN(const std::string bytes,
                           read(at, std::min(kReadBytes, piece.extent.end - at)));
    if (std::any_of(bytes.begin(), bytes.end(), [](char byte) { return byte != 0; })) {
      return DataLoss("the padding behind the flat parameter of \"" + handle.prefix +
                      "\" is not zero: elements [" + std::to_string(size - *padding) + ", " +
                      std::to_string(size) + ") of the shard");
    }
  }
  return Status::Ok();
}

/// Reads the pieces of one handle, whose first parameter is number `first` of the layout.
Status ReadHandle(const TorchArchive& archive, const RangeReader& read, const Handle& handle,
                  std::uint32_t number, const LocalLayout& layout, std::size_t first,
                  std::uint64_t* padding_left, LocalModel* out) {
  const PickleTree& tree = archive.tree();
  VARVE_ASSIGN_OR_RETURN(const Described described, DescribedBy(tree, handle));
  for (std::size_t i = 0; i < described.fqns.size(); ++i) {
    const std::string name = handle.prefix + CleanName(tree.text(described.fqns[i]));
    const auto shape = DimsAt(tree, described.shapes[i]);
    const bool known = first + i < layout.parameters.size();
    if (!shape || !known || layout.parameters[first + i].name != name ||
        layout.parameters[first + i].shape != *shape) {
      return DataLoss("it describes \"" + name + "\" otherwise than the first rank's file" +
                      (known ? ", which has \"" + layout.parameters[first + i].name + "\" " +
                                   ToString(layout.parameters[first + i].shape)
                             : std::string()));
    }
  }
  VARVE_ASSIGN_OR_RETURN(const auto shards, ShardsOf(tree, handle, described.fqns.size()));
  for (const Shard& shard : shards) {
    const auto parameter = static_cast<std::uint32_t>(first + shard.parameter);
    const LocalParameter& whole = layout.parameters[parameter];
    const std::uint64_t count = shard.end - shard.begin;
    if (shard.end > whole.elements || shard.at > handle.data.sizes[0] ||
        count > handle.data.sizes[0] - shard.at) {
      return DataLoss("\"" + whole.name + "\": elements [" + std::to_string(shard.begin) + ", " +
                      std::to_string(shard.end) + ") at " + std::to_string(shard.at) +
                      " of the shard lie outside of its " + std::to_string(whole.elements) +
                      " elements or of the shard's " + std::to_string(handle.data.sizes[0]));
    }
    FlatPiece piece = PieceAt(archive, handle.data, number, shard.at, count);
    piece.begin = shard.begin;
    piece.end = shard.end;
    out->pieces.push_back({parameter, piece});
  }
  return CheckPadding(archive, read, handle, padding_left);
}

}  // namespace

Result<LocalLayout> ReadLocalLayout(const NamedFile& file) {
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::Open(file.size, file.read));
  TorchValues values(archive, file.read);
  VARVE_ASSIGN_OR_RETURN(const std::vector<Handle> handles, HandlesOf(archive, &values));
  LocalLayout layout;
  for (const Handle& handle : handles) {
    VARVE_ASSIGN_OR_RETURN(const Described described, DescribedBy(archive.tree(), handle));
    for (std::size_t i = 0; i < described.fqns.size(); ++i) {
      LocalParameter parameter{
          .name = handle.prefix + CleanName(archive.tree().text(described.fqns[i])),
          .shape = {},
          .dtype = handle.data.dtype};
      auto shape = DimsAt(archive.tree(), described.shapes[i]);
      VARVE_RETURN_IF_ERROR(values.Charge(sizeof(parameter) + 2 * parameter.name.size() +
                                          (shape ? sizeof((*shape)[0]) * shape->size() : 0)));
      if (!shape || !CheckBox(*shape, WholeBox(*shape), ItemSize(parameter.dtype)).ok()) {
        return MalformedModel("\"" + parameter.name + "\" has no shape that a tensor can have");
      }
      parameter.shape = *std::move(shape);
      parameter.elements = Volume(parameter.shape);
      const auto place = static_cast<std::uint32_t>(layout.parameters.size());
      if (!layout.by_name.emplace(parameter.name, place).second) {
        return MalformedModel("it has \"" + parameter.name + "\" twice");
      }
      layout.parameters.push_back(std::move(parameter));
    }
  }
  return layout;
}

Result<LocalModel> ReadLocalModel(const NamedFile& file, std::uint32_t number,
                                  const LocalLayout& layout) {
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::Open(file.size, file.read));
  TorchValues values(archive, file.read);
  VARVE_ASSIGN_OR_RETURN(const std::vector<Handle> handles, HandlesOf(archive, &values));
  LocalModel model;
  model.records = StorageRecords(archive, number);
  std::size_t first = 0;
  std::uint64_t padding_left = file.size;
  for (const Handle& handle : handles) {
    VARVE_RETURN_IF_ERROR(
        ReadHandle(archive, file.read, handle, number, layout, first, &padding_left, &model));
    first += archive.tree().items(FlatParamAttribute(archive.tree(), handle.node, "_fqns")).size();
  }
  if (first != layout.parameters.size()) {
    return DataLoss("it describes " + std::to_string(first) +
                    " parameters, the first rank's file " +
                    std::to_string(layout.parameters.size()));
  }
  std::stable_sort(
      model.pieces.begin(), model.pieces.end(),
      [](const LocalPiece& a, const LocalPiece& b) { return a.parameter < b.parameter; });
  return model;
}

Result<StateNode> MergeLocalModel(const LocalLayout& layout, const std::vector<LocalModel>& ranks,
                                  const ReplicaCheck& check) {
  std::vector<std::vector<FlatPiece>> pieces(layout.parameters.size());
  for (const LocalModel& rank : ranks) {
    for (const LocalPiece& piece : rank.pieces) {
      pieces[piece.parameter].push_back(piece.piece);
    }
  }
  StateNode model;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const LocalParameter& parameter = layout.parameters[i];
    VARVE_ASSIGN_OR_RETURN(StoredTensor tensor, TensorOfPieces(parameter.name, parameter.shape,
                                                               std::move(pieces[i]), check));
    if (tensor.chunks.empty()) {
      tensor.dtype = parameter.dtype;
    }
    model.Add(parameter.name, StateNode::OfTensor(std::move(tensor)));
  }
  return model;
}

}  // namespace varve
