#include "interop/dcp/structure.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "interop/pickle/text.h"

namespace varve {
namespace {

// Positions without an entry that lists may have on top of one for each entry. A list of empty
// dicts with one tensor in it is legal, and has many.
constexpr std::uint64_t kFreeHoles = 65536;

/// One part of a path: a key, or a position in a list.
struct Part {
  bool is_position = false;
  std::string_view key;
  std::uint64_t position = 0;
};

enum class Kind : std::uint8_t { kUnknown, kDict, kList, kLeaf };

struct Node {
  Part part;
  Kind kind = Kind::kUnknown;
  bool is_tensor = false;
  std::vector<std::uint32_t> children;  // In the order of their first entry.
};

struct ChildKey {
  std::uint32_t parent = 0;
  Part part;
  friend bool operator==(const ChildKey& a, const ChildKey& b) {
    return a.parent == b.parent && a.part.is_position == b.part.is_position &&
           a.part.position == b.part.position && a.part.key == b.part.key;
  }
};

struct ChildHash {
  std::size_t operator()(const ChildKey& key) const {
    return std::hash<std::string_view>()(key.part.key) * 31 +
           std::hash<std::uint64_t>()(key.part.position * 0x9E3779B97F4A7C15 + key.parent);
  }
};

class Builder {
 public:
  explicit Builder(std::size_t entries) : holes_left_(kFreeHoles + entries) {
    nodes_.emplace_back();
  }

  Status Insert(const DcpLeaf& leaf, std::span<const Part> path) {
    std::uint32_t at = 0;
    for (const Part& part : path) {
      const Kind needed = part.is_position ? Kind::kList : Kind::kDict;
      if (nodes_[at].kind != Kind::kUnknown && nodes_[at].kind != needed) {
        return Contradiction(leaf);
      }
      nodes_[at].kind = needed;
      at = Child(at, part);
    }
    if (nodes_[at].kind != Kind::kUnknown) {
      return Contradiction(leaf);
    }
    nodes_[at].kind = Kind::kLeaf;
    nodes_[at].is_tensor = leaf.is_tensor;
    return Status::Ok();
  }

  [[nodiscard]] bool HasTop(std::string_view key) const {
    return places_.contains(ChildKey{0, {false, key, 0}});
  }

  /// Depth is bounded by that of the paths.
  Result<Value> Build(std::uint32_t at) {  // NOLINT(misc-no-recursion)
    Node& node = nodes_[at];
    if (node.kind == Kind::kLeaf) {
      return node.is_tensor ? Value{.kind = ValueKind::kTensorLeaf, .text = "torch"}
                            : Value{.kind = ValueKind::kObjectLeaf};
    }
    if (node.kind == Kind::kList) {
      return BuildList(&node);
    }
    Value dict{.kind = ValueKind::kDict};
    for (const std::uint32_t child : node.children) {
      VARVE_ASSIGN_OR_RETURN(Value value, Build(child));
      dict.items.push_back(Value::Str(std::string(nodes_[child].part.key)));
      dict.items.push_back(std::move(value));
    }
    return dict;
  }

 private:
  static Status Contradiction(const DcpLeaf& leaf) {
    return DataLoss("planner_data: the path of " + ShownText(leaf.fqn) + " contradicts another");
  }

  std::uint32_t Child(std::uint32_t parent, const Part& part) {
    const auto next = static_cast<std::uint32_t>(nodes_.size());
    const auto [at, is_new] = places_.try_emplace({parent, part}, next);
    if (is_new) {
      nodes_.push_back({.part = part});
      nodes_[parent].children.push_back(next);
    }
    return at->second;
  }

