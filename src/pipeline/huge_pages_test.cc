#include "pipeline/huge_pages.h"

#include <cctype>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/file_descriptor.h"
#include "support/no_huge_pages.h"

namespace varve::huge_pages_test {
namespace {

constexpr std::uint64_t kBytes = 4 * kHugePageBytes;

FileDescriptor SharedMemoryOf(std::uint64_t bytes) {
  FileDescriptor fd(::memfd_create("varve-test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

/// Returns what the kernel says of the mapping that begins at `base`, in bytes. Lines of others
/// begin with their addresses, and those of its own with a capital.
std::uint64_t InSmaps(const std::byte* base, const std::string& name) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<std::uintptr_t>(base) << '-';
  std::ifstream smaps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    if (std::isupper(static_cast<unsigned char>(line.front())) == 0) {
      here = line.starts_with(begin.str());
    } else if (here && line.starts_with(name + ":")) {
      return std::stoull(line.substr(name.size() + 1)) << 10;
    }
  }
  ADD_FAILURE() << "no " << name << " of the mapping";
  return 0;
}

TEST(HugePages, AMappingLiesWhereTheyCanBeAndEndsWhereItShould) {
  for (const std::uint64_t bytes : {kBytes, kBytes + 12345}) {
    const FileDescriptor fd = SharedMemoryOf(bytes);
    for (const int file : {-1, fd.get()}) {
      std::byte* const base = MapForHugePages(bytes, PROT_READ | PROT_WRITE, file);
      ASSERT_NE(base, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(base) % kHugePageBytes, 0U);
      EXPECT_EQ(InSmaps(base, "Size"), (bytes + 4095) / 4096 * 4096);
      std::memset(base, 1, bytes);
      EXPECT_EQ(::munmap(base, bytes), 0);
    }
  }
}

TEST(HugePages, ARefusedMappingIsSaid) {
  EXPECT_EQ(MapForHugePages(std::uint64_t{1} << 60, PROT_READ, -1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(MapForHugePages(kBytes, PROT_READ, 1 << 20), nullptr);
  EXPECT_EQ(errno, EBADF);
}

TEST(HugePages, SharedMemoryIsSaidToHaveThemWhereItHas) {
  const FileDescriptor fd = SharedMemoryOf(kBytes);
  std::byte* const base = MapForHugePages(kBytes, PROT_READ | PROT_WRITE, fd.get());
  ASSERT_NE(base, nullptr);
  ::madvise(base, kBytes, MADV_HUGEPAGE);
  const bool huge = TakeHugeSharedPages({base, kBytes});
  TakePages({base, kBytes});
  EXPECT_EQ(InSmaps(base, "Rss"), kBytes);
  EXPECT_EQ(InSmaps(base, "ShmemPmdMapped") == kBytes, huge);
  ::munmap(base, kBytes);
}

TEST(HugePages, SharedMemoryIsNotSaidToHaveThemWhereThereAreNone) {
  const test::NoHugePages none;
  if (!none.done()) {
    GTEST_SKIP() << "huge pages cannot be refused to this process: prctl is not allowed to";
  }
  const FileDescriptor fd = SharedMemoryOf(kBytes);
  std::byte* const base = MapForHugePages(kBytes, PROT_READ | PROT_WRITE, fd.get());
  ASSERT_NE(base, nullptr);
  EXPECT_FALSE(TakeHugeSharedPages({base, kBytes}));
  TakePages({base, kBytes});
  EXPECT_EQ(InSmaps(base, "Rss"), kBytes);
  EXPECT_EQ(InSmaps(base, "ShmemPmdMapped"), 0U);
  ::munmap(base, kBytes);
}

}  // namespace
}  // namespace varve::huge_pages_test
