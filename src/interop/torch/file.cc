#include "interop/torch/file.h"

#include <algorithm>
#include <unordered_map>

#include "interop/torch/parts.h"
#include "interop/torch/values.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr int kMaxDepth = 200;  // As for values.

// About what one entry of a tensor takes in memory. A file takes more for it, unless it names one
// tensor many times.
constexpr std::uint64_t kTensorBytes = 512;

/// Returns str(key), of which DCP joins names.
std::string KeyText(const Value& key) {
  constexpr std::size_t kMaxChars = 10'000;
  return key.kind == ValueKind::kStr ? key.text : ToString(key, kMaxChars);
}

bool IsPacked(const ArchiveTensor& tensor) {
  if (Volume(tensor.sizes) == 0) {
    return true;
  }
  std::uint64_t step = 1;
  for (std::size_t d = tensor.sizes.size(); d-- > 0;) {
    if (tensor.sizes[d] != 1 && tensor.strides[d] != static_cast<std::int64_t>(step)) {
      return false;
    }
    step *= tensor.sizes[d];
  }
  return true;
}

/// The rule which lists are opened: DCP's rule needs to look into all lists below one.
class ListRule {
 public:
  explicit ListRule(const PickleTree& tree) : tree_(tree) {}

  /// Returns true when the list, or a list in it, holds a tensor or a mapping.
  bool Opens(PickleRef list, int depth = 0) {
    const auto [known, is_new] = opens_.try_emplace(list, false);
    if (!is_new || depth > kMaxDepth) {
      return known->second;
    }
    for (const PickleRef item : tree_.items(list)) {
      const bool is_list = tree_.kind(item) == PickleKind::kList;
      if (is_list ? Opens(item, depth + 1)
                  : IsTensorNode(tree_, item) || IsMappingNode(tree_, item)) {
        opens_[list] = true;
        return true;
      }
    }
    return false;
  }

 private:
  const PickleTree& tree_;
  std::unordered_map<PickleRef, bool> opens_;  // Looked up only.
};

class Flattener {
 public:
  Flattener(const TorchArchive& archive, const RangeReader& read, Decoded* out)
      : archive_(archive),
        tree_(archive.tree()),
        values_(archive, read),
        lists_(archive.tree()),
        out_(*out) {}

  Status Run() {
    Value structure;
    const PickleRef root = tree_.root();
    VARVE_ASSIGN_OR_RETURN(const std::optional<std::vector<Value>> keys, KeysOf(root));
    if (!keys) {
      VARVE_RETURN_IF_ERROR(AddLeaf(root, "", &structure));
      return Status::Ok();
    }
    VARVE_RETURN_IF_ERROR(WalkMapping(root, *keys, nullptr, 0, &structure));
    out_.structure = std::move(structure);
    return CheckNames();
  }

 private:
  /// Returns the keys of a mapping whose keys are all plain values; nothing for anything else.
  Result<std::optional<std::vector<Value>>> KeysOf(PickleRef node) {
    std::vector<Value> keys;
    VARVE_ASSIGN_OR_RETURN(const auto mapping, values_.MappingAt(node));
    if (!mapping) {
      return std::optional<std::vector<Value>>();
    }
    for (std::size_t i = 0; i + 1 < mapping->pairs.size(); i += 2) {
      VARVE_ASSIGN_OR_RETURN(auto key, values_.At(mapping->pairs[i]));
      if (!key) {
        return std::optional<std::vector<Value>>();
      }
      keys.push_back(*std::move(key));
    }
    return std::optional(std::move(keys));
  }

  /// Walks a node. `prefix` is the name of the container, null for the root.
  Status Walk(PickleRef node, const std::string* prefix, const std::string& part, int depth,
              Value* structure) {
    const std::string name = prefix == nullptr ? part : *prefix + "." + part;
    VARVE_RETURN_IF_ERROR(values_.Charge(name.size()));
    if (depth > kMaxDepth) {
      return InvalidArgument("\"" + name.substr(0, 100) + "...\" nests deeper than " +
                             std::to_string(kMaxDepth) + " levels");
    }
    if (tree_.kind(node) == PickleKind::kList && lists_.Opens(node)) {
      structure->kind = ValueKind::kList;
      std::size_t i = 0;
      for (const PickleRef item : tree_.items(node)) {
        Value& below = structure->items.emplace_back();
        VARVE_RETURN_IF_ERROR(Walk(item, &name, std::to_string(i++), depth + 1, &below));
      }
      return Status::Ok();
    }
    VARVE_ASSIGN_OR_RETURN(const std::optional<std::vector<Value>> keys, KeysOf(node));
    return keys ? WalkMapping(node, *keys, &name, depth, structure)
                : AddLeaf(node, name, structure);
  }

