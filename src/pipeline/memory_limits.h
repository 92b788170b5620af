/// How much memory this process could still get.
#pragma once

#include <cstdint>
#include <string>

namespace varve {

/// Returns the bytes that this process could take without harm: the least of what the system has
/// available, what each cgroup around the process has left (versions 1 and 2), and what its limit
/// of address space leaves (RLIMIT_AS). Page cache that a cgroup could drop counts as left.
/// `root` is put before the names of the system's files, for tests.
std::uint64_t AvailableMemory(const std::string& root = "");

}  // namespace varve
