#include "wrapped.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "varve/value.h"

namespace varve::cli {
namespace {

/// Lists the wrapped tensors of a structure.
// NOLINTNEXTLINE(misc-no-recursion): DecodeValue has bounded the depth.
void FindWrapped(const Value& value, const std::string& path, std::vector<WrappedTensor>* found) {
  const bool mapping = value.kind != ValueKind::kList && !value.items.empty() &&
                       value.kind != ValueKind::kTensorLeaf;
  const std::size_t step = mapping ? 2 : 1;
  WrappedTensor wrapped{.fqn = path, .of_class = std::string(ClassOf(value)), .inner = {}};
  for (std::size_t i = 0; i + step <= value.items.size(); i += step) {
    const std::string key = !mapping                                 ? std::to_string(i)
                            : value.items[i].kind == ValueKind::kStr ? value.items[i].text
                                                                     : ToString(value.items[i]);
    wrapped.inner.push_back(key);
    std::string below = path;
    below += (path.empty() ? "" : ".") + key;
    FindWrapped(value.items[i + step - 1], below, found);
  }
  if (value.kind == ValueKind::kWrapped) {
    std::replace(wrapped.of_class.begin(), wrapped.of_class.end(), ':', '.');
    found->push_back(std::move(wrapped));
  }
}

}  // namespace

std::vector<WrappedTensor> WrappedTensors(CheckpointReader& reader) {
  std::vector<WrappedTensor> found;
  if (const auto structure = reader.ReadStructure(); structure.ok()) {
    FindWrapped(*structure, "", &found);
  }
  return found;
}

}  // namespace varve::cli
