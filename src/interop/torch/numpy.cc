// numpy's scalars and arrays, by the calls and states that numpy's own __reduce__ gives.

#include <algorithm>
#include <charconv>

#include "base/checked.h"
#include "interop/torch/parts.h"
#include "interop/torch/values.h"

namespace varve {
namespace {

constexpr std::size_t kMaxNumpyRank = 64;  // As in numpy.

struct NumpyType {
  std::string name;  ///< As numpy's dtype.str: "<f4".
  std::uint64_t item_bytes = 0;
};

/// Returns the size in a type's code: 4 in "f4", in characters for "U".
std::optional<std::uint64_t> CodeSize(std::string_view code) {
  std::uint64_t size = 0;
  const char* const end = code.data() + code.size();
  const auto parsed =
      std::from_chars(code.data() + std::min<std::size_t>(1, code.size()), end, size);
  constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 31;
  constexpr std::size_t kMaxChars = 16;
  if (parsed.ec != std::errc() || parsed.ptr != end || size > kMaxSize || code.size() > kMaxChars) {
    return std::nullopt;
  }
  return size;
}

/// Returns "[25s]" of a datetime64 or timedelta64, empty for the generic unit.
std::optional<std::string> UnitAt(const PickleTree& tree, PickleRef metadata) {
  // (dict or None, (unit, count, divisor, event))
  const std::span<const PickleRef> outer = tree.items(metadata);
  const std::span<const PickleRef> unit =
      outer.size() == 2 ? tree.items(outer[1]) : std::span<const PickleRef>();
  if (unit.size() != 4) {
    return std::nullopt;
  }
  constexpr std::uint64_t kMaxUnitBytes = 8;
  const auto name = BytesAt(tree, unit[0], kMaxUnitBytes);
  const auto count = CountAt(tree, unit[1]);
  if (!name || !count || CountAt(tree, unit[2]) != 1) {
    return std::nullopt;
  }
  if (*name == "generic") {
    return "";
  }
  return "[" + (*count == 1 ? "" : std::to_string(*count)) + *name + "]";
}

std::optional<NumpyType> TypeAt(const PickleTree& tree, PickleRef node) {
  // dtype(code, False, True) with the state (version, byte order, subarray, names, fields, size,
  // alignment, flags[, metadata]).
  if (!tree.IsMadeBy(node, "numpy", "dtype") || tree.object(node).state == kNoPickle) {
    return std::nullopt;
  }
  const std::span<const PickleRef> arguments = ArgumentsOf(tree, node);
  const std::span<const PickleRef> state = tree.items(tree.object(node).state);
  if (arguments.empty() || tree.kind(arguments[0]) != PickleKind::kStr || state.size() < 8) {
    return std::nullopt;
  }
  const auto is_none = [&](PickleRef part) { return tree.kind(part) == PickleKind::kNone; };
  const std::string_view code = tree.text(arguments[0]);
  const std::string_view order = tree.text(state[1]);
  const auto size = CodeSize(code);
  if (!size || order.size() != 1 || !is_none(state[2]) || !is_none(state[3]) ||
      !is_none(state[4])) {
    return std::nullopt;
  }
  const char kind = code[0];
  const std::uint64_t item_bytes = kind == 'U' ? *size * 4 : *size;
  if (kind == 'M' || kind == 'm') {
    const auto unit = state.size() > 8 ? UnitAt(tree, state[8]) : std::nullopt;
    if (!unit || *size != 8) {
      return std::nullopt;
    }
    return NumpyType{std::string(order) + std::string(code) + *unit, item_bytes};
  }
  constexpr std::string_view kKinds = "biufcSUV";
  if (kKinds.find(kind) == std::string_view::npos) {
    return std::nullopt;
  }
  const bool orderless = kind == 'S' || kind == 'V' || item_bytes == 1;
  return NumpyType{(orderless ? "|" : std::string(order)) + std::string(code), item_bytes};
}

std::optional<Dims> ShapeAt(const PickleTree& tree, PickleRef node) {
  Dims shape;
  if (tree.kind(node) != PickleKind::kTuple || tree.items(node).size() > kMaxNumpyRank) {
    return std::nullopt;
  }
  for (const PickleRef item : tree.items(node)) {
    const auto size = CountAt(tree, item);
    if (!size) {
      return std::nullopt;
    }
    shape.push_back(*size);
  }
  return shape;
}

/// Puts the elements of an array with the first dimension innermost into row-major order.
std::string RowMajor(std::string_view bytes, const Dims& shape, std::uint64_t item_bytes) {
  std::string out;
  out.reserve(bytes.size());
  std::vector<std::uint64_t> steps;
  std::uint64_t step = item_bytes;
  for (const std::uint64_t size : shape) {
    steps.push_back(step);
    step *= size;
  }
  Dims index(shape.size(), 0);
  std::uint64_t at = 0;
  while (out.size() < bytes.size()) {
    out.append(bytes.substr(at, item_bytes));
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += steps[d];
      if (++index[d] < shape[d]) {
        break;
      }
      index[d] = 0;
      at -= steps[d] * shape[d];
    }
  }
  return out;
}

/// The parts of an array, wherever the pickle keeps them.
struct ArrayParts {
  PickleRef shape;
  PickleRef type;
  bool column_major;
  PickleRef content;
};

std::optional<ArrayParts> ArrayPartsAt(const PickleTree& tree, PickleRef node) {
  const PickleObject& object = tree.object(node);
  const std::span<const PickleRef> arguments = ArgumentsOf(tree, node);
  if (tree.name(object.callee) == "_frombuffer") {
    // (bytes, dtype, shape, "C" or "F")
    if (arguments.size() != 4 || object.state != kNoPickle) {
      return std::nullopt;
    }
    return ArrayParts{arguments[2], arguments[1], tree.text(arguments[3]) == "F", arguments[0]};
  }
  // _reconstruct(ndarray, (0,), b"b") with the state (version, shape, dtype, column-major, bytes).
  if (object.state == kNoPickle || arguments.empty() ||
      !tree.IsGlobal(arguments[0], "numpy", "ndarray")) {
    return std::nullopt;
  }
  const std::span<const PickleRef> state = tree.items(object.state);
  if (state.size() != 5) {
    return std::nullopt;
  }
  const bool column_major = tree.kind(state[3]) == PickleKind::kBool && tree.integer(state[3]) != 0;
  return ArrayParts{state[1], state[2], column_major, state[4]};
}

}  // namespace

