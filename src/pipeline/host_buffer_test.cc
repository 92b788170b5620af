#include "pipeline/host_buffer.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::host_buffer_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Random;

TEST(HostBuffer, HoldsWhatWasCopiedWhateverTheSizes) {
  Random random(1);
  std::vector<std::string> sources;
  for (const std::size_t size :
       {1U, 0U, 100U, 4096U, 3U << 20, 4U << 20, (9U << 20) + 5, 77U, 2U << 20, 2U << 20, 1U}) {
    sources.push_back(random.Bytes(size));
  }
  std::vector<HostCopy> copies;
  std::uint64_t at = 3;
  for (const std::string& source : sources) {
    copies.push_back({at, source.data(), source.size()});
    at += source.size() + 5;
  }
  auto buffer = HostBuffer::Make(at);
  ASSERT_TRUE(IsOk(buffer));
  for (const int threads : {1, 3, 0}) {
    std::fill_n((*buffer)->data(), at, std::byte{0x5A});
    ASSERT_TRUE(IsOk((*buffer)->CopyIn(copies, threads)));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto* copied = reinterpret_cast<const char*>((*buffer)->data() + copies[i].at);
      EXPECT_TRUE(std::string_view(copied, sources[i].size()) == sources[i]) << i;
      EXPECT_EQ((*buffer)->data()[copies[i].at + sources[i].size()], std::byte{0x5A}) << i;
    }
  }
}

TEST(HostBuffer, RefusesWhatDoesNotFit) {
  auto buffer = HostBuffer::Make(10);
  ASSERT_TRUE(IsOk(buffer));
  const std::string source(100, 'x');
  const std::uint64_t end = (*buffer)->size();
  for (const HostCopy& copy : {HostCopy{end, source.data(), 1}, HostCopy{end - 1, source.data(), 2},
                               HostCopy{~std::uint64_t{0}, source.data(), 2}}) {
    EXPECT_TRUE(FailsWith((*buffer)->CopyIn({&copy, 1}), StatusCode::kInvalidArgument));
  }
  EXPECT_TRUE(FailsWith(HostBuffer::Make(~std::uint64_t{0}), StatusCode::kOutOfSpace));
}

}  // namespace
}  // namespace varve::host_buffer_test
