#include "pipeline/memory_limits.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "pipeline/staging_pool.h"
#include "support/exhaustion.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::memory_limits_test {
namespace {

using test::FailsWith;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// The files of a system with 64 GiB available.
class FakeSystem {
 public:
  FakeSystem() { Put("proc/meminfo", "MemTotal: 99 kB\nMemAvailable: 67108864 kB\n"); }
  void Put(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = dir_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  void PutBytes(const std::string& name, std::uint64_t bytes) const {
    Put(name, std::to_string(bytes) + "\n");
  }
  [[nodiscard]] std::uint64_t available() const { return AvailableMemory(dir_.path()); }

 private:
  const test::TempDir dir_;
};

TEST(AvailableMemory, IsWhatTheSystemHasWhereNothingLimitsTheProcess) {
  const FakeSystem system;
  EXPECT_EQ(system.available(), 64 * kGiB);
  system.Put("sys/fs/cgroup/memory.max", "max\n");
  system.PutBytes("sys/fs/cgroup/memory.current", kGiB);
  EXPECT_EQ(system.available(), 64 * kGiB);
}

TEST(AvailableMemory, IsWhatTheTightestCgroupOfVersion2Leaves) {
  const FakeSystem system;
  system.Put("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  const std::string job = "sys/fs/cgroup/slurm/job_7/";
  system.PutBytes(job + "step_0/memory.max", 30 * kGiB);
  system.PutBytes(job + "step_0/memory.current", 10 * kGiB);
  EXPECT_EQ(system.available(), 20 * kGiB);
  system.PutBytes(job + "memory.max", 12 * kGiB);
  system.PutBytes(job + "memory.current", 11 * kGiB);
  EXPECT_EQ(system.available(), kGiB);
}

TEST(AvailableMemory, IsWhatTheTightestCgroupOfVersion1Leaves) {
  const FakeSystem system;
  system.Put("proc/self/cgroup", "9:cpu,cpuacct:/other\n8:memory:/slurm/job_7\n");
  system.PutBytes("sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", 8 * kGiB);
  system.PutBytes("sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes", 3 * kGiB);
  EXPECT_EQ(system.available(), 5 * kGiB);
}

TEST(AvailableMemory, IsLimitedByTheCgroupThatAContainerShowsAsItsOwn) {
  for (const std::string top :
       {"sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory.max"}) {
    const FakeSystem system;
    system.Put("proc/self/cgroup", "0::/not/seen/here\n5:memory:/not/seen/here\n");
    system.PutBytes(top, 4 * kGiB);
    system.PutBytes("sys/fs/cgroup/memory/memory.usage_in_bytes", kGiB);
    system.PutBytes("sys/fs/cgroup/memory.current", kGiB);
    EXPECT_EQ(system.available(), 3 * kGiB) << top;
  }
}

TEST(AvailableMemory, CountsPageCacheThatCanBeDroppedAsLeft) {
  const FakeSystem system;
  system.PutBytes("sys/fs/cgroup/memory.max", 10 * kGiB);
  system.PutBytes("sys/fs/cgroup/memory.current", 10 * kGiB);
  system.Put("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 6442450944\n");
  EXPECT_EQ(system.available(), 6 * kGiB);
}

/// Limits the address space of this process as long as it lives.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(std::uint64_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;
  ~AddressSpaceLimit() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST(AvailableMemory, IsWhatTheLimitOfAddressSpaceLeaves) {
  if (!test::CanRefuse()) {
    GTEST_SKIP() << "a sanitizer uses more address space than this limit";
  }
  const FakeSystem system;
  system.Put("proc/self/statm", std::to_string(kGiB / static_cast<std::uint64_t>(::getpagesize())));
  const AddressSpaceLimit limit(48 * kGiB);
  EXPECT_EQ(system.available(), 47 * kGiB);
}

TEST(StagingPool, NamesTheOptionThatAsksForLessWhenTheSystemRefuses) {
  for (const bool shared : {false, true}) {
    EXPECT_TRUE(FailsWith(StagingPool::Make(std::uint64_t{1} << 60, shared),
                          StatusCode::kOutOfSpace, {"memory_budget"}));
  }
}

}  // namespace
}  // namespace varve::memory_limits_test
