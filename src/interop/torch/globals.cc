#include "interop/torch/globals.h"

#include <algorithm>
#include <array>

#include "interop/torch/parts.h"

namespace varve {
namespace {

struct Row {
  std::string_view module;
  std::string_view name;
  KnownGlobal known;
};

constexpr std::array<Row, 44> kKnown{{
    {"torch._utils", "_rebuild_tensor_v2", KnownGlobal::kTensor},
    {"torch._utils", "_rebuild_tensor_v3", KnownGlobal::kTensor},
    {"torch._utils", "_rebuild_tensor", KnownGlobal::kTensor},
    {"torch._utils", "_rebuild_parameter", KnownGlobal::kTensor},
    {"torch._utils", "_rebuild_parameter_with_state", KnownGlobal::kTensor},
    {"torch._tensor", "_rebuild_from_type_v2", KnownGlobal::kTensor},
    {"torch._tensor", "_rebuild_from_type", KnownGlobal::kTensor},
    {"collections", "OrderedDict", KnownGlobal::kOrderedDict},
    {"collections", "Counter", KnownGlobal::kCounter},
    {"collections", "defaultdict", KnownGlobal::kDefaultDict},
    {"torch", "Size", KnownGlobal::kTorchSize},
    {"torch", "device", KnownGlobal::kTorchDevice},
    {"torch", "Tensor", KnownGlobal::kHelper},
    {"torch.nn.parameter", "Parameter", KnownGlobal::kHelper},
    {"torch.nn.parameter", "Buffer", KnownGlobal::kHelper},
    {"_codecs", "encode", KnownGlobal::kEncodedBytes},
    {"builtins", "bytes", KnownGlobal::kBytes},
    {"builtins", "bytearray", KnownGlobal::kByteArray},
    {"builtins", "complex", KnownGlobal::kComplex},
    {"builtins", "set", KnownGlobal::kSet},
    {"builtins", "frozenset", KnownGlobal::kFrozenSet},
    {"builtins", "range", KnownGlobal::kRange},
    {"builtins", "slice", KnownGlobal::kSlice},
    {"builtins", "getattr", KnownGlobal::kHelper},
    {"datetime", "datetime", KnownGlobal::kDateTime},
    {"datetime", "date", KnownGlobal::kDate},
    {"datetime", "time", KnownGlobal::kTime},
    {"datetime", "timedelta", KnownGlobal::kTimeDelta},
    {"datetime", "timezone", KnownGlobal::kTimeZone},
    {"zoneinfo", "ZoneInfo", KnownGlobal::kHelper},
    {"pathlib", "PosixPath", KnownGlobal::kPath},
    {"pathlib", "PurePosixPath", KnownGlobal::kPath},
    {"pathlib._local", "PosixPath", KnownGlobal::kPath},
    {"pathlib._local", "PurePosixPath", KnownGlobal::kPath},
    {"numpy.core.multiarray", "scalar", KnownGlobal::kNumpyScalar},
    {"numpy._core.multiarray", "scalar", KnownGlobal::kNumpyScalar},
    {"numpy.core.multiarray", "_reconstruct", KnownGlobal::kNumpyArray},
    {"numpy._core.multiarray", "_reconstruct", KnownGlobal::kNumpyArray},
    {"numpy.core.numeric", "_frombuffer", KnownGlobal::kNumpyArray},
    {"numpy._core.numeric", "_frombuffer", KnownGlobal::kNumpyArray},
    {"numpy", "dtype", KnownGlobal::kHelper},
    {"numpy", "ndarray", KnownGlobal::kHelper},
    {"torch.storage", "TypedStorage", KnownGlobal::kHelper},
    {"torch.storage", "_TypedStorage", KnownGlobal::kHelper},
}};

constexpr std::array<std::string_view, 8> kFactories{"bool", "dict", "float", "int",
                                                     "list", "set",  "str",   "tuple"};

constexpr std::array<std::string_view, 24> kOtherDTypes{
    "qint8",   "quint8",  "qint32", "quint4x2", "quint2x4", "bits8", "bits16", "bits1x8",
    "bits2x4", "bits4x2", "uint1",  "uint2",    "uint3",    "uint4", "uint5",  "uint6",
    "uint7",   "int1",    "int2",   "int3",     "int4",     "int5",  "int6",   "int7"};

/// Returns Python 3's name of a built-in of Python 2.
std::string_view ModernModule(std::string_view module) {
  return module == "__builtin__" ? "builtins" : module == "copy_reg" ? "copyreg" : module;
}

std::string_view ModernName(std::string_view module, std::string_view name) {
  if (module != "__builtin__") {
    return name;
  }
  return name == "long" ? "int" : name == "unicode" ? "str" : name == "xrange" ? "range" : name;
}

/// Returns UTF-8 text, cut between two characters.
std::string Shortened(std::string_view text) {
  constexpr std::size_t kMaxBytes = 200;
  if (text.size() > kMaxBytes) {
    std::size_t end = kMaxBytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
      --end;
    }
    text = text.substr(0, end);
  }
  return std::string(text);
}

}  // namespace

std::optional<KnownGlobal> FindKnownGlobal(std::string_view module, std::string_view name) {
  const std::string_view modern_module = ModernModule(module);
  const std::string_view modern_name = ModernName(module, name);
  for (const Row& row : kKnown) {
    if (row.name == modern_name && row.module == modern_module) {
      return row.known;
    }
  }
  if (FactoryName(module, name) || FindStorageType(module, name) || IsTorchDType(module, name)) {
    return KnownGlobal::kHelper;
  }
  return std::nullopt;
}

std::optional<std::string> FactoryName(std::string_view module, std::string_view name) {
  const std::string_view modern = ModernName(module, name);
  if (ModernModule(module) != "builtins" ||
      std::find(kFactories.begin(), kFactories.end(), modern) == kFactories.end()) {
    return std::nullopt;
  }
  return std::string(modern);
}

bool IsTorchDType(std::string_view module, std::string_view name) {
  return module == "torch" &&
         (DTypeFromName(name) ||
          std::find(kOtherDTypes.begin(), kOtherDTypes.end(), name) != kOtherDTypes.end());
}

std::string GlobalText(std::string_view module, std::string_view name) {
  return Shortened(ModernModule(module)) + "." + Shortened(ModernName(module, name));
}

}  // namespace varve
