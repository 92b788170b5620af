// Built-in objects of Python and their pickled forms, as far as a few nodes say all.

#include <algorithm>

#include "interop/pickle/text.h"
#include "interop/torch/globals.h"
#include "interop/torch/parts.h"
#include "interop/torch/values.h"

namespace varve {
namespace {

bool IsLatin1(std::string_view encoding) { return encoding == "latin1" || encoding == "latin-1"; }

/// Adds the pairs of a list of pairs, which is how Python 2 pickles an OrderedDict.
bool AddPairs(const PickleTree& tree, PickleRef list, std::vector<PickleRef>* pairs) {
  for (const PickleRef item : tree.items(list)) {
    const std::span<const PickleRef> pair = tree.items(item);
    if (pair.size() != 2) {
      return false;
    }
    pairs->insert(pairs->end(), pair.begin(), pair.end());
  }
  return tree.kind(list) == PickleKind::kList;
}

}  // namespace

std::optional<KnownGlobal> KnownCallee(const PickleTree& tree, PickleRef node) {
  const PickleRef callee = tree.object(node).callee;
  if (callee == kNoPickle || tree.kind(callee) != PickleKind::kGlobal) {
    return std::nullopt;
  }
  return FindKnownGlobal(tree.module(callee), tree.name(callee));
}

/// Reads getattr(zoneinfo.ZoneInfo, "_unpickle")(key, from_cache).
std::optional<std::string> ZoneKeyAt(const PickleTree& tree, PickleRef node) {
  PickleRef callee = tree.object(node).callee;
  if (callee == kNoPickle || tree.kind(callee) != PickleKind::kReduce ||
      !(tree.IsMadeBy(callee, "builtins", "getattr") ||
        tree.IsMadeBy(callee, "__builtin__", "getattr"))) {
    return std::nullopt;
  }
  const std::span<const PickleRef> method = ArgumentsOf(tree, callee);
  const std::span<const PickleRef> arguments = ArgumentsOf(tree, node);
  if (method.size() != 2 || !tree.IsGlobal(method[0], "zoneinfo", "ZoneInfo") ||
      tree.text(method[1]) != "_unpickle" || arguments.size() != 2 ||
      tree.kind(arguments[0]) != PickleKind::kStr) {
    return std::nullopt;
  }
  return std::string(tree.text(arguments[0]));
}

std::optional<std::string> DeviceText(const PickleTree& tree,
                                      std::span<const PickleRef> arguments) {
  if (arguments.empty() || arguments.size() > 2 || tree.kind(arguments[0]) != PickleKind::kStr) {
    return std::nullopt;
  }
  std::string type(tree.text(arguments[0]));
  if (arguments.size() == 1) {
    return type;
  }
  const auto index = CountAt(tree, arguments[1]);
  return index ? std::optional(type + ":" + std::to_string(*index)) : std::nullopt;
}

std::optional<std::string> PathText(const PickleTree& tree, std::span<const PickleRef> arguments) {
  std::string joined;
  for (const PickleRef part : arguments) {
    if (tree.kind(part) != PickleKind::kStr) {
      return std::nullopt;
    }
    const std::string_view text = tree.text(part);
    if (text.starts_with('/')) {
      joined.clear();
    } else if (!joined.empty() && joined.back() != '/') {
      joined += '/';
    }
    joined += text;
  }
  // POSIX leaves two leading slashes their own meaning, and so does Python.
  std::string path(joined.starts_with("//") && !joined.starts_with("///") ? "//"
                   : joined.starts_with('/')                              ? "/"
                                                                          : "");
  const std::size_t root = path.size();
  for (std::size_t at = 0; at < joined.size();) {
    const std::size_t end = std::min(joined.find('/', at), joined.size());
    const std::string_view part = std::string_view(joined).substr(at, end - at);
    if (!part.empty() && part != ".") {
      path += path.size() > root ? "/" : "";
      path += part;
    }
    at = end + 1;
  }
  return path.empty() ? "." : path;
}

std::optional<std::string> ByteArrayAt(const PickleTree& tree,
                                       std::span<const PickleRef> arguments) {
  if (arguments.empty()) {
    return "";
  }
  if (arguments.size() == 1) {
    return BytesAt(tree, arguments[0]);
  }
  if (arguments.size() == 2 && tree.kind(arguments[0]) == PickleKind::kStr &&
      IsLatin1(tree.text(arguments[1]))) {
    return Latin1(tree.text(arguments[0]));
  }
  return std::nullopt;
}

std::optional<std::string> BytesAt(const PickleTree& tree, PickleRef node,
                                   std::uint64_t max_bytes) {
  const PickleKind kind = tree.kind(node);
  if (kind == PickleKind::kBytes || kind == PickleKind::kByteArray) {
    const std::string_view bytes = tree.text(node);
    return bytes.size() <= max_bytes ? std::optional(std::string(bytes)) : std::nullopt;
  }
  if (kind != PickleKind::kReduce) {
    return std::nullopt;
  }
  const auto known = KnownCallee(tree, node);
  const std::span<const PickleRef> arguments = ArgumentsOf(tree, node);
  if (known == KnownGlobal::kBytes && arguments.empty()) {
    return "";
  }
  if (known == KnownGlobal::kEncodedBytes && arguments.size() == 2 &&
      tree.kind(arguments[0]) == PickleKind::kStr && IsLatin1(tree.text(arguments[1])) &&
      tree.text(arguments[0]).size() / 2 <= max_bytes) {
    auto bytes = Latin1(tree.text(arguments[0]));
    return bytes && bytes->size() <= max_bytes ? std::move(bytes) : std::nullopt;
  }
  return std::nullopt;
}

bool IsMappingNode(const PickleTree& tree, PickleRef node) {
  if (tree.kind(node) != PickleKind::kReduce) {
    return tree.kind(node) == PickleKind::kDict;
  }
  const auto known = KnownCallee(tree, node);
  return known == KnownGlobal::kOrderedDict || known == KnownGlobal::kCounter ||
         known == KnownGlobal::kDefaultDict;
}

std::optional<PickledMapping> PickledMappingAt(const PickleTree& tree, PickleRef node) {
  PickledMapping mapping;
  if (tree.kind(node) == PickleKind::kDict) {
    const std::span<const PickleRef> pairs = tree.items(node);
    mapping.pairs.assign(pairs.begin(), pairs.end());
    return mapping;
  }
  if (!IsMappingNode(tree, node)) {
    return std::nullopt;
  }
  const PickleObject& object = tree.object(node);
  const std::span<const PickleRef> arguments = ArgumentsOf(tree, node);
  const auto known = KnownCallee(tree, node);
  // Attributes of an OrderedDict (state_dict's `_metadata`) are no part of the state.
  if (!object.items.empty() || arguments.size() > 1 ||
      (object.state != kNoPickle && known != KnownGlobal::kOrderedDict)) {
    return std::nullopt;
  }
  if (known == KnownGlobal::kOrderedDict) {
    mapping.kind = ValueKind::kOrderedDict;
    if (!arguments.empty() && !AddPairs(tree, arguments[0], &mapping.pairs)) {
      return std::nullopt;
    }
  } else if (known == KnownGlobal::kCounter) {
    mapping.kind = ValueKind::kCounter;
    if (!arguments.empty()) {
      const std::span<const PickleRef> pairs = tree.items(arguments[0]);
      if (tree.kind(arguments[0]) != PickleKind::kDict) {
        return std::nullopt;
      }
      mapping.pairs.assign(pairs.begin(), pairs.end());
    }
  } else {
    mapping.kind = ValueKind::kDefaultDict;
    if (!arguments.empty() && tree.kind(arguments[0]) != PickleKind::kNone) {
      auto factory = FactoryName(tree.module(arguments[0]), tree.name(arguments[0]));
      if (!factory) {
        return std::nullopt;
      }
      mapping.factory = *std::move(factory);
    }
  }
  mapping.pairs.insert(mapping.pairs.end(), object.pairs.begin(), object.pairs.end());
  return mapping;
}

}  // namespace varve
