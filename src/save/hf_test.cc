// Saves of whole-tensor safetensors files by several ranks, in memory.

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "save/hf_layout.h"

namespace varve {
namespace {

TEST(Checksums, ThatOfTwoPartsFollowsFromTheirs) {
  std::vector<std::byte> bytes(10'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 131 + (i >> 5));
  }
  const std::span<const std::byte> all(bytes);
  for (const std::size_t cut : {0UL, 1UL, 7UL, 4096UL, 9999UL, 10'000UL}) {
    EXPECT_EQ(Crc32cJoin(Crc32c(all.first(cut)), Crc32c(all.subspan(cut)), bytes.size() - cut),
              Crc32c(all));
  }
}

}  // namespace
}  // namespace varve
