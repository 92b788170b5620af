#include "support/typed_json.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <vector>

#include "base/checksum.h"
#include "support/sha256.h"

namespace varve::test {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;

std::string HexOf(std::string_view bytes) {
  return Hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

bool SameFloat(std::string_view text, double number) {
  const double expected = std::strtod(std::string(text).c_str(), nullptr);
  return std::isnan(expected)
             ? std::isnan(number)
             : std::bit_cast<std::uint64_t>(expected) == std::bit_cast<std::uint64_t>(number);
}

/// Returns a shape as JSON: "[3, 4]".
std::string ShapeText(const Value& value) {
  std::string text;
  for (const Value& item : value.items[1].items) {
    text += (text.empty() ? "" : ",") + IntToString(item);
  }
  return "[" + text + "]";
}

std::string Compared(const std::string& expected, const std::string& actual) {
  return expected == actual ? "" : "expected " + expected + ", got " + actual;
}

std::string ItemsDiffer(array expected, const Value& value) {
  if (expected.size() != value.items.size()) {
    return "expected " + std::to_string(expected.size()) + " items, got " + ToString(value);
  }
  std::size_t i = 0;
  for (const element item : expected) {
    if (std::string difference = DifferenceFrom(item, value.items[i++]); !difference.empty()) {
      return difference;
    }
  }
  return "";
}

std::string SetsDiffer(array expected, const Value& value) {
  for (const element item : expected) {
    bool found = false;
    for (const Value& candidate : value.items) {
      found = found || DifferenceFrom(item, candidate).empty();
    }
    if (!found) {
      return simdjson::minify(item) + " is not in " + ToString(value);
    }
  }
  return expected.size() == value.items.size() ? "" : "the set has other members";
}

std::string PairsDiffer(array expected, const Value& value) {
  if (expected.size() * 2 != value.items.size()) {
    return "expected " + std::to_string(expected.size()) + " entries, got " + ToString(value);
  }
  std::size_t i = 0;
  for (const element pair : expected) {
    for (const element part : pair.get_array()) {
      if (std::string difference = DifferenceFrom(part, value.items[i++]); !difference.empty()) {
        return difference;
      }
    }
  }
  return "";
}

/// Compares the elements of an array or tensor.
std::string ElementsDiffer(element expected, const Value& value) {
  const std::string actual =
      value.items[0].text + " " + ShapeText(value) + " " + Sha256(value.text);
  return Compared(StringAt(expected, "dtype") + " " + simdjson::minify(expected["shape"].value()) +
                      " " + StringAt(expected, "sha256"),
                  actual);
}

const std::map<std::string, ValueKind>& KindsByType() {
  static const std::map<std::string, ValueKind> kinds{
      {"NoneType", ValueKind::kNone},
      {"int", ValueKind::kInt},
      {"float", ValueKind::kFloat},
      {"complex", ValueKind::kComplex},
      {"str", ValueKind::kStr},
      {"bytes", ValueKind::kBytes},
      {"bytearray", ValueKind::kByteArray},
      {"list", ValueKind::kList},
      {"tuple", ValueKind::kTuple},
      {"dict", ValueKind::kDict},
      {"set", ValueKind::kSet},
      {"frozenset", ValueKind::kFrozenSet},
      {"collections.OrderedDict", ValueKind::kOrderedDict},
      {"collections.Counter", ValueKind::kCounter},
      {"collections.defaultdict", ValueKind::kDefaultDict},
      {"torch.Size", ValueKind::kTorchSize},
      {"torch.dtype", ValueKind::kTorchDType},
      {"torch.device", ValueKind::kTorchDevice},
      {"torch.Tensor", ValueKind::kTensor},
      {"datetime.datetime", ValueKind::kDateTime},
      {"datetime.date", ValueKind::kDate},
      {"datetime.timedelta", ValueKind::kTimeDelta},
      {"range", ValueKind::kRange},
      {"slice", ValueKind::kSlice},
      {"numpy.ndarray", ValueKind::kNumpyArray}};
  return kinds;
}

/// Returns Python's str() for the kinds that are described by it.
std::string PythonText(const Value& value) {
  switch (value.kind) {
    case ValueKind::kTorchDevice:
    case ValueKind::kDate: return value.text;
    case ValueKind::kDateTime:
      // Golden files have no time zone but UTC.
      return value.text + (value.items[0].kind == ValueKind::kTimeZone ? "+00:00" : "");
    case ValueKind::kInt: return IntToString(value);
    case ValueKind::kStr: return value.text;
    case ValueKind::kTimeDelta:
      return "datetime.timedelta(days=" + IntToString(value.items[0]) +
             ", seconds=" + IntToString(value.items[1]) +
             ", microseconds=" + IntToString(value.items[2]) + ")";
    default: return ToString(value);
  }
}

}  // namespace

std::string StringAt(element object, std::string_view key) {
  std::string_view text;
  return object[key].get(text) == simdjson::SUCCESS ? std::string(text) : "";
}

std::string DifferenceFrom(element expected, const Value& value) {
  const std::string type = StringAt(expected, "type");
  if (type == "bool") {
    const bool wanted = expected["value"].get_bool();
    return value.kind == (wanted ? ValueKind::kTrue : ValueKind::kFalse) ? ""
                                                                         : "got " + ToString(value);
  }
  const auto known = KindsByType().find(type);
  const bool scalar = known == KindsByType().end() && type.starts_with("numpy.");
  if (type == "pathlib.PosixPath" || type == "pathlib.PurePosixPath") {
    const std::string text = StringAt(expected, "value");
    return value.kind == ValueKind::kPath && type == "pathlib." + value.items[0].text
               ? Compared(text, value.text)
               : "expected " + type + ", got " + ToString(value);
  }
  if (!scalar && known == KindsByType().end()) {
    return "no Value is a " + type;
  }
  const ValueKind kind = scalar ? ValueKind::kNumpyScalar : known->second;
  if (value.kind != kind) {
    return "expected a " + type + ", got " + ToString(value);
  }
  switch (kind) {
    case ValueKind::kNone: return "";
    case ValueKind::kFloat:
      return SameFloat(StringAt(expected, "value"), value.number) ? "" : "got " + ToString(value);
    case ValueKind::kComplex: {
      const array parts = expected["value"].get_array();
      const bool same = SameFloat(parts.at(0).get_string(), value.number) &&
                        SameFloat(parts.at(1).get_string(), value.imaginary);
      return same ? "" : "got " + ToString(value);
    }
    case ValueKind::kBytes:
    case ValueKind::kByteArray: return Compared(StringAt(expected, "hex"), HexOf(value.text));
    case ValueKind::kNumpyScalar:
      return Compared(StringAt(expected, "dtype") + " " + StringAt(expected, "hex"),
                      value.items[0].text + " " + HexOf(value.text));
    case ValueKind::kNumpyArray:
    case ValueKind::kTensor: return ElementsDiffer(expected, value);
    case ValueKind::kList:
    case ValueKind::kTuple:
    case ValueKind::kTorchSize: return ItemsDiffer(expected["items"], value);
    case ValueKind::kSet:
    case ValueKind::kFrozenSet: return SetsDiffer(expected["items"], value);
    case ValueKind::kDict:
    case ValueKind::kOrderedDict:
    case ValueKind::kCounter:
    case ValueKind::kDefaultDict: return PairsDiffer(expected["items"], value);
    default: return Compared(StringAt(expected, "value"), PythonText(value));
  }
}

}  // namespace varve::test
