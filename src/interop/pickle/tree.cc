#include "interop/pickle/tree.h"

#include <cstddef>

#include "interop/pickle/machine.h"

namespace varve {
bool PickleTree::IsGlobal(PickleRef node, std::string_view module, std::string_view name) const {
  const Node& at = nodes_[node];
  return at.kind == PickleKind::kGlobal && globals_[at.extra].name == name &&
         globals_[at.extra].module == module;
}

bool PickleTree::IsMadeBy(PickleRef node, std::string_view module, std::string_view name) const {
  const PickleKind kind = nodes_[node].kind;
  return (kind == PickleKind::kReduce || kind == PickleKind::kNewObject) &&
         IsGlobal(object(node).callee, module, name);
}

PickleRef PickleTree::Get(PickleRef dict, std::string_view key) const {
  if (kind(dict) != PickleKind::kDict) {
    return kNoPickle;
  }
  const std::span<const PickleRef> pairs = items(dict);
  for (std::size_t i = pairs.size(); i >= 2; i -= 2) {
    if (kind(pairs[i - 2]) == PickleKind::kStr && text(pairs[i - 2]) == key) {
      return pairs[i - 1];
    }
  }
  return kNoPickle;
}

Result<PickleTree> ReadPickle(std::string_view input, const PickleLimits& limits,
                              PickleFolder* folder, std::uint64_t* consumed) {
  return PickleMachine(input, limits, folder).Run(consumed);
}

}  // namespace varve
