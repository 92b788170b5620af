#include "pipeline/huge_pages.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

#include <sys/mman.h>
#include <sys/prctl.h>

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
constexpr std::size_t kPageBytes = 4096;

void Touch(std::span<std::byte> memory, std::size_t every) {
  for (std::size_t at = 0; at < memory.size(); at += every) {
    *const_cast<volatile std::byte*>(memory.data() + at) = std::byte{0};
  }
}

/// True where advice is enough for shared memory, as it was before there was MADV_COLLAPSE.
bool AdviceIsTaken() {
  if (::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 0) {
    return false;
  }
  // "always within_size [advise] never deny force": what is in brackets holds.
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const std::string choices{std::istreambuf_iterator<char>(file), {}};
  return choices.find("[never]") == std::string::npos &&
         choices.find("[deny]") == std::string::npos && !choices.empty();
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
    ::munmap(mapping, reserved);
    errno = error;
    return nullptr;
  }
  if (before > 0) {
    ::munmap(first, before);
  }
  // The mapping may end within a page.
  const std::uint64_t end = (before + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (end < reserved) {
    ::munmap(first + end, reserved - end);
  }
  return base;
}

void TakePages(std::span<std::byte> memory) {
  if (::madvise(memory.data(), memory.size(), kMadvPopulateWrite) != 0) {
    Touch(memory, kPageBytes);
  }
}

PagesTaken TakeSharedPages(std::span<std::byte> memory, bool small) {
  bool refused_for_good = false;
  if (!small) {
    Touch(memory, kHugePageBytes);
    if (::madvise(memory.data(), memory.size(), kMadvCollapse) == 0) {
      return PagesTaken::kHuge;
    }
    refused_for_good = errno == EINVAL;
  }
  TakePages(memory);
  if (AdviceIsTaken()) {
    return PagesTaken::kHuge;
  }
  return refused_for_good ? PagesTaken::kSmallForGood : PagesTaken::kSmall;
}

}  // namespace varve
