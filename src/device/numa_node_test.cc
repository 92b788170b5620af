#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "device/cuda_devices.h"
#include "support/fake_cuda.h"
#include "support/temp_dir.h"

namespace varve::numa_node_test {
namespace {

using test::TempDir;

TEST(NumaNode, OfADeviceIsWhatTheSystemSaysOfItsPlace) {
  const auto devices = std::move(*CudaDevices::MakeForTest());
  const TempDir system;
  const auto says = [&](const std::string& place, const std::string& node) {
    std::filesystem::create_directory(system / place);
    std::ofstream(system / place + "/numa_node") << node << "\n";
  };
  EXPECT_EQ(devices->NumaNodeOf(1, system.path()), std::nullopt) << "it says nothing";
  says("0000:0a:00.0", "-1");  // As a system of one node does.
  says("0000:0a:01.0", "3");
  EXPECT_EQ(devices->NumaNodeOf(0, system.path()), std::nullopt);
  EXPECT_EQ(devices->NumaNodeOf(1, system.path()), 3);
  EXPECT_EQ(devices->NumaNodeOf(7, system.path()), std::nullopt) << "there is no such device";
  fake_cuda_hide("cuDeviceGetPCIBusId");
  EXPECT_EQ(devices->NumaNodeOf(1, system.path()), std::nullopt);
  fake_cuda_hide(nullptr);
}

}  // namespace
}  // namespace varve::numa_node_test
