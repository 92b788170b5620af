#include "pipeline/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include <sys/resource.h>
#include <unistd.h>

namespace varve {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
/// Where the system does not say what it has.
constexpr std::uint64_t kUnknownSystem = std::uint64_t{1} << 30;

/// Returns the first number in a file; nothing when there is none ("max").
std::optional<std::uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// Returns the number after `name` in a file of lines "NAME NUMBER".
std::optional<std::uint64_t> NumberAfter(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  std::uint64_t number = 0;
  while (file >> word) {
    if (word == name) {
      return file >> number ? std::optional(number) : std::nullopt;
    }
  }
  return std::nullopt;
}

/// The names of a cgroup's files, which differ between the versions.
struct CgroupFiles {
  const char* limit;
  const char* used;
  const char* droppable;  // In memory.stat: page cache that the kernel drops when memory is short.
};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file"};
constexpr CgroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

/// Returns what one cgroup has left, if it is limited.
std::uint64_t LeftIn(const std::string& folder, const CgroupFiles& files) {
  const auto limit = NumberIn(folder + "/" + files.limit);
  const auto used = NumberIn(folder + "/" + files.used);
  if (!limit || !used) {
    return kUnlimited;
  }
  const std::uint64_t droppable =
      std::min(NumberAfter(folder + "/memory.stat", files.droppable).value_or(0), *used);
  const std::uint64_t needed = *used - droppable;
  return *limit > needed ? *limit - needed : 0;
}

/// Returns the least that `cgroup` and those above it have left, up to the one at `mount`.
std::uint64_t LeftUpTo(const std::string& mount, const std::string& cgroup,
                       const CgroupFiles& files) {
  std::uint64_t left = kUnlimited;
  std::string folder = mount + cgroup;
  while (folder.size() >= mount.size()) {
    left = std::min(left, LeftIn(folder, files));
    if (folder.size() == mount.size()) {
      break;
    }
    folder.resize(std::max(folder.find_last_of('/'), mount.size()));
  }
  return left;
}

/// Returns what the cgroups around this process have left. A container may show its own cgroup as
/// the mount's top, and not know the path that /proc names: the top is always looked at.
std::uint64_t LeftInCgroups(const std::string& root) {
  const std::string mount2 = root + "/sys/fs/cgroup";
  const std::string mount1 = mount2 + "/memory";
  std::uint64_t left = std::min(LeftIn(mount1, kVersion1), LeftIn(mount2, kVersion2));
  std::string line;  // "0::/PATH" for version 2, "NUMBER:CONTROLLERS:/PATH" for version 1.
  for (std::ifstream file(root + "/proc/self/cgroup"); std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    std::string controllers = line.substr(first, second + 1 - first);
    controllers.front() = controllers.back() = ',';
    const std::string path = line.substr(second + 1) == "/" ? "" : line.substr(second + 1);
    if (controllers == ",,") {
      left = std::min(left, LeftUpTo(mount2, path, kVersion2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, LeftUpTo(mount1, path, kVersion1));
    }
  }
  return left;
}

/// Returns what RLIMIT_AS leaves of the address space.
std::uint64_t LeftOfAddressSpace(const std::string& root) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kUnlimited;
  }
  const std::uint64_t used = NumberIn(root + "/proc/self/statm").value_or(0) *
                             static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

}  // namespace

std::uint64_t AvailableMemory(const std::string& root) {
  const auto kib = NumberAfter(root + "/proc/meminfo", "MemAvailable:");
  const std::uint64_t system = kib ? *kib << 10 : kUnknownSystem;
  return std::min({system, LeftInCgroups(root), LeftOfAddressSpace(root)});
}

}  // namespace varve