Result<std::optional<Value>> NumpyScalarAt(const PickleTree& tree, PickleRef node) {
  const std::span<const PickleRef> arguments = ArgumentsOf(tree, node);
  const auto type = arguments.size() == 2 ? TypeAt(tree, arguments[0]) : std::nullopt;
  auto bytes = type ? BytesAt(tree, arguments[1]) : std::nullopt;
  if (!bytes) {
    return std::optional<Value>();
  }
  if (bytes->size() != type->item_bytes) {
    return DataLoss("a numpy " + type->name + " of " + std::to_string(bytes->size()) + " bytes");
  }
  return std::optional<Value>(Value{.kind = ValueKind::kNumpyScalar,
                                    .text = *std::move(bytes),
                                    .items = {Value::Str(type->name)}});
}

Result<std::optional<Value>> NumpyArrayAt(const PickleTree& tree, PickleRef node) {
  const auto parts = ArrayPartsAt(tree, node);
  const auto type = parts ? TypeAt(tree, parts->type) : std::nullopt;
  const auto shape = type ? ShapeAt(tree, parts->shape) : std::nullopt;
  auto bytes = shape ? BytesAt(tree, parts->content) : std::nullopt;
  if (!bytes) {
    return std::optional<Value>();
  }
  const auto elements = CheckedProduct(*shape);
  const auto expected = elements ? CheckedMul(*elements, type->item_bytes) : std::nullopt;
  if (expected != bytes->size()) {
    return DataLoss("a numpy array of " + type->name + " and shape " + ToString(*shape) + " with " +
                    std::to_string(bytes->size()) + " bytes");
  }
  if (parts->column_major) {
    bytes = RowMajor(*bytes, *shape, type->item_bytes);
  }
  Value sizes{.kind = ValueKind::kTuple};
  for (const std::uint64_t size : *shape) {
    sizes.items.push_back(Value::Int(static_cast<std::int64_t>(size)));
  }
  return std::optional<Value>(Value{.kind = ValueKind::kNumpyArray,
                                    .text = *std::move(bytes),
                                    .items = {Value::Str(type->name), std::move(sizes)}});
}

}  // namespace varve
