#include "interop/state_tree.h"

#include <algorithm>
#include <utility>

#include "format/json_writer.h"
#include "format/structure.h"

namespace varve {
namespace {

/// Returns an int or bool of NumPy as one of Python; nothing for other types.
std::optional<Value> NumberOfNumpy(const Value& scalar) {
  const std::string_view dtype = scalar.items.empty() ? "" : std::string_view(scalar.items[0].text);
  if (dtype.size() < 3 || scalar.text.empty()) {
    return std::nullopt;
  }
  if (dtype[1] == 'b') {
    return Value{.kind = scalar.text[0] == 0 ? ValueKind::kFalse : ValueKind::kTrue};
  }
  if ((dtype[1] != 'i' && dtype[1] != 'u') || (dtype[0] != '<' && dtype[0] != '|')) {
    return std::nullopt;
  }
  Value number{.kind = ValueKind::kInt, .text = scalar.text};
  if (dtype[1] == 'u') {
    number.text.push_back('\0');  // The highest bit is the sign.
  }
  return number;
}

/// Returns the name of an item of a container at this depth. The root adds nothing to it.
std::string Joined(const std::string& container, const std::string& part, int depth) {
  return depth == 0 ? part : container + "." + part;
}

/// Moves one leaf after the other to the lists of a Decoded.
class Flattener {
 public:
  explicit Flattener(Decoded* out) : out_(*out) {}

  /// Walks a node. `name` is its FQN; `stored` its path in the file where that differs, or empty.
  Status Walk(StateNode& node, const std::string& name, const std::string& stored, int depth,
              Value* structure) {
    if (depth > kMaxStateDepth) {
      return InvalidArgument("\"" + name.substr(0, 100) + "...\" nests deeper than " +
                             std::to_string(kMaxStateDepth) + " levels");
    }
    structure->kind = node.kind;
    if (!stored.empty() &&
        (node.kind == ValueKind::kTensorLeaf || node.kind == ValueKind::kObjectLeaf)) {
      out_.stored_names.emplace_back(name, stored);
    }
    if (node.kind == ValueKind::kTensorLeaf) {
      structure->text = "torch";
      StoredTensor& tensor = node.tensor;
      out_.metadata.tensors.push_back(
          {name, tensor.dtype, std::move(tensor.shape), std::move(tensor.chunks)});
      return Status::Ok();
    }
    if (node.kind == ValueKind::kObjectLeaf) {
      const std::uint64_t index = out_.inline_values.size();
      out_.inline_values.push_back(std::move(node.value));
      out_.metadata.objects.push_back({name, {0, index, index, Encoding::kInline}});
      return Status::Ok();
    }
    structure->text = std::move(node.factory);
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string key = node.IsMapping() ? KeyText(node.keys[i]) : std::to_string(i);
      const std::string& was = node.items[i].stored_key;
      const std::string path =
          stored.empty() && was.empty()
              ? std::string()
              : Joined(stored.empty() ? name : stored, was.empty() ? key : was, depth);
      Value item;
      VARVE_RETURN_IF_ERROR(Walk(node.items[i], Joined(name, key, depth), path, depth + 1, &item));
      if (node.IsMapping()) {
        structure->items.push_back(std::move(node.keys[i]));
      }
      structure->items.push_back(std::move(item));
    }
    return Status::Ok();
  }

  /// Sorts the entries. Errors: InvalidArgument when two have one name, or one is no UTF-8.
  Status SortNames() {
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
    for (const std::string_view name : names) {
      if (!IsUtf8(name)) {
        return InvalidArgument("the name " +
                               ToString({.kind = ValueKind::kBytes, .text = std::string(name)}) +
                               " of an entry is not valid UTF-8; save it under another key");
      }
    }
    std::sort(names.begin(), names.end());
    const auto twin = std::adjacent_find(names.begin(), names.end());
    if (twin != names.end()) {
      return InvalidArgument("two entries of the state are called \"" + std::string(*twin) +
                             "\" when the parts of their paths are joined");
    }
    return Status::Ok();
  }

 private:
  Decoded& out_;
};

}  // namespace

StateNode StateNode::OfTensor(StoredTensor tensor) {
  StateNode node;
  node.kind = ValueKind::kTensorLeaf;
  node.tensor = std::move(tensor);
  return node;
}

StateNode StateNode::OfValue(const Value& value) {
  StateNode node;
  node.kind = ValueKind::kObjectLeaf;
  node.value = EncodeValue(value);
  return node;
}

bool StateNode::IsMapping() const { return varve::IsMapping(kind); }

StateNode* StateNode::Find(std::string_view key) {
  for (std::size_t i = keys.size(); i-- > 0;) {
    if (keys[i].kind == ValueKind::kStr && keys[i].text == key) {
      return &items[i];
    }
  }
  return nullptr;
}

StateNode* StateNode::Add(std::string_view key, StateNode item) {
  keys.push_back(Value::Str(std::string(key)));
  items.push_back(std::move(item));
  return &items.back();
}

void StateNode::Rename(std::size_t i, std::string key) {
  if (keys[i].kind == ValueKind::kStr && keys[i].text == key) {
    return;
  }
  items[i].stored_key = KeyText(keys[i]);
  keys[i] = Value::Str(std::move(key));
}

std::string KeyText(const Value& key) {
  constexpr std::size_t kNoLimit = std::string::npos / 2;
  switch (key.kind) {
    case ValueKind::kStr:
    case ValueKind::kTorchDevice:
    case ValueKind::kDate:
    case ValueKind::kPath: return key.text;
    case ValueKind::kNamed:
      return key.items.empty() ? ToString(key, kNoLimit) : key.items.back().text;
    case ValueKind::kDateTime: {
      std::string text = key.text;
      std::replace(text.begin(), text.end(), 'T', ' ');
      return text;
    }
    case ValueKind::kNumpyScalar: {
      const auto number = NumberOfNumpy(key);
      return ToString(number ? *number : key, kNoLimit);
    }
    case ValueKind::kRange: {
      Value shown = key;
      if (shown.items.size() == 3 && shown.items[2] == Value::Int(1)) {
        shown.items.pop_back();
      }
      return ToString(shown, kNoLimit);
    }
    default: return ToString(key, kNoLimit);
  }
}

Status FlattenState(StateNode state, Decoded* out) {
  Flattener flattener(out);
  Value structure;
  VARVE_RETURN_IF_ERROR(flattener.Walk(state, "", "", 0, &structure));
  if (state.kind != ValueKind::kTensorLeaf && state.kind != ValueKind::kObjectLeaf) {
    out->structure = std::move(structure);
  }
  return flattener.SortNames();
}

}  // namespace varve
