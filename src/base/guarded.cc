#include "base/guarded.h"

#include <cerrno>
#include <new>
#include <string>
#include <system_error>

namespace varve {
namespace {

/// Returns an error with `message`, or with `brief` where there is no memory for that. `brief` has
/// at most 15 characters: strings of the standard library hold as many without asking for memory.
Status WithoutMemory(StatusCode code, const char* message, const char* brief) noexcept {
  try {
    return {code, message};
  } catch (const std::bad_alloc&) {
    return {code, brief};
  }
}

}  // namespace

Status OutOfMemory() noexcept {
  return WithoutMemory(StatusCode::kOutOfSpace,
                       "the system has no memory left for this process; free some, or raise its "
                       "limit (ulimit -v, or that of its container)",
                       "out of memory")
      .With({.system_error = ENOMEM});
}

Status CaughtError() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      return WithoutMemory(StatusCode::kUnavailable,
                           "the system starts no more threads for this process; end some, or raise "
                           "the limit (ulimit -u and -v, or that of its container)",
                           "no more threads")
          .With({.system_error = EAGAIN});
    }
    return WithoutMemory(StatusCode::kInternal, error.what(), "system error");
  } catch (const std::exception& error) {
    return WithoutMemory(StatusCode::kInternal, error.what(), "exception");
  } catch (...) {
    return WithoutMemory(StatusCode::kInternal, "an exception that is no std::exception",
                         "exception");
  }
}

Status CopyOf(const Status& status) noexcept {
  try {
    return status;
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

}  // namespace varve
