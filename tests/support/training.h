/// A training's state for tests of saving in the background.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "support/random.h"
#include "support/status_matchers.h"
#include "tensor/box.h"
#include "varve/checkpoint.h"
#include "varve/storage.h"

namespace varve::test {

/// Two tensors of bytes in memory of their own.
struct Training {
  explicit Training(std::uint64_t bytes, std::uint64_t seed = 1)
      : memory(Random(seed).Bytes(bytes)) {}

  [[nodiscard]] State state(const std::string& prefix = "") const {
    State state;
    const std::uint64_t half = memory.size() / 2;
    state.tensors.push_back(
        {prefix + "model.a", DType::kUInt8, {half}, WholeBox({half}), HostMemory{memory.data()}});
    state.tensors.push_back({prefix + "model.b",
                             DType::kUInt8,
                             {memory.size() - half},
                             WholeBox({memory.size() - half}),
                             HostMemory{memory.data() + half}});
    return state;
  }

  /// Changes every block of the memory, and most bytes.
  void Step() {
    for (std::size_t i = 0; i < memory.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      const std::size_t size = std::min(sizeof(word), memory.size() - i);
      std::memcpy(&word, memory.data() + i, size);
      word += 0x0101010101010101;
      std::memcpy(memory.data() + i, &word, size);
    }
  }

  std::string memory;
};

/// Returns the bytes of a Training of that size as a checkpoint has them; a failed expectation
/// otherwise.
inline std::string Load(const std::string& path, std::uint64_t bytes,
                        const std::string& prefix = "", Storage& storage = PosixStorage()) {
  std::string memory(bytes, '\0');
  auto reader = CheckpointReader::Open(path, storage);
  EXPECT_TRUE(IsOk(reader));
  if (!reader.ok()) {
    return {};
  }
  const std::uint64_t half = bytes / 2;
  LoadRequest request;
  request.targets.push_back(
      {prefix + "model.a", DType::kUInt8, {half}, WholeBox({half}), memory.data(), {}});
  request.targets.push_back({prefix + "model.b",
                             DType::kUInt8,
                             {bytes - half},
                             WholeBox({bytes - half}),
                             memory.data() + half,
                             {}});
  EXPECT_TRUE(IsOk(varve::Load(**reader, request, {.strict = Strict::kOff})));
  return memory;
}

}  // namespace varve::test
