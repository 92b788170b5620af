#include "interop/safetensors/encode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>

#include "base/checked.h"
#include "format/json_writer.h"
#include "tensor/box.h"

namespace varve {

std::uint64_t SafetensorsEntry::bytes() const { return Volume(shape) * ItemSize(dtype); }

bool CanBeSafetensors(DType dtype, const Dims& shape) {
  return SafetensorsName(dtype).has_value() && !(dtype == DType::kFloat4E2M1FNX2 && shape.empty());
}

bool SafetensorsBefore(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  const std::uint64_t item_a = ItemSize(a.dtype);
  const std::uint64_t item_b = ItemSize(b.dtype);
  return item_a != item_b ? item_a > item_b : a.fqn < b.fqn;
}

Bytes EncodeSafetensorsHeader(const std::vector<SafetensorsEntry>& entries,
                              std::uint64_t alignment) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    Dims shape = entry.shape;
    if (entry.dtype == DType::kFloat4E2M1FNX2) {
      shape.back() *= 2;  // safetensors counts single 4-bit values.
    }
    json += ",";
    AppendJsonString(entry.fqn, &json);
    json += ":{\"dtype\":\"" + std::string(*SafetensorsName(entry.dtype)) + "\",\"shape\":";
    AppendJsonDims(shape, &json);
    json += ",\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + entry.bytes()) +
            "]}";
    at += entry.bytes();
  }
  json += "}";
  constexpr std::uint64_t kPrefix = 8;
  json.append(RoundUp(json.size() + kPrefix, alignment) - kPrefix - json.size(), ' ');
  Bytes header;
  ByteWriter out(&header);
  out.U64(json.size());
  out.Raw(json);
  return header;
}

Status CheckSafetensorsHeader(std::string_view file, std::string_view header) {
  constexpr std::size_t kMost = 100'000'000;
  if (header.size() <= kMost) {
    return Status::Ok();
  }
  return InvalidArgument(
      std::string(file) + " would have a header of " + std::to_string(header.size()) +
      " bytes, and readers of safetensors take at most " + std::to_string(kMost) +
      "; divide the tensors into more files, or give them shorter names");
}

std::vector<HfFile> DivideIntoHfFiles(const std::vector<SafetensorsEntry>& entries,
                                      std::uint64_t shard_size) {
  std::vector<HfFile> files;
  std::uint64_t bytes = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (files.empty() || bytes + entry.bytes() > shard_size) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().entries.push_back(entry);
    bytes += entry.bytes();
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::array<char, 64> name{};
    std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", i + 1,
                  files.size());
    files[i].name = files.size() == 1 ? "model.safetensors" : name.data();
    std::sort(files[i].entries.begin(), files[i].entries.end(), SafetensorsBefore);
  }
  return files;
}

}  // namespace varve
