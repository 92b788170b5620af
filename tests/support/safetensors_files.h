/// Safetensors files made by hand.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "format/json_writer.h"
#include "interop/safetensors/decode.h"
#include "support/archives.h"

namespace varve::test {

/// Returns a file with this header and so many bytes of data.
inline std::string SafetensorsOf(std::string_view json, std::uint64_t data_bytes) {
  return Le(json.size(), 8) + std::string(json) + std::string(data_bytes, 'd');
}

/// Returns one member of a header.
inline std::string Entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::string_view offsets) {
  std::string json;
  AppendJsonString(name, &json);
  return json + R"(:{"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) +
         R"(,"data_offsets":)" + std::string(offsets) + "}";
}

/// Returns the `__metadata__` of a shard as PyTorch writes it. `info` is what DCP_SHARDING_INFO
/// holds.
inline std::string ShardMetadata(std::string_view info) {
  std::string json = R"("__metadata__":{"format":"pt","DCP_VERSION":"1.0","DCP_SHARDING_INFO":)";
  AppendJsonString(info, &json);
  return json + "}";
}

/// Returns a file of `bytes`, which must outlive it. A read outside them fails the test.
inline NamedFile Named(std::string name, std::string_view bytes) {
  return {std::move(name), bytes.size(), Watched(bytes)};
}

}  // namespace varve::test
