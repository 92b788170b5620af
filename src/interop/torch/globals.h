/// The importable names that the decoders of torch.save's files understand. Private to them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace varve {

/// The kind of object that a call of the global makes.
enum class KnownGlobal : std::uint8_t {
  kHelper,  ///< Means nothing by itself: a class or function that the others take as an argument.
  kTensor,
  kBytes,
  kByteArray,
  kEncodedBytes,
  kComplex,
  kSet,
  kFrozenSet,
  kRange,
  kSlice,
  kOrderedDict,
  kCounter,
  kDefaultDict,
  kTorchSize,
  kTorchDevice,
  kDateTime,
  kDate,
  kTime,
  kTimeDelta,
  kTimeZone,
  kPath,
  kNumpyScalar,
  kNumpyArray,
};

/// Returns nothing for an unknown name. Knows the names of Python 2 that protocols up to 2 use.
std::optional<KnownGlobal> FindKnownGlobal(std::string_view module, std::string_view name);

/// Returns the built-in class that a defaultdict may have as its factory, by its name in Python 3.
std::optional<std::string> FactoryName(std::string_view module, std::string_view name);

/// Returns true for the name of one of torch's dtypes, also of those that no DType is for.
bool IsTorchDType(std::string_view module, std::string_view name);

/// Returns "builtins.len": module and name as Python 3 has them, cut where either is very long.
std::string GlobalText(std::string_view module, std::string_view name);

}  // namespace varve
