// numpy's scalars and arrays, by the calls and states of numpy's own __reduce__. The module is that
// of numpy 1, numpy.core.multiarray: numpy 2 keeps the two functions there for old pickles.

#include <charconv>
#include <string>

#include "base/ascii.h"
#include "base/checked.h"
#include "interop/torch/encode_parts.h"

namespace varve {
namespace {

/// The parts of numpy's dtype.str: "<f4", "|S5", "<M8[25s]".
struct NumpyTypeParts {
  std::string_view order;  ///< "<", ">" or "|".
  std::string_view code;   ///< "f4".
  std::uint64_t size = 0;  ///< 4
  std::uint64_t unit_count = 1;
  std::string_view unit;  ///< "s"; of times only.
  [[nodiscard]] char kind() const { return code[0]; }
  [[nodiscard]] bool is_time() const { return kind() == 'M' || kind() == 'm'; }
  [[nodiscard]] std::uint64_t item_bytes() const { return kind() == 'U' ? size * 4 : size; }
};

/// Takes a number from the front; nothing where there is none.
std::optional<std::uint64_t> TakeNumber(std::string_view* text) {
  constexpr std::uint64_t kMax = 0x7FFFFFFF / 4;  // numpy counts bytes of an item in an int.
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), number);
  if (parsed.ec != std::errc() || number > kMax) {
    return std::nullopt;
  }
  text->remove_prefix(static_cast<std::size_t>(parsed.ptr - text->data()));
  return number;
}

/// Parses "[25s]", or nothing for times without a unit.
bool ParseUnit(std::string_view text, NumpyTypeParts* type) {
  if (text.empty()) {
    type->unit = "generic";
    return true;
  }
  if (text.size() < 3 || text.front() != '[' || text.back() != ']') {
    return false;
  }
  text = text.substr(1, text.size() - 2);
  if (IsDigit(text.front())) {
    const auto count = TakeNumber(&text);
    if (!count || *count == 0) {
      return false;
    }
    type->unit_count = *count;
  }
  type->unit = text;
  constexpr std::string_view kUnits = " Y M W D h m s ms us ns ps fs as ";
  return text.find(' ') == std::string_view::npos &&
         kUnits.find(" " + std::string(text) + " ") != std::string_view::npos;
}

std::optional<NumpyTypeParts> ParseType(std::string_view text) {
  constexpr std::string_view kOrders = "<>|";
  constexpr std::string_view kKinds = "biufcSUVMm";
  if (text.size() < 3 || kOrders.find(text[0]) == std::string_view::npos ||
      kKinds.find(text[1]) == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(2);
  const auto size = TakeNumber(&rest);
  if (!size) {
    return std::nullopt;
  }
  NumpyTypeParts type{.order = text.substr(0, 1),
                      .code = text.substr(1, text.size() - 1 - rest.size()),
                      .size = *size,
                      .unit = {}};
  if (type.is_time() ? *size != 8 || !ParseUnit(rest, &type) : !rest.empty()) {
    return std::nullopt;
  }
  return type;
}

/// Returns the type and its name from an item of a value. Errors: InvalidArgument.
Result<NumpyTypeParts> TypeOf(const Value& value, std::size_t item_count) {
  if (value.items.size() != item_count || value.items[0].kind != ValueKind::kStr) {
    return InvalidArgument("a numpy value without its dtype");
  }
  const auto type = ParseType(value.items[0].text);
  if (!type) {
    return InvalidArgument(QuotedStart(value.items[0].text) + " is no numpy dtype of plain data");
  }
  return *type;
}

/// Writes dtype(code, False, True) with its state: (version, byte order, subarray, names, fields,
/// size, alignment, flags). Size, alignment and flags are written for text and raw bytes only;
/// times add their unit.
void PickleType(const NumpyTypeParts& type, PickleWriter* pickle) {
  pickle->Global("numpy", "dtype");
  pickle->Str(type.code);
  pickle->Bool(false);
  pickle->Bool(true);
  pickle->Tuple3();
  pickle->Reduce();
  pickle->Mark();
  pickle->Int(type.is_time() ? 4 : 3);
  pickle->Str(type.order);
  pickle->None();
  pickle->None();
  pickle->None();
  constexpr std::int64_t kNeedsInit = 8;
  const bool text = type.kind() == 'U';
  const bool sized = text || type.kind() == 'S' || type.kind() == 'V';
  pickle->Int(sized ? static_cast<std::int64_t>(type.item_bytes()) : -1);
  pickle->Int(sized ? (text ? 4 : 1) : -1);
  pickle->Int(text ? kNeedsInit : 0);
  if (type.is_time()) {
    pickle->Dict();  // Metadata: numpy 1 wants a dict here.
    pickle->Mark();
    pickle->BytesObject(type.unit);
    pickle->Int(static_cast<std::int64_t>(type.unit_count));
    pickle->Int(1);  // Divisor.
    pickle->Int(1);  // Events.
    pickle->Tuple();
    pickle->Tuple2();
  }
  pickle->Tuple();
  pickle->Build();
}

}  // namespace

Status PickleNumpyScalar(const Value& value, PickleWriter* pickle) {
  VARVE_ASSIGN_OR_RETURN(const NumpyTypeParts type, TypeOf(value, 1));
  // An empty text has no bytes in numpy's pickle, though one character in memory.
  const std::string_view content =
      type.item_bytes() == 0 ? std::string_view() : std::string_view(value.text);
  if (content.size() != type.item_bytes()) {
    return InvalidArgument("a numpy " + value.items[0].text + " of " +
                           std::to_string(value.text.size()) + " bytes");
  }
  pickle->Global("numpy.core.multiarray", "scalar");
  PickleType(type, pickle);
  pickle->BytesObject(content);
  pickle->Tuple2();
  pickle->Reduce();
  return Status::Ok();
}

Status PickleNumpyArray(const Value& value, PickleWriter* pickle) {
  VARVE_ASSIGN_OR_RETURN(const NumpyTypeParts type, TypeOf(value, 2));
  VARVE_ASSIGN_OR_RETURN(const Dims shape, ShapeOf(value.items[1], "the shape of a numpy array"));
  const auto elements = CheckedProduct(shape);
  const auto bytes = elements ? CheckedMul(*elements, type.item_bytes()) : std::nullopt;
  if (bytes != value.text.size()) {
    return InvalidArgument("a numpy array of " + value.items[0].text + " and shape " +
                           ToString(shape) + " with " + std::to_string(value.text.size()) +
                           " bytes");
  }
  // An empty array, to be given its state.
  pickle->Global("numpy.core.multiarray", "_reconstruct");
  pickle->Global("numpy", "ndarray");
  pickle->Int(0);
  pickle->Tuple1();
  pickle->BytesObject("b");
  pickle->Tuple3();
  pickle->Reduce();
  // (version, shape, dtype, column-major, bytes)
  pickle->Mark();
  pickle->Int(1);
  pickle->Mark();
  for (const std::uint64_t size : shape) {
    pickle->Int(static_cast<std::int64_t>(size));
  }
  pickle->Tuple();
  PickleType(type, pickle);
  pickle->Bool(false);
  pickle->BytesObject(value.text);
  pickle->Tuple();
  pickle->Build();
  return Status::Ok();
}

}  // namespace varve
