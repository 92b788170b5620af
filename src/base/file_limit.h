/// The limit on the size of a file that this process writes (ulimit -f).
#pragma once

#include <cstdint>

#include <sys/resource.h>

namespace varve {

/// Returns true where the process may make no file of this size. A call that makes one raises
/// SIGXFSZ, which kills a process that does not ignore it: look before the call, and fail with
/// EFBIG.
inline bool ExceedsFileLimit(std::uint64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
         bytes > limit.rlim_cur;
}

}  // namespace varve
