#include "interop/olmo/core.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "interop/olmo/names.h"
#include "interop/torch/archive.h"
#include "interop/torch/state_reader.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxCorePickleBytes = std::uint64_t{1} << 30;

std::span<const CorePart> PartsOfRank(const CoreTensor& tensor, std::uint32_t rank) {
  const auto first =
      std::lower_bound(tensor.parts.begin(), tensor.parts.end(), rank,
                       [](const CorePart& part, std::uint32_t r) { return part.rank < r; });
  const auto last =
      std::find_if(first, tensor.parts.end(), [&](const CorePart& p) { return p.rank != rank; });
  return {first, last};
}

std::uint64_t ElementsOf(std::span<const CorePart> parts) {
  std::uint64_t elements = 0;
  for (const CorePart& part : parts) {
    elements += part.end - part.begin;
  }
  return elements;
}

/// Returns the slice of a tensor in a rank's file, or null.
const CoreSlice* SliceOf(const CoreFile& file, std::uint32_t tensor) {
  const auto at =
      std::lower_bound(file.begin(), file.end(), tensor,
                       [](const CoreSlice& slice, std::uint32_t t) { return slice.tensor < t; });
  return at != file.end() && at->tensor == tensor ? &*at : nullptr;
}

/// Compares what a file stores of a tensor with what the metadata say of it.
Status CheckSlice(const SafetensorsHeader::Tensor& stored, const CoreTensor& tensor,
                  std::uint64_t elements) {
  if (stored.shape.size() != 1 || stored.shape[0] != elements) {
    return DataLoss("it holds \"" + tensor.name + "\" with the shape " + ToString(stored.shape) +
                    "; by metadata.json it has " + std::to_string(elements) +
                    " elements of it, in one dimension");
  }
  if (tensor.dtype && *tensor.dtype != stored.dtype) {
    return DataLoss("it holds \"" + tensor.name + "\" as " + std::string(DTypeName(stored.dtype)) +
                    ", by metadata.json it is " + std::string(DTypeName(*tensor.dtype)));
  }
  return Status::Ok();
}

/// Puts together one tensor.
class TensorMerger {
 public:
  TensorMerger(const CoreLayout& layout, const CoreFiles& files, const ReplicaCheck& check)
      : layout_(layout), files_(files), check_(check) {}

  /// `fqn` is for messages.
  Result<StoredTensor> At(std::uint32_t number, const std::string& fqn) const {
    const CoreTensor& tensor = layout_.tensors[number];
    VARVE_ASSIGN_OR_RETURN(StoredTensor stored,
                           tensor.boxes.empty() ? OfRuns(number, fqn) : OfBoxes(number, fqn));
    if (tensor.parts.empty()) {
      VARVE_ASSIGN_OR_RETURN(stored.dtype, DTypeOfEmpty(number));
    }
    return stored;
  }

 private:
  /// Calls `add(part, dtype, extent)` for each part, in the order of the ranks.
  template <typename Add>
  void ForEachPart(std::uint32_t number, const Add& add) const {
    std::uint64_t at = 0;
    const CorePart* before = nullptr;
    for (const CorePart& part : layout_.tensors[number].parts) {
      // ReadCoreFile has found a slice for every part.
      const CoreSlice& slice = *SliceOf(files_.ranks[part.rank], number);
      at = before != nullptr && before->rank == part.rank ? at : slice.begin;
      const std::uint64_t bytes = (part.end - part.begin) * ItemSize(slice.dtype);
      add(part, slice.dtype, Extent{files_.first + part.rank, at, at + bytes, Encoding::kPlain});
      at += bytes;
      before = &part;
    }
  }

  [[nodiscard]] Result<StoredTensor> OfRuns(std::uint32_t number, const std::string& fqn) const {
    std::vector<FlatPiece> pieces;
    ForEachPart(number, [&](const CorePart& part, DType dtype, const Extent& extent) {
      pieces.push_back({part.begin, part.end, dtype, extent});
    });
    return TensorOfPieces(fqn, layout_.tensors[number].shape, std::move(pieces), check_);
  }

