#include "varve/metadata.h"

#include <algorithm>
#include <cstddef>

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

std::string_view Version() { return VARVE_VERSION_STRING; }

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

std::map<std::string, std::size_t, std::less<>> Metadata::SeveralValues() const {
  std::map<std::string, std::size_t, std::less<>> several;
  std::size_t of_box = 1;
  for (std::size_t i = 0; i < tensor_variants.size(); ++i) {
    const TensorVariant& variant = tensor_variants[i];
    const bool is_same = i > 0 && tensor_variants[i - 1].fqn == variant.fqn &&
                         tensor_variants[i - 1].box == variant.box;
    of_box = is_same ? of_box + 1 : 2;
    std::size_t& most = several[variant.fqn];
    most = std::max(most, of_box);
  }
  for (const ObjectVariant& variant : object_variants) {
    std::size_t& values = several.try_emplace(variant.fqn, 1).first->second;
    ++values;
  }
  return several;
}

std::uint64_t Metadata::TotalBytes() const {
  std::uint64_t total = 0;
  for (const DataFile& file : files) {
    total += file.size;
  }
  return total;
}

}  // namespace varve
