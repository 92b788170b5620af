#include "interop/dcp/index.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "interop/dcp/structure.h"
#include "interop/pickle/text.h"
#include "interop/pickle/tree.h"

namespace varve {
namespace {

/// Names become names of Varve, which are UTF-8 without exceptions.
bool HasLoneSurrogate(std::string_view text) {
  for (std::size_t i = text.find('\xED'); i != std::string_view::npos;
       i = text.find('\xED', i + 1)) {
    if (static_cast<std::uint8_t>(text[i + 1]) >= 0xA0) {
      return true;  // The pickle's reader has checked that whole sequences stand here.
    }
  }
  return false;
}

class Reader {
 public:
  Reader(const PickleTree& tree, std::uint64_t pickle_bytes, DcpRecords* records)
      : tree_(tree), chunks_left_(pickle_bytes / 8), records_(*records) {}

  Result<DcpIndex> Read() {
    if (!records_.IsIndex(tree_, tree_.root())) {
      return DataLoss("not the index of a DCP checkpoint: the pickle holds " + Describe());
    }
    const PickleRef state = DcpAttributes(tree_, tree_.root());
    if (state == kNoPickle) {
      return DataLoss("Metadata has no attributes");
    }
    if (tree_.Get(state, "all_tensor_metadata") != kNoPickle) {
      return Unimplemented("an index of ByteCheckpoint, which stores elements without torch.save");
    }
    VARVE_RETURN_IF_ERROR(ReadState(tree_.Get(state, "state_dict_metadata")));
    VARVE_RETURN_IF_ERROR(ReadStorage(tree_.Get(state, "storage_data")));
    VARVE_RETURN_IF_ERROR(ReadMegatron(tree_.Get(state, "mcore_data")));
    ReadAttributes(state);
    VARVE_RETURN_IF_ERROR(TakeVarveStructure());
    if (!index_.structure) {
      VARVE_ASSIGN_OR_RETURN(index_.structure,
                             DcpStructure(tree_, tree_.Get(state, "planner_data"), leaves_));
    }
    return std::move(index_);
  }

 private:
  [[nodiscard]] std::string Describe() const {
    const PickleRef root = tree_.root();
    const PickleRef callee = tree_.IsObject(root) ? tree_.object(root).callee : root;
    if (callee != kNoPickle && tree_.kind(callee) == PickleKind::kGlobal) {
      return ShownText(std::string(tree_.module(callee)) + "." + std::string(tree_.name(callee)));
    }
    return "something else";
  }

  Status ReadState(PickleRef state) {
    if (state == kNoPickle || tree_.kind(state) != PickleKind::kDict) {
      return DataLoss("state_dict_metadata is not a dict");
    }
    const std::span<const PickleRef> pairs = tree_.items(state);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (tree_.kind(pairs[i]) != PickleKind::kStr) {
        return DataLoss("state_dict_metadata: a name is not a str");
      }
      const std::string_view fqn = tree_.text(pairs[i]);
      if (HasLoneSurrogate(fqn)) {
        return Unimplemented("state_dict_metadata: the name " + ShownText(fqn) + " is not UTF-8");
      }
      const std::uint32_t name = records_.names.Number(fqn);
      if (is_known_.size() <= name) {
        is_known_.resize(name + 1, false);
      }
      if (is_known_[name]) {
        return DataLoss("state_dict_metadata: " + ShownText(fqn) + " is there twice");
      }
      is_known_[name] = true;
      const bool is_tensor = records_.IsTensor(tree_, pairs[i + 1]);
      if (is_tensor) {
        if (const Status status = ReadTensor(name, pairs[i + 1]); !status.ok()) {
          return status.Annotate("tensor " + ShownText(fqn));
        }
      } else if (records_.IsBytes(tree_, pairs[i + 1])) {
        index_.objects.push_back(name);
      } else {
        return DataLoss("state_dict_metadata: " + ShownText(fqn) +
                        " is neither a tensor nor a value");
      }
      leaves_.push_back({fqn, is_tensor});
    }
    return Status::Ok();
  }