  [[nodiscard]] Result<StoredTensor> OfBoxes(std::uint32_t number, const std::string& fqn) const {
    const CoreTensor& tensor = layout_.tensors[number];
    StoredTensor stored{
        .dtype = DType::kUInt8, .shape = tensor.shape, .chunks = {}, .sharding = {}};
    std::vector<Chunk> chunks;
    Status same_dtype;
    ForEachPart(number, [&](const CorePart& part, DType dtype, const Extent& extent) {
      stored.dtype = chunks.empty() ? dtype : stored.dtype;
      if (dtype != stored.dtype) {
        same_dtype = DataLoss("\"" + fqn + "\" is " + std::string(DTypeName(stored.dtype)) +
                              " in " + check_.name(chunks[0].extent.file) + " and " +
                              std::string(DTypeName(dtype)) + " in " + check_.name(extent.file));
      }
      std::uint64_t at = extent.begin;
      for (Box& box : part.box == CorePart::kRun ? FlatRunBoxes(tensor.shape, part.begin, part.end)
                                                 : std::vector{tensor.boxes[part.box]}) {
        const std::uint64_t bytes = Volume(box.sizes) * ItemSize(dtype);
        chunks.push_back({.box = std::move(box),
                          .extent = {extent.file, at, at + bytes, Encoding::kPlain},
                          .content = {},
                          .strides = {}});
        at += bytes;
      }
    });
    VARVE_RETURN_IF_ERROR(same_dtype);
    VARVE_ASSIGN_OR_RETURN(stored.chunks, ChunksOnce(fqn, std::move(chunks), check_));
    return stored;
  }

  /// Returns the dtype of a tensor of which no file holds an element.
  [[nodiscard]] Result<DType> DTypeOfEmpty(std::uint32_t number) const {
    if (layout_.tensors[number].dtype) {
      return *layout_.tensors[number].dtype;
    }
    for (const CoreFile& file : files_.ranks) {
      if (const CoreSlice* const slice = SliceOf(file, number)) {
        return slice->dtype;
      }
    }
    return DataLoss("no file has an entry for \"" + layout_.tensors[number].name + "\"");
  }

  const CoreLayout& layout_;
  const CoreFiles& files_;
  const ReplicaCheck& check_;
};

/// Reads the flat state of an optimizer.
class OptimizerReader {
 public:
  OptimizerReader(const CoreLayout& layout, const CoreFiles& files, const ReplicaCheck& check,
                  const ExtentReader& read)
      : layout_(layout), merger_(layout, files, check), read_(read) {}

  Result<StateNode> Run() {
    VARVE_ASSIGN_OR_RETURN(const std::uint64_t count, GroupCount());
    StateNode groups;
    groups.kind = ValueKind::kList;
    for (std::uint64_t i = 0; i < count; ++i) {
      VARVE_ASSIGN_OR_RETURN(StateNode group, GroupAt(i));
      groups.items.push_back(std::move(group));
    }
    VARVE_RETURN_IF_ERROR(ReadStateKeys());
    VARVE_ASSIGN_OR_RETURN(StateNode state, ReadState(count));
    StateNode optim;
    optim.Add("state", std::move(state));
    optim.Add("param_groups", std::move(groups));
    VARVE_RETURN_IF_ERROR(NameOptimizerState(GroupParams::kStored, &optim));
    return optim;
  }

 private:
  static Status MalformedState(const std::string& problem) {
    return DataLoss("no optimizer's state of OLMo-core: " + problem);
  }

