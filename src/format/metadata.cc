#include "varve/metadata.h"

#include <algorithm>

#include "base/checksum.h"

namespace varve {
namespace {

template <class T>
const T* FindByFqn(const std::vector<T>& sorted, std::string_view fqn) {
  const auto at =
      std::lower_bound(sorted.begin(), sorted.end(), fqn,
                       [](const T& item, std::string_view key) { return item.fqn < key; });
  return at != sorted.end() && at->fqn == fqn ? &*at : nullptr;
}

}  // namespace

std::string ToString(const SaveId& id) { return Hex(id.bytes); }

std::string_view FormatName(Format format) {
  switch (format) {
    case Format::kVarve: return "varve";
    case Format::kDcp: return "dcp";
    case Format::kSafetensors: return "safetensors";
    case Format::kTorchSave: return "torch";
    case Format::kOlmoFull: return "olmo-full";
    case Format::kOlmoTorchNew: return "olmo-torch-new";
    case Format::kOlmoLegacy: return "olmo-torch-legacy";
    case Format::kOlmoLocal: return "olmo-local";
    case Format::kOlmoCore: return "olmo-core";
    case Format::kHfai: return "hfai";
  }
  return "unknown";
}

const TensorMetadata* Metadata::FindTensor(std::string_view fqn) const {
  return FindByFqn(tensors, fqn);
}

const ObjectMetadata* Metadata::FindObject(std::string_view fqn) const {
  return FindByFqn(objects, fqn);
}

std::uint64_t Metadata::TotalBytes() const {
  std::uint64_t total = 0;
  for (const DataFile& file : files) {
    total += file.size;
  }
  return total;
}

}  // namespace varve
