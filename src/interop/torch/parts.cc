#include "interop/torch/parts.h"

#include <algorithm>
#include <array>

namespace varve {
namespace {

struct StorageRow {
  std::string_view name;
  std::uint64_t item_bytes;
  std::optional<DType> dtype;
};

constexpr std::array<StorageRow, 19> kStorages{{
    {"FloatStorage", 4, DType::kFloat32},
    {"BFloat16Storage", 2, DType::kBFloat16},
    {"HalfStorage", 2, DType::kFloat16},
    {"DoubleStorage", 8, DType::kFloat64},
    {"LongStorage", 8, DType::kInt64},
    {"IntStorage", 4, DType::kInt32},
    {"ShortStorage", 2, DType::kInt16},
    {"CharStorage", 1, DType::kInt8},
    {"ByteStorage", 1, DType::kUInt8},
    {"BoolStorage", 1, DType::kBool},
    {"ComplexFloatStorage", 8, DType::kComplex64},
    {"ComplexDoubleStorage", 16, DType::kComplex128},
    {"UntypedStorage", 1, DType::kUInt8},
    {"_UntypedStorage", 1, DType::kUInt8},
    {"QInt8Storage", 1, std::nullopt},
    {"QUInt8Storage", 1, std::nullopt},
    {"QInt32Storage", 4, std::nullopt},
    {"QUInt4x2Storage", 1, std::nullopt},
    {"QUInt2x4Storage", 1, std::nullopt},
}};

}  // namespace

Result<std::unique_ptr<OwnedPickle>> ReadOwnedPickle(std::string bytes, std::uint64_t* consumed) {
  auto pickle = std::make_unique<OwnedPickle>();
  pickle->bytes = std::move(bytes);
  VARVE_ASSIGN_OR_RETURN(pickle->tree, ReadPickle(pickle->bytes, {}, nullptr, consumed));
  return pickle;
}

std::optional<StorageType> FindStorageType(std::string_view module, std::string_view name) {
  if (module != "torch" && module != "torch.storage" && module != "torch.cuda") {
    return std::nullopt;
  }
  for (const StorageRow& row : kStorages) {
    if (row.name == name) {
      return StorageType{row.item_bytes, row.dtype};
    }
  }
  const std::optional<DType> dtype = module == "torch" ? DTypeFromName(name) : std::nullopt;
  if (!dtype) {
    return std::nullopt;
  }
  return StorageType{ItemSize(*dtype), dtype};
}

std::span<const PickleRef> ArgumentsOf(const PickleTree& tree, PickleRef object) {
  const PickleRef arguments = tree.object(object).args;
  return arguments == kNoPickle ? std::span<const PickleRef>() : tree.items(arguments);
}

std::optional<std::uint64_t> CountAt(const PickleTree& tree, PickleRef node) {
  if (tree.kind(node) != PickleKind::kInt || tree.integer(node) < 0) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(tree.integer(node));
}

std::optional<StorageReference> StorageReferenceAt(const PickleTree& tree, PickleRef node) {
  // ("storage", class, key, location, count) and in legacy files (..., None or a view).
  if (tree.kind(node) != PickleKind::kPersistent) {
    return std::nullopt;
  }
  const std::span<const PickleRef> id = ArgumentsOf(tree, node);
  if (id.size() < 5 || tree.text(id[0]) != "storage" || tree.kind(id[2]) != PickleKind::kStr ||
      tree.text(id[3]) == "meta") {
    return std::nullopt;
  }
  const auto type = FindStorageType(tree.module(id[1]), tree.name(id[1]));
  const auto count = CountAt(tree, id[4]);
  if (!type || !count) {
    return std::nullopt;
  }
  StorageReference reference{
      .key = tree.text(id[2]), .type = *type, .count = *count, .view_count = *count};
  if (id.size() > 5 && tree.kind(id[5]) == PickleKind::kTuple) {
    const std::span<const PickleRef> view = tree.items(id[5]);  // (key, offset, count)
    const auto offset = view.size() == 3 ? CountAt(tree, view[1]) : std::nullopt;
    const auto view_count = view.size() == 3 ? CountAt(tree, view[2]) : std::nullopt;
    if (!offset || !view_count || *offset > *count || *view_count > *count - *offset) {
      return std::nullopt;
    }
    reference.view_offset = *offset;
    reference.view_count = *view_count;
  }
  return reference;
}

bool IsTensorNode(const PickleTree& tree, PickleRef node) {
  if (tree.kind(node) != PickleKind::kReduce) {
    return false;
  }
  const PickleRef callee = tree.object(node).callee;
  return (tree.module(callee) == "torch._utils" || tree.module(callee) == "torch._tensor") &&
         tree.name(callee).starts_with("_rebuild_");
}

bool IsAttributes(const PickleTree& tree, PickleRef node) {
  constexpr std::size_t kMaxAttributes = 256;
  return tree.kind(node) == PickleKind::kDict && tree.items(node).size() <= 2 * kMaxAttributes;
}

std::vector<PickleRef> ReachableNodes(const PickleTree& tree, PickleRef root,
                                      std::uint64_t max_nodes) {
  std::vector<bool> seen;
  std::vector<PickleRef> nodes;
  const auto visit = [&](PickleRef node) {
    if (node == kNoPickle || nodes.size() >= max_nodes) {
      return;
    }
    if (node >= seen.size()) {
      seen.resize(std::max<std::size_t>(std::size_t{node} + 1, seen.size() * 2));
    }
    if (!seen[node]) {
      seen[node] = true;
      nodes.push_back(node);
    }
  };
  visit(root);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const PickleRef node = nodes[i];
    for (const PickleRef item : tree.items(node)) {
      visit(item);
    }
    if (!tree.IsObject(node)) {
      continue;
    }
    const PickleObject& object = tree.object(node);
    for (const PickleRef part : {object.callee, object.args, object.kwargs, object.state}) {
      visit(part);
    }
    for (const auto* parts : {&object.items, &object.pairs}) {
      for (const PickleRef part : *parts) {
        visit(part);
      }
    }
  }
  return nodes;
}

}  // namespace varve