  Result<Value> BuildList(Node* node) {  // NOLINT(misc-no-recursion)
    std::vector<std::uint32_t>& children = node->children;
    std::sort(children.begin(), children.end(), [this](std::uint32_t a, std::uint32_t b) {
      return nodes_[a].part.position < nodes_[b].part.position;
    });
    const std::uint64_t holes = nodes_[children.back()].part.position + 1 - children.size();
    if (holes > holes_left_) {
      return InvalidArgument("planner_data: a list has an entry at position " +
                             std::to_string(nodes_[children.back()].part.position) + " and only " +
                             std::to_string(children.size()) + " entries");
    }
    holes_left_ -= holes;
    Value list{.kind = ValueKind::kList};
    for (const std::uint32_t child : children) {
      VARVE_ASSIGN_OR_RETURN(Value value, Build(child));
      list.items.resize(nodes_[child].part.position, Value{.kind = ValueKind::kDict});
      list.items.push_back(std::move(value));
    }
    return list;
  }

  std::vector<Node> nodes_;
  std::unordered_map<ChildKey, std::uint32_t, ChildHash> places_;  // Looked up only.
  std::uint64_t holes_left_;
};

bool StartsWithPart(std::string_view part, std::string_view* rest) {
  if (!rest->starts_with(part)) {
    return false;
  }
  rest->remove_prefix(part.size());
  return true;
}

/// Reads a path. Returns false for a path that the default planner does not write: parts that are
/// neither, a position outermost, or parts that do not make up the name.
bool ReadPath(const PickleTree& tree, PickleRef node, std::string_view fqn,
              std::vector<Part>* path) {
  path->clear();
  const std::span<const PickleRef> items = tree.items(node);
  if (tree.kind(node) != PickleKind::kTuple || items.empty()) {
    return false;
  }
  std::string_view rest = fqn;
  for (const PickleRef item : items) {
    if (!path->empty() && !StartsWithPart(".", &rest)) {
      return false;
    }
    if (tree.kind(item) == PickleKind::kStr) {
      path->push_back({false, tree.text(item), 0});
      if (!StartsWithPart(tree.text(item), &rest)) {
        return false;
      }
    } else if (tree.kind(item) == PickleKind::kInt && tree.integer(item) >= 0 && !path->empty()) {
      path->push_back({true, {}, static_cast<std::uint64_t>(tree.integer(item))});
      if (!StartsWithPart(std::to_string(tree.integer(item)), &rest)) {
        return false;
      }
    } else {
      return false;
    }
  }
  return rest.empty();
}

}  // namespace

Result<std::optional<Value>> DcpStructure(const PickleTree& tree, PickleRef planner_data,
                                          const std::vector<DcpLeaf>& leaves) {
  Builder builder(leaves.size());
  std::unordered_map<std::string_view, std::size_t> by_name;  // Looked up only.
  std::vector<bool> has_path(leaves.size(), false);
  if (planner_data != kNoPickle && tree.kind(planner_data) != PickleKind::kNone) {
    if (tree.kind(planner_data) != PickleKind::kDict) {
      return std::optional<Value>();
    }
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      by_name.emplace(leaves[i].fqn, i);
    }
    std::vector<Part> path;
    const std::span<const PickleRef> pairs = tree.items(planner_data);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const std::string_view fqn = tree.text(pairs[i]);
      if (tree.items(pairs[i + 1]).size() > kMaxStructureDepth) {
        return InvalidArgument("planner_data: " + ShownText(fqn) + " lies deeper than " +
                               std::to_string(kMaxStructureDepth) + " levels");
      }
      if (tree.kind(pairs[i]) != PickleKind::kStr || !ReadPath(tree, pairs[i + 1], fqn, &path)) {
        return std::optional<Value>();
      }
      const auto found = by_name.find(fqn);
      if (found == by_name.end()) {
        continue;
      }
      VARVE_RETURN_IF_ERROR(builder.Insert(leaves[found->second], path));
      has_path[found->second] = true;
    }
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (has_path[i]) {
      continue;
    }
    const Part whole{false, leaves[i].fqn, 0};
    if (builder.HasTop(leaves[i].fqn)) {
      return std::optional<Value>();  // Two entries of one name: no structure can hold them.
    }
    VARVE_RETURN_IF_ERROR(builder.Insert(leaves[i], {&whole, 1}));
  }
  VARVE_ASSIGN_OR_RETURN(Value structure, builder.Build(0));
  return std::optional<Value>(std::move(structure));
}

}  // namespace varve
