// The types of keys, which paths of DCP do not have: from Varve's own attribute, or from what an
// optimizer's groups say.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "format/structure.h"
#include "interop/dcp/structure.h"
#include "interop/state_tree.h"

namespace varve {
namespace {

/// Calls `visit(part, item)` for each item of a container, with its part of a name.
template <class Item, class Visit>
void ForEachItem(Item& container, const Visit& visit) {
  const std::size_t step = container.kind == ValueKind::kList ? 1 : 2;
  for (std::size_t i = 0; i + step <= container.items.size(); i += step) {
    visit(step == 1 ? std::to_string(i) : KeyText(container.items[i]),
          container.items[i + step - 1]);
  }
}

/// Compares the leaves of a structure with the entries of an index.
class LeafCheck {
 public:
  explicit LeafCheck(const std::vector<DcpLeaf>& leaves) {
    for (const DcpLeaf& leaf : leaves) {
      is_good_ = left_.emplace(leaf.fqn, leaf.is_tensor).second && is_good_;
    }
  }

  bool Run(const Value& root) {
    is_good_ = is_good_ && IsMapping(root.kind);
    std::string path;
    Visit(root, 0, &path);
    return is_good_ && left_.empty();
  }

 private:
  void Visit(const Value& value, std::size_t depth,  // NOLINT(misc-no-recursion)
             std::string* path) {
    const bool is_tensor = value.kind == ValueKind::kTensorLeaf;
    if (is_tensor || value.kind == ValueKind::kObjectLeaf) {
      const auto found = left_.find(*path);
      is_good_ = is_good_ && found != left_.end() && found->second == is_tensor;
      if (is_good_) {
        left_.erase(found);
      }
      return;
    }
    if (depth >= kMaxStructureDepth || (value.kind != ValueKind::kList && !IsMapping(value.kind))) {
      is_good_ = false;
      return;
    }
    ForEachItem(value, [&](const std::string& part, const Value& item) {
      const std::size_t length = path->size();
      *path += (depth == 0 ? "" : ".") + part;
      if (is_good_) {
        Visit(item, depth + 1, path);
      }
      path->resize(length);
    });
  }

  std::unordered_map<std::string_view, bool> left_;  // Looked up only.
  bool is_good_ = true;
};

/// Reads a number as Python writes an int that is not negative.
bool ReadNumber(std::string_view text, std::int64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc{} && end == text.data() + text.size() && *number >= 0 &&
         (text[0] != '0' || text.size() == 1);
}

bool HasNumbersForKeys(const Value& dict) {
  std::int64_t number = 0;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    if (dict.items[i].kind != ValueKind::kStr || !ReadNumber(dict.items[i].text, &number)) {
      return false;
    }
  }
  return dict.kind == ValueKind::kDict && !dict.items.empty();
}

/// Returns the item of a dict, or null.
Value* ItemOf(Value* dict, std::string_view key) {
  for (std::size_t i = 0; i + 1 < dict->items.size(); i += 2) {
    if (dict->items[i].kind == ValueKind::kStr && dict->items[i].text == key) {
      return &dict->items[i + 1];
    }
  }
  return nullptr;
}

void Find(Value* value, const std::string& path,  // NOLINT(misc-no-recursion)
          std::vector<DcpOptimizer>* found) {
  const std::string prefix = path.empty() ? path : path + ".";
  if (value->kind == ValueKind::kDict) {
    Value* const state = ItemOf(value, "state");
    Value* const groups = ItemOf(value, "param_groups");
    if (state != nullptr && groups != nullptr && HasNumbersForKeys(*state) &&
        groups->kind == ValueKind::kList) {
      DcpOptimizer optimizer{.state = state, .params = {}};
      for (std::size_t g = 0; g < groups->items.size(); ++g) {
        const Value* const params = ItemOf(&groups->items[g], "params");
        if (params != nullptr && params->kind == ValueKind::kObjectLeaf) {
          optimizer.params.push_back(prefix + "param_groups." + std::to_string(g) + ".params");
        }
      }
      found->push_back(std::move(optimizer));
      return;
    }
  }
  if (value->kind == ValueKind::kList || value->kind == ValueKind::kDict) {
    ForEachItem(*value,
                [&](const std::string& part, Value& item) { Find(&item, prefix + part, found); });
  }
}

}  // namespace

std::optional<Value> VarveStructure(std::string_view encoded, const std::vector<DcpLeaf>& leaves) {
  Result<Value> value = DecodeValue(encoded);
  if (!value.ok() || !LeafCheck(leaves).Run(*value)) {
    return std::nullopt;
  }
  return *std::move(value);
}

std::vector<DcpOptimizer> FindDcpOptimizers(Value* structure) {
  std::vector<DcpOptimizer> found;
  Find(structure, "", &found);
  return found;
}

void NumberKeys(Value* state) {
  for (std::size_t i = 0; i < state->items.size(); i += 2) {
    std::int64_t number = 0;
    if (ReadNumber(state->items[i].text, &number)) {
      state->items[i] = Value::Int(number);
    }
  }
}

}  // namespace varve
