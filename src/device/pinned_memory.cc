#include "device/pinned_memory.h"

#include <algorithm>
#include <bit>
#include <string>

#include <sys/mman.h>

#include "base/guarded.h"

namespace varve {

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