  Status ReadTensor(std::uint32_t name, PickleRef node) {
    const PickleRef state = DcpAttributes(tree_, node);
    if (state == kNoPickle) {
      return DataLoss("no attributes");
    }
    const PickleRef properties = tree_.Get(state, "properties");
    const PickleRef size = tree_.Get(state, "size");
    const PickleRef chunks = tree_.Get(state, "chunks");
    if (properties == kNoPickle || size == kNoPickle || chunks == kNoPickle) {
      return DataLoss("properties, size or chunks are missing");
    }
    DcpIndex::Tensor tensor{.name = name};
    std::string what;
    if (!records_.ReadProperties(tree_, properties, &tensor.dtype, &what)) {
      return what.empty() ? DataLoss("malformed TensorProperties")
                          : Unimplemented(what + " is not supported");
    }
    if (!records_.ReadDims(tree_, size, &tensor.shape)) {
      return DataLoss("malformed size");
    }
    if (tree_.kind(chunks) != PickleKind::kList) {
      return DataLoss("chunks is not a list");
    }
    tensor.chunks_begin = index_.chunks.size();
    // One list may be named by many tensors: without a bound, little input makes endless chunks.
    const std::span<const PickleRef> items = tree_.items(chunks);
    if (items.size() > chunks_left_) {
      return DataLoss("more chunks than the pickle has room for");
    }
    chunks_left_ -= items.size();
    for (const PickleRef item : items) {
      std::uint32_t chunk = 0;
      if (!records_.ReadChunk(tree_, item, &chunk)) {
        return DataLoss("malformed ChunkStorageMetadata");
      }
      index_.chunks.push_back(chunk);
    }
    tensor.chunks_end = index_.chunks.size();
    index_.tensors.push_back(tensor);
    return Status::Ok();
  }

  Status ReadStorage(PickleRef storage) {
    if (storage == kNoPickle || tree_.kind(storage) != PickleKind::kDict) {
      return DataLoss("storage_data is not a dict");
    }
    const std::span<const PickleRef> pairs = tree_.items(storage);
    index_.entries.reserve(pairs.size() / 2);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      DcpIndex::Entry entry;
      if (!records_.ReadKey(tree_, pairs[i], &entry.key)) {
        return DataLoss("storage_data: malformed MetadataIndex");
      }
      if (!records_.ReadStorage(tree_, pairs[i + 1], &entry.storage)) {
        return DataLoss("storage_data: malformed _StorageInfo of " +
                        ShownText(records_.names.at(records_.key(entry.key).name)));
      }
      index_.entries.push_back(entry);
    }
    return Status::Ok();
  }

