#include "interop/safetensors/encode.h"

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

Bytes EncodeSafetensorsHeader(const std::vector<SafetensorsEntry>& entries) {
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
  json.append(RoundUp(json.size(), 8) - json.size(), ' ');
  Bytes header;
  ByteWriter out(&header);
  out.U64(json.size());
  out.Raw(json);
  return header;
}

}  // namespace varve
