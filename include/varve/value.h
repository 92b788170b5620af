/// Plain values: everything in a training state that is not a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve {

/// The kind of a Value. Each kind comes back as the same Python type it was saved from. The numbers
/// are written to disk: never renumber, only append.
enum class ValueKind : std::uint8_t {
  kNone = 0,
  kFalse = 1,
  kTrue = 2,
  kInt = 3,           ///< text: two's complement, little-endian, any length.
  kFloat = 4,         ///< number.
  kComplex = 5,       ///< number, imaginary.
  kStr = 6,           ///< text: UTF-8 (lone surrogates as in Python's "surrogatepass").
  kBytes = 7,         ///< text.
  kByteArray = 8,     ///< text.
  kList = 9,          ///< items.
  kTuple = 10,        ///< items.
  kDict = 11,         ///< items: key, value, key, value, ... in insertion order.
  kOrderedDict = 12,  ///< items as kDict.
  kSet = 13,          ///< items, sorted by their encoding.
  kFrozenSet = 14,    ///< items as kSet.
  kCounter = 15,      ///< items as kDict.
  kDefaultDict = 16,  ///< text: name of the built-in factory or empty; items as kDict.
  kTorchSize = 17,    ///< items (ints).
  kTorchDType = 18,   ///< text: "float32".
  kTorchDevice = 19,  ///< text: "cuda:1".
  kDateTime = 20,     ///< text: ISO 8601, items: [tzinfo, fold].
  kDate = 21,         ///< text: ISO 8601.
  kTime = 22,         ///< text: ISO 8601, items: [tzinfo, fold].
  kTimeDelta = 23,    ///< items: [days, seconds, microseconds].
  kTimeZone = 24,     ///< items: [timedelta] or [timedelta, name].
  kZoneInfo = 25,     ///< text: IANA key.
  kNumpyScalar = 26,  ///< text: raw bytes; items: [dtype str].
  kNumpyArray = 27,   ///< text: raw row-major bytes; items: [dtype str, shape tuple].
  kTensor =
      28,  ///< A torch tensor inside a value; text: raw bytes; items: [dtype str, shape tuple].
  kPickle = 29,      ///< text: a pickle; only written and only opened with allow_pickle.
  kTensorLeaf = 30,  ///< In a structure: a tensor stored under this path. text: "torch" or "numpy".
  kObjectLeaf = 31,  ///< In a structure: a plain value stored under this path.
  kRange = 32,       ///< items: [start, stop, step].
  kSlice = 33,       ///< items: [start, stop, step].
  kTorchSave = 34,   ///< text: a torch.save archive of an object that no other kind can be; only
                     ///< opened with allow_pickle. Empty for a part of a larger archive, which
                     ///< cannot be opened alone. items: [str naming what it needs, ...]. Never in a
                     ///< native checkpoint that was saved without allow_pickle.
  kPath = 35,        ///< text: a pathlib path, as str() gives it; items: [str "PosixPath" or
                     ///< "PurePosixPath"].
  kNamedDict = 36,   ///< A subclass of dict. text: its class, see ClassOf; items as kDict.
  kNamed = 37,       ///< A value of a class that is made of plain values (an enum's member, a
                     ///< namedtuple, a dataclass, ...). text: its class; items: [str how it is
                     ///< made, the plain value that stands for it, ...].
  kWrapped = 38,     ///< In a structure: a tensor that is made of other tensors. text: its class
                     ///< and attributes, see ClassOf; items as kDict, the inner tensors by name.
};

inline constexpr std::uint8_t kValueKindCount = 39;

/// A typed value tree. A plain aggregate; ValueKind lists the fields that each kind uses.
struct Value {
  ValueKind kind = ValueKind::kNone;
  double number = 0;
  double imaginary = 0;
  std::string text{};
  std::vector<Value> items{};

  static Value Int(std::int64_t value);
  static Value Float(double value);
  static Value Str(std::string text);

  friend bool operator==(const Value&, const Value&);
};

/// Encodes a value as docs/format.md describes. The same value always gives the same bytes.
/// Requires: at most 256 levels of nesting; DecodeValue refuses more.
std::string EncodeValue(const Value& value);

/// Decodes exactly one value; `data` is untrusted. Errors: DataLoss when it is malformed, nests
/// deeper than 256 levels or has bytes left over; Unimplemented for a kind this version lacks.
Result<Value> DecodeValue(std::string_view data);

/// Returns the class of a kNamedDict, kNamed or kWrapped, "module:qualified.name": the value's text
/// up to its first NUL. An encoded value may follow the NUL: the attributes of the object, or of
/// the wrapped tensor.
std::string_view ClassOf(const Value& value);

/// Returns a one-line rendering in Python's notation, cut after `max_chars` characters.
std::string ToString(const Value& value, std::size_t max_chars = 200);

/// Returns the value of a kInt as a decimal string, exact for any size.
std::string IntToString(const Value& value);

}  // namespace varve