  Status WalkMapping(PickleRef node, const std::vector<Value>& keys, const std::string* name,
                     int depth, Value* structure) {
    const PickledMapping mapping = *PickledMappingAt(tree_, node);
    structure->kind = mapping.kind;
    structure->text = mapping.factory;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      structure->items.push_back(keys[i]);
      Value below;
      VARVE_RETURN_IF_ERROR(
          Walk(mapping.pairs[2 * i + 1], name, KeyText(keys[i]), depth + 1, &below));
      structure->items.push_back(std::move(below));
    }
    return Status::Ok();
  }

  Status AddLeaf(PickleRef node, const std::string& name, Value* structure) {
    auto tensor = archive_.TensorAt(node);
    if (!tensor.ok()) {
      return tensor.status().Annotate("\"" + name + "\"");
    }
    if (*tensor) {
      VARVE_RETURN_IF_ERROR(values_.Charge(kTensorBytes));
      *structure = {.kind = ValueKind::kTensorLeaf, .text = "torch"};
      AddTensor(name, **tensor);
      return Status::Ok();
    }
    structure->kind = ValueKind::kObjectLeaf;
    auto value = values_.At(node);
    if (!value.ok()) {
      return value.status().Annotate("\"" + name + "\"");
    }
    const std::uint64_t index = out_.inline_values.size();
    out_.inline_values.push_back(EncodeValue(*value ? **value : values_.OpaqueAt(node)));
    out_.metadata.objects.push_back({name, {0, index, index, Encoding::kInline}});
    return Status::Ok();
  }

  void AddTensor(const std::string& name, const ArchiveTensor& tensor) {
    const std::uint64_t storage = archive_.storages()[tensor.storage].begin;
    const TensorSpan span = SpanOf(tensor);
    Chunk chunk{.box = WholeBox(tensor.sizes),
                .extent = {0, storage + span.begin, storage + span.end, Encoding::kPlain},
                .content = {},
                .strides = IsPacked(tensor) ? Strides() : tensor.strides,
                .conj = tensor.conj,
                .neg = tensor.neg};
    out_.metadata.tensors.push_back({name, tensor.dtype, tensor.sizes, {std::move(chunk)}});
  }

  /// Sorts the entries. Errors: InvalidArgument when two have one name.
  Status CheckNames() {
    const auto by_name = [](const auto& a, const auto& b) { return a.fqn < b.fqn; };
    Metadata& metadata = out_.metadata;
    std::sort(metadata.tensors.begin(), metadata.tensors.end(), by_name);
    std::sort(metadata.objects.begin(), metadata.objects.end(), by_name);
    std::vector<std::string_view> names;
    names.reserve(metadata.tensors.size() + metadata.objects.size());
    for (const TensorMetadata& tensor : metadata.tensors) {
      names.push_back(tensor.fqn);
    }
    for (const ObjectMetadata& object : metadata.objects) {
      names.push_back(object.fqn);
    }
    std::sort(names.begin(), names.end());
    const auto twin = std::adjacent_find(names.begin(), names.end());
    if (twin != names.end()) {
      return InvalidArgument("two entries of the state are called \"" + std::string(*twin) +
                             "\" when the parts of their paths are joined");
    }
    return Status::Ok();
  }

  const TorchArchive& archive_;
  const PickleTree& tree_;
  TorchValues values_;
  ListRule lists_;
  Decoded& out_;
};

}  // namespace

Result<Decoded> DecodeTorchFile(std::uint64_t size, const RangeReader& read,
                                std::string file_name) {
  auto archive = TorchArchive::Open(size, read);
  if (!archive.ok()) {
    return archive.status().Annotate(file_name);
  }
  Decoded decoded;
  decoded.metadata.format = Format::kTorchSave;
  decoded.metadata.world_size = 1;
  for (const ArchiveStorage& storage : archive->storages()) {
    if (storage.crc32 && storage.bytes != 0) {
      decoded.records.push_back({0, storage.begin, storage.begin + storage.bytes, *storage.crc32});
    }
  }
  Status flattened = Flattener(*archive, read, &decoded).Run();
  if (!flattened.ok()) {
    return flattened.Annotate(file_name);
  }
  DataFile file{.name = std::move(file_name)};
  file.size = size;
  decoded.metadata.files.push_back(std::move(file));
  return decoded;
}

}  // namespace varve