  /// Reads what Megatron-Core (before 0.14, strategies/torch.py) says of its tensors: the whole
  /// shape of those that it has stored in flattened blocks.
  Status ReadMegatron(PickleRef data) {
    if (data == kNoPickle || tree_.kind(data) != PickleKind::kDict) {
      return Status::Ok();
    }
    constexpr std::size_t kMostSaid = 64;  // Of one tensor; each is looked at.
    const std::span<const PickleRef> pairs = tree_.items(data);
    std::set<std::uint32_t> placed;
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (tree_.kind(pairs[i]) != PickleKind::kStr ||
          tree_.kind(pairs[i + 1]) != PickleKind::kDict) {
        continue;
      }
      const auto name = records_.names.Find(tree_.text(pairs[i]));
      if (!name) {
        continue;  // It is no entry.
      }
      if (!placed.insert(*name).second || tree_.items(pairs[i + 1]).size() > 2 * kMostSaid) {
        return DataLoss("mcore_data: " + ShownText(tree_.text(pairs[i])) +
                        " is there twice, or too much is said of it");
      }
      const PickleRef shape = tree_.Get(pairs[i + 1], "nd_reformulated_orig_global_shape");
      if (shape == kNoPickle) {
        continue;
      }
      PackedDims dims;
      if (!records_.ReadDims(tree_, shape, &dims)) {
        return DataLoss("mcore_data: malformed shape of " + ShownText(tree_.text(pairs[i])));
      }
      index_.in_blocks.emplace_back(*name, dims);
    }
    return Status::Ok();
  }

  /// Takes an attribute out of the list.
  std::optional<std::string> TakeAttribute(std::string_view name) {
    const auto found = std::find_if(index_.attributes.begin(), index_.attributes.end(),
                                    [&](const auto& pair) { return pair.first == name; });
    if (found == index_.attributes.end()) {
      return std::nullopt;
    }
    std::string value = std::move(found->second);
    index_.attributes.erase(found);
    return value;
  }

  /// Takes Varve's own structure. What it says of tensors that are made of others counts where the
  /// structure has their inner tensors.
  Status TakeVarveStructure() {
    const std::optional<std::string> structure = TakeAttribute(kDcpStructure);
    const std::optional<std::string> encoded = TakeAttribute(kDcpWrapped);
    if (!structure) {
      return Status::Ok();
    }
    std::vector<DcpWrapped> wrapped;
    if (encoded) {
      auto decoded = DecodeDcpWrapped(*encoded);
      if (!decoded.ok()) {
        return decoded.status().Annotate(std::string(kDcpWrapped));
      }
      wrapped = *std::move(decoded);
    }
    index_.structure = VarveStructure(*structure, LeavesWith(wrapped));
    index_.has_varve_structure = index_.structure.has_value();
    if (index_.has_varve_structure) {
      TakeWrapped(std::move(wrapped));
    }
    return Status::Ok();
  }

  /// Returns the entries, with inner tensors in the place of what they are the inner tensors of.
  [[nodiscard]] std::vector<DcpLeaf> LeavesWith(const std::vector<DcpWrapped>& wrapped) const {
    std::set<std::string_view> made;
    for (const DcpWrapped& each : wrapped) {
      made.insert(each.fqn);
    }
    std::vector<DcpLeaf> leaves;
    for (const DcpLeaf& leaf : leaves_) {
      if (leaf.is_tensor || !made.contains(leaf.fqn)) {
        leaves.push_back(leaf);
      }
    }
    for (const DcpWrapped& each : wrapped) {
      for (const DcpInner& inner : each.inner) {
        leaves.push_back({inner.fqn, true});
      }
    }
    return leaves;
  }

  void TakeWrapped(std::vector<DcpWrapped> wrapped) {
    std::set<std::uint32_t> names;
    for (DcpWrapped& each : wrapped) {
      const std::uint32_t name = records_.names.Number(each.fqn);
      names.insert(name);
      index_.wrapped.emplace_back(name, std::move(each.inner));
    }
    std::erase_if(index_.objects, [&](std::uint32_t name) { return names.contains(name); });
  }

  void ReadAttributes(PickleRef state) {
    const std::span<const PickleRef> pairs = tree_.items(state);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const auto bytes = ReadBytes(pairs[i + 1]);
      if (tree_.kind(pairs[i]) == PickleKind::kStr && bytes) {
        index_.attributes.emplace_back(tree_.text(pairs[i]), *bytes);
      }
    }
  }

  /// Reads bytes, which protocol 2 can only write as a call: _codecs.encode(text, "latin1").
  [[nodiscard]] std::optional<std::string> ReadBytes(PickleRef node) const {
    if (tree_.kind(node) == PickleKind::kBytes) {
      return std::string(tree_.text(node));
    }
    if (!tree_.IsMadeBy(node, "_codecs", "encode")) {
      return std::nullopt;
    }
    const std::span<const PickleRef> args = tree_.items(tree_.object(node).args);
    if (args.size() != 2 || tree_.kind(args[0]) != PickleKind::kStr ||
        tree_.text(args[1]) != "latin1") {
      return std::nullopt;
    }
    return Latin1(tree_.text(args[0]));
  }

  const PickleTree& tree_;
  std::uint64_t chunks_left_;
  DcpRecords& records_;
  std::vector<bool> is_known_;  // By name.
  std::vector<DcpLeaf> leaves_;
  DcpIndex index_;
};

}  // namespace

Result<DcpIndex> ReadDcpIndex(std::string_view pickle, bool folding, DcpRecords* records) {
  VARVE_ASSIGN_OR_RETURN(const PickleTree tree,
                         ReadPickle(pickle, {}, folding ? records : nullptr));
  return Reader(tree, pickle.size(), records).Read();
}

}  // namespace varve
