// The state that a selection is: containers and all, with its values in their places.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "convert/writers.h"
#include "format/structure.h"
#include "interop/torch/encode.h"

namespace varve {
namespace {

/// Makes the state whole: puts values in the place of their leaves, and into the leaves of tensors
/// the tensors' numbers.
class StateFiller {
 public:
  explicit StateFiller(const Selection& selection) {
    for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
      tensors_[selection.tensors[i].fqn] = i;
    }
    for (const SelectedObject& object : selection.objects) {
      objects_[object.fqn] = &object;
    }
  }

  Result<Value> Whole(const Selection& selection) {
    Value state;
    if (selection.structure.empty()) {
      state = Flat();
    } else {
      VARVE_ASSIGN_OR_RETURN(state, DecodeValue(selection.structure));
    }
    VARVE_RETURN_IF_ERROR(Fill("", true, &state));
    return state;
  }

 private:
  /// Returns a dict of names, in their order, or the leaf that the state is, which has no name.
  Value Flat() {
    std::map<std::string_view, ValueKind> leaves;
    for (const auto& [fqn, number] : tensors_) {
      leaves[fqn] = ValueKind::kTensorLeaf;
    }
    for (const auto& [fqn, object] : objects_) {
      leaves[fqn] = ValueKind::kObjectLeaf;
    }
    if (leaves.size() == 1 && leaves.begin()->first.empty()) {
      return {.kind = leaves.begin()->second};
    }
    Value state{.kind = ValueKind::kDict};
    for (const auto& [fqn, kind] : leaves) {
      state.items.push_back(Value::Str(std::string(fqn)));
      state.items.push_back({.kind = kind});
    }
    return state;
  }

  /// DecodeValue has bounded the depth.
  Status Fill(const std::string& name, bool root, Value* value) {  // NOLINT(misc-no-recursion)
    if (value->kind == ValueKind::kTensorLeaf) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end()) {
        return DataLoss("the structure has a tensor \"" + name + "\" that is not there");
      }
      value->text = std::to_string(found->second);
      return Status::Ok();
    }
    if (value->kind == ValueKind::kObjectLeaf) {
      return FillObject(name, value);
    }
    const bool mapping = IsMapping(value->kind);
    const std::size_t step = mapping ? 2 : 1;
    for (std::size_t i = 0; i + step <= value->items.size(); i += step) {
      const std::string key = mapping ? KeyText(value->items[i]) : std::to_string(i);
      VARVE_RETURN_IF_ERROR(Fill(NameBelow(name, root, key), false, &value->items[i + step - 1]));
    }
    return Status::Ok();
  }

  Status FillObject(const std::string& name, Value* value) {
    const auto found = objects_.find(name);
    if (found == objects_.end()) {
      return DataLoss("the structure has a value \"" + name + "\" that is not there");
    }
    VARVE_ASSIGN_OR_RETURN(*value, DecodeValue(found->second->encoded));
    // Alone, so that the error has its name, and so that a leaf inside a value stands for nothing.
    if (const auto archive = EncodeValueArchive(*value);
        value->kind == ValueKind::kTorchSave || !archive.ok()) {
      const Status status =
          archive.ok() ? Unimplemented("it is an archive of its own") : archive.status();
      return status.Annotate("\"" + name + "\", which --exclude would leave out");
    }
    return Status::Ok();
  }

  std::map<std::string, std::size_t, std::less<>> tensors_;
  std::map<std::string, const SelectedObject*, std::less<>> objects_;
};

}  // namespace

Result<Value> WholeState(const Selection& selection) {
  return StateFiller(selection).Whole(selection);
}

}  // namespace varve
