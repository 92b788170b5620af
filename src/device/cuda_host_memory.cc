// The functions of CudaDevices for the host's memory: they register it with the driver, keep some
// for the next use, and find the NUMA node of a device.

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "base/guarded.h"
#include "device/cuda_devices.h"
#include "device/cuda_event.h"

namespace varve {
namespace {

constexpr std::uint64_t kMostSpareBytes = std::uint64_t{32} << 20;

}  // namespace

std::span<std::byte> CudaDevices::TakeSpare(std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  return spare_.size() >= bytes ? std::exchange(spare_, {}) : std::span<std::byte>();
}

std::span<std::byte> CudaDevices::KeepSpare(std::span<std::byte> memory) {
  const std::scoped_lock lock(mutex_);
  if (memory.size() <= kMostSpareBytes && memory.size() > spare_.size()) {
    std::swap(memory, spare_);
  }
  return memory;
}

Status CudaDevices::Register(int device, std::span<std::byte> memory) {
  VARVE_ASSIGN_OR_RETURN(Device* const known, DeviceAt(device));
  int error = 0;
  {
    const Current current(driver_, known->context);
    error = current.error() != 0 ? current.error()
                                 : driver_.host_register(
                                       memory.data(), memory.size(),
                                       CudaDriver::kRegisterPortable | CudaDriver::kRegisterMapped);
  }
  Status status = driver_.Check(error, "register " + std::to_string(memory.size()) +
                                           " bytes of memory with the driver of CUDA device " +
                                           std::to_string(device));
  if (status.ok()) {
    const std::unique_lock lock(registered_mutex_);
    registered_[memory.data()] = {memory.size(), device};
  }
  return status;
}

void CudaDevices::Unregister(std::byte* memory) {
  int device = 0;
  {
    const std::unique_lock lock(registered_mutex_);
    const auto known = registered_.find(memory);
    if (known == registered_.end()) {
      return;
    }
    device = known->second.device;
    registered_.erase(known);
  }
  const auto known = DeviceAt(device);
  const Current current(driver_, (*known)->context);
  driver_.host_unregister(memory);  // The driver frees everything when the process ends.
}

bool CudaDevices::IsRegistered(const std::byte* memory, std::uint64_t bytes) const {
  const std::shared_lock lock(registered_mutex_);
  const auto after = registered_.upper_bound(memory);
  if (after == registered_.begin()) {
    return false;
  }
  const auto& [begin, range] = *std::prev(after);
  return memory + bytes <= begin + range.bytes;
}

bool CudaDevices::AreRegistered(std::span<const DeviceMove> moves) const {
  return std::all_of(moves.begin(), moves.end(), [&](const DeviceMove& move) {
    // Of the first row that is moved: row 0 may lie before the block. A block is registered as a
    // whole.
    return IsRegistered(move.on_host + HostOffsetOf(move, move.first), 1);
  });
}

std::optional<int> CudaDevices::NumaNodeOf(int device, const std::string& devices) {
  const auto known = DeviceAt(device);
  std::array<char, 32> name{};
  if (!known.ok() ||
      driver_.device_bus_id(name.data(), static_cast<int>(name.size()), (*known)->device) != 0) {
    return std::nullopt;
  }
  std::string bus(name.data());
  std::transform(bus.begin(), bus.end(), bus.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  std::ifstream file(devices + "/" + bus + "/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? std::optional(node) : std::nullopt;
}

Result<std::unique_ptr<PinnedMemory>> PinnedMemory::Make(CudaDevices& devices, int device,
                                                         std::uint64_t bytes) {
  std::span<std::byte> all = devices.TakeSpare(bytes);
  if (all.empty()) {
    const std::uint64_t size = std::max(std::bit_ceil(bytes), std::uint64_t{1} << 20);
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return OutOfMemory().Annotate("take " + std::to_string(size) +
                                    " bytes to copy from a device");
    }
    ::madvise(memory, size, MADV_HUGEPAGE);  // Fewer pages to take and to register.
    ::madvise(memory, size, MADV_DONTFORK);
    all = {static_cast<std::byte*>(memory), size};
    (void)devices.Register(device, all);  // Where the driver refuses, copies are slower.
  }
  return std::unique_ptr<PinnedMemory>(new PinnedMemory(devices, all, bytes));
}

PinnedMemory::~PinnedMemory() {
  const bool registered = devices_.IsRegistered(mapping_.data(), mapping_.size());
  const std::span<std::byte> rest = registered ? devices_.KeepSpare(mapping_) : mapping_;
  if (!rest.empty()) {
    devices_.Unregister(rest.data());
    ::munmap(rest.data(), rest.size());
  }
}

}  // namespace varve