  /// Returns the bytes of a small tensor that one file holds whole.
  Result<std::string> BytesOf(const std::string& name, DType dtype) {
    const auto found = layout_.by_name.find(name);
    if (found == layout_.by_name.end()) {
      return MalformedState("it has no \"" + name + "\"");
    }
    VARVE_ASSIGN_OR_RETURN(const StoredTensor tensor, merger_.At(found->second, name));
    const std::uint64_t bytes = layout_.tensors[found->second].elements * ItemSize(tensor.dtype);
    if (tensor.dtype != dtype || tensor.chunks.size() != 1 ||
        Volume(tensor.chunks[0].box.sizes) != layout_.tensors[found->second].elements ||
        bytes > kMaxCorePickleBytes) {
      return MalformedState("\"" + name + "\" is a tensor of " +
                            std::string(DTypeName(tensor.dtype)) + ToString(tensor.shape) + " in " +
                            std::to_string(tensor.chunks.size()) + " pieces; expected " +
                            std::string(DTypeName(dtype)) + " in one, of at most 1 GiB");
    }
    const Extent& extent = tensor.chunks[0].extent;
    return read_(extent.file, extent.begin, extent.end);
  }

  Result<std::uint64_t> GroupCount() {
    constexpr const char* kName = "num_param_groups";
    VARVE_ASSIGN_OR_RETURN(const std::string bytes, BytesOf(kName, DType::kInt64));
    if (bytes.size() != sizeof(std::uint64_t)) {
      return MalformedState("\"" + std::string(kName) + "\" is not one number");
    }
    return ByteReader(bytes).U64();  // Too many, or a negative number: a group is missing.
  }

  /// Reads the pickle of a uint8 tensor.
  Result<TorchArchive> PickleOf(const std::string& name) {
    VARVE_ASSIGN_OR_RETURN(std::string bytes, BytesOf(name, DType::kUInt8));
    return TorchArchive::OfPickle(std::move(bytes)).Annotate("the pickle of \"" + name + "\"");
  }

  Result<StateNode> GroupAt(std::uint64_t number) {
    VARVE_ASSIGN_OR_RETURN(const TorchArchive archive,
                           PickleOf("param_group" + std::to_string(number)));
    const RangeReader nothing = ReadFrom("");
    VARVE_ASSIGN_OR_RETURN(
        StateNode group,
        StateReader(archive, nothing, 0)
            .At(archive.tree().root(), "optim.param_groups." + std::to_string(number)));
    if (!group.IsMapping()) {
      return MalformedState("\"param_group" + std::to_string(number) + "\" is no dict");
    }
    NameParams(&group);
    return group;
  }

  /// Gives `_param_names`, which is OLMo-core's own, the name that OLMo's optimizers have for it.
  /// Drops it where the group has that too.
  static void NameParams(StateNode* group) {
    const auto own = std::find_if(group->keys.begin(), group->keys.end(), [](const Value& key) {
      return key.kind == ValueKind::kStr && key.text == "_param_names";
    });
    if (own == group->keys.end()) {
      return;
    }
    const auto place = own - group->keys.begin();
    if (group->Find("param_names") == nullptr) {
      group->Rename(static_cast<std::size_t>(place), "param_names");
      return;
    }
    group->keys.erase(own);
    group->items.erase(group->items.begin() + place);
  }

