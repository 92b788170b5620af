#include "pipeline/huge_pages.h"

#include <charconv>
#include <cstring>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/file_descriptor.h"
#include "support/no_huge_pages.h"

namespace varve {
namespace {

constexpr std::uint64_t kBytes = 4 * kHugePageBytes;

FileDescriptor SharedMemoryOf(std::uint64_t bytes) {
  FileDescriptor fd(::memfd_create("varve-test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

/// What the kernel says of the mapping that begins at `base`, in bytes.
std::uint64_t InSmaps(const std::byte* base, const std::string& name) {
  char address[20];
  const auto end =
      std::to_chars(address, std::end(address), reinterpret_cast<std::uintptr_t>(base), 16);
  std::ifstream smaps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    here = here || line.starts_with(std::string(address, end.ptr) + "-");
    if (here && line.starts_with(name + ":")) {
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
  const PagesTaken taken = TakeSharedPages({base, kBytes}, false);
  EXPECT_EQ(InSmaps(base, "Rss"), kBytes);
  EXPECT_EQ(InSmaps(base, "ShmemPmdMapped"), taken == PagesTaken::kHuge ? kBytes : 0);
  ::munmap(base, kBytes);
}

TEST(HugePages, SharedMemoryHasSmallOnesWhereThereAreNone) {
  const test::NoHugePages none;
  const FileDescriptor fd = SharedMemoryOf(kBytes);
  std::byte* const base = MapForHugePages(kBytes, PROT_READ | PROT_WRITE, fd.get());
  ASSERT_NE(base, nullptr);
  EXPECT_EQ(TakeSharedPages({base, kBytes}, false), PagesTaken::kSmallForGood);
  EXPECT_EQ(InSmaps(base, "Rss"), kBytes);
  EXPECT_EQ(InSmaps(base, "ShmemPmdMapped"), 0U);
  ::munmap(base, kBytes);
}

}  // namespace
}  // namespace varve
