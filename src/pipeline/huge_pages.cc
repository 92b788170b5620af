#include "pipeline/huge_pages.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/checked.h"

namespace varve {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int kMadvPopulateWrite = 23;  // Linux 5.14.
#else
constexpr int kMadvPopulateWrite = MADV_POPULATE_WRITE;
#endif
#ifndef MADV_COLLAPSE
constexpr int kMadvCollapse = 25;  // Linux 6.1.
#else
constexpr int kMadvCollapse = MADV_COLLAPSE;
#endif

std::size_t PageBytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

void Touch(std::span<std::byte> memory, std::size_t every) {
  for (std::size_t at = 0; at < memory.size(); at += every) {
    *const_cast<volatile std::byte*>(memory.data() + at) = std::byte{0};
  }
}

/// Returns the setting in effect, where the kernel has it: the word in brackets, or all there is.
std::string Setting(const char* name) {
  std::ifstream file(std::string("/sys/kernel/mm/transparent_hugepage/") + name);
  const std::string choices{std::istreambuf_iterator<char>(file), {}};
  const std::size_t begin = choices.find('[');
  return begin == std::string::npos ? choices.substr(0, choices.find('\n'))
                                    : choices.substr(begin + 1, choices.find(']') - begin - 1);
}

/// Returns true where a block of a pool can be a row of huge pages: not so with pages of 16 or 64
/// KiB.
bool HugePagesAreSmallEnough() {
  static const bool they_are = Setting("hpage_pmd_size") == std::to_string(kHugePageBytes);
  return they_are;
}

/// Returns true for kernels that know the advice: they accept it for no bytes.
bool CanCollapse(std::byte* memory) { return ::madvise(memory, 0, kMadvCollapse) == 0; }

/// Returns true where advice decides, and is enough.
bool AdviceIsTaken() {
  const std::string setting = Setting("shmem_enabled");
  return !setting.empty() && setting != "never" && setting != "deny" &&
         ::prctl(PR_GET_THP_DISABLE, 0UL, 0UL, 0UL, 0UL) == 0;
}

bool Collapse(std::span<std::byte> memory) {
  // A page that is busy for a moment (EAGAIN) is worth another attempt.
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (::madvise(memory.data(), memory.size(), kMadvCollapse) == 0) {
      return true;
    }
    if (errno != EAGAIN) {
      return false;
    }
  }
  return false;
}

}  // namespace

std::byte* MapForHugePages(std::uint64_t bytes, int protection, int fd) {
  // Larger than is needed, then cut to what lies right.
  const std::uint64_t reserved = bytes + kHugePageBytes;
  void* const mapping =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return nullptr;
  }
  auto* const first = static_cast<std::byte*>(mapping);
  const std::uint64_t before =
      (kHugePageBytes - reinterpret_cast<std::uintptr_t>(first) % kHugePageBytes) % kHugePageBytes;
  std::byte* const base = first + before;
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  if (::mmap(base, bytes, protection, kind | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    const int error = errno;
    // Only both ends: the range between them may belong to another mapping by now.
    ::munmap(first, before);
    ::munmap(base + RoundUp(bytes, PageBytes()), reserved - before - RoundUp(bytes, PageBytes()));
    errno = error;
    return nullptr;
  }
  if (before > 0) {
    ::munmap(first, before);
  }
  const std::uint64_t end = before + RoundUp(bytes, PageBytes());
  if (end < reserved) {
    ::munmap(first + end, reserved - end);
  }
  return base;
}

void TakePages(std::span<std::byte> memory) {
  Touch(memory, kHugePageBytes);
  if (::madvise(memory.data(), memory.size(), kMadvPopulateWrite) != 0) {
    Touch(memory, PageBytes());
  }
}

bool TakeHugeSharedPages(std::span<std::byte> memory) {
  if (!HugePagesAreSmallEnough()) {
    return false;
  }
  if (!CanCollapse(memory.data())) {
    TakePages(memory);
    return AdviceIsTaken();
  }
  Touch(memory, kHugePageBytes);
  return Collapse(memory);
}

bool PreferNode(std::span<std::byte> memory, int node) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED; linux/mempolicy.h.
  constexpr unsigned long kBits =
      sizeof(unsigned long) * 8;  // NOLINT(google-runtime-int): mbind's.
  if (node < 0 || static_cast<unsigned>(node) >= kBits) {
    return false;
  }
  const unsigned long nodes = 1UL << static_cast<unsigned>(node);  // NOLINT(google-runtime-int)
  // The kernel looks at one bit less than it is told.
  return ::syscall(SYS_mbind, memory.data(), memory.size(), kPreferred, &nodes, kBits + 1, 0) == 0;
}

}  // namespace varve