  Status ReadStateKeys() {
    VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, PickleOf("state_keys"));
    const RangeReader nothing = ReadFrom("");
    VARVE_ASSIGN_OR_RETURN(const auto keys, archive.ValueAt(archive.tree().root(), nothing));
    if (!keys || keys->kind != ValueKind::kList) {
      return MalformedState("\"state_keys\" is no list of names");
    }
    for (const Value& key : keys->items) {
      state_keys_.push_back(key.text);
    }
    std::sort(state_keys_.begin(), state_keys_.end());
    return Status::Ok();
  }

  /// Reads `state.NAME.__KEY`. All other entries must be those of the groups.
  Result<StateNode> ReadState(std::uint64_t group_count) {
    constexpr std::string_view kPrefix = "state.";
    constexpr std::string_view kInner = ".__";
    StateNode state;
    std::unordered_map<std::string, std::size_t> places;  // In `state`. Looked up only.
    std::uint64_t others = 0;
    for (std::uint32_t t = 0; t < layout_.tensors.size(); ++t) {
      const std::string& stored = layout_.tensors[t].name;
      const std::size_t inner = stored.rfind(kInner);
      if (!stored.starts_with(kPrefix)) {
        ++others;
        continue;
      }
      if (inner == std::string::npos || inner < kPrefix.size()) {
        return MalformedState("\"" + stored + "\" is not state.NAME.__KEY");
      }
      const std::string name = stored.substr(kPrefix.size(), inner - kPrefix.size());
      const std::string key = stored.substr(inner + kInner.size());
      if (!std::binary_search(state_keys_.begin(), state_keys_.end(), key)) {
        return MalformedState("\"" + stored + "\" is of a key that state_keys does not have");
      }
      std::string fqn = "optim.state." + name;
      fqn += "." + key;
      VARVE_ASSIGN_OR_RETURN(StoredTensor tensor, merger_.At(t, fqn));
      const auto [place, is_new] = places.try_emplace(name, state.items.size());
      if (is_new) {
        state.Add(name, StateNode());
      }
      StateNode* const entry =
          state.items[place->second].Add(key, StateNode::OfTensor(std::move(tensor)));
      entry->stored_key = "__" + key;
    }
    constexpr std::uint64_t kOtherEntries = 2;  // num_param_groups, state_keys
    if (others != group_count + kOtherEntries) {
      return MalformedState("it has " + std::to_string(others - kOtherEntries) +
                            " entries beside its state, for " + std::to_string(group_count) +
                            " groups");
    }
    return state;
  }

  const CoreLayout& layout_;
  TensorMerger merger_;
  const ExtentReader& read_;
  std::vector<std::string> state_keys_;  // Sorted.
};

}  // namespace

Result<CoreFile> ReadCoreFile(const NamedFile& file, std::uint32_t rank, const CoreLayout& layout) {
  VARVE_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(file));
  CoreFile slices;
  slices.reserve(header.tensors.size());
  for (const SafetensorsHeader::Tensor& stored : header.tensors) {
    const auto found = layout.by_name.find(stored.fqn);
    const std::uint64_t elements =
        found == layout.by_name.end()
            ? 0
            : ElementsOf(PartsOfRank(layout.tensors[found->second], rank));
    if (found == layout.by_name.end() || (elements == 0 && stored.begin != stored.end)) {
      return DataLoss("it holds \"" + stored.fqn +
                      "\", of which metadata.json gives this file nothing: one of the two belongs "
                      "to another save");
    }
    VARVE_RETURN_IF_ERROR(CheckSlice(stored, layout.tensors[found->second], elements));
    slices.push_back({found->second, stored.dtype, stored.begin, stored.end});
  }
  std::sort(slices.begin(), slices.end(),
            [](const CoreSlice& a, const CoreSlice& b) { return a.tensor < b.tensor; });
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    const std::span<const CorePart> parts = PartsOfRank(layout.tensors[t], rank);
    if (!parts.empty() && SliceOf(slices, t) == nullptr) {
      return DataLoss("it does not hold \"" + layout.tensors[t].name + "\", of which it has " +
                      std::to_string(ElementsOf(parts)) + " elements by metadata.json");
    }
  }
  return slices;
}

Result<StateNode> MergeCoreModel(const CoreLayout& layout, const CoreFiles& files,
                                 const ReplicaCheck& check) {
  const TensorMerger merger(layout, files, check);
  StateNode model;
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    const std::string& stored = layout.tensors[t].name;
    const std::string name = CleanName(stored);
    VARVE_ASSIGN_OR_RETURN(StoredTensor tensor, merger.At(t, "model." + name));
    StateNode* const entry = model.Add(name, StateNode::OfTensor(std::move(tensor)));
    entry->stored_key = name == stored ? std::string() : stored;
  }
  return model;
}

Result<StateNode> MergeCoreOptimizer(const CoreLayout& layout, const CoreFiles& files,
                                     const ReplicaCheck& check, const ExtentReader& read) {
  return OptimizerReader(layout, files, check, read).Run();
}

}  // namespace varve
