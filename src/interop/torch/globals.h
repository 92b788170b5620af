/// The importable names that the decoders of torch.save's files understand. Private to them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace varve {

/// What stands for a kind of object when it is called.
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
  kNumpyScalar,
  kNumpyArray,
};

/// Nothing for a name that is not known. Knows the names of Python 2 that protocols up to 2 use.
std::optional<KnownGlobal> FindKnownGlobal(std::string_view module, std::string_view name);

/// The built-in class that a defaultdict may have as its factory, by its name in Python 3.
std::optional<std::string> FactoryName(std::string_view module, std::string_view name);

/// True for the name of one of torch's dtypes, also of those that no DType is for.
bool IsTorchDType(std::string_view module, std::string_view name);

/// "builtins.len": module and name as Python 3 has them, cut where either is very long.
std::string GlobalText(std::string_view module, std::string_view name);

}  // namespace varve
