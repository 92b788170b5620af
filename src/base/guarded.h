/// Turns exceptions into errors where the system refuses memory or a thread.
///
/// The engine returns errors as values, but the standard library throws where the system refuses
/// memory or a thread. An exception that left a save would leave its peers waiting; one that left a
/// thread would end the process. So each step that other ranks wait for runs in Guarded.
#pragma once

#include <type_traits>
#include <utility>

#include "varve/status.h"

namespace varve {

/// Returns OutOfSpace: the system gives no memory. Needs none itself: where there is none for the
/// message, the message is short.
Status OutOfMemory() noexcept;

/// Returns the error for the exception that is being handled: OutOfMemory; Unavailable where the
/// system starts no thread; Internal for what nothing should throw. Needs no memory.
Status CaughtError() noexcept;

/// Returns a copy, or OutOfMemory where there is no memory for one.
Status CopyOf(const Status& status) noexcept;

/// Returns what `work` returns, a Status or a Result, or the error for what it throws. Work may
/// return nothing: then Ok.
template <class Work>
auto Guarded(Work&& work) noexcept
    -> std::conditional_t<std::is_void_v<decltype(work())>, Status, decltype(work())> {
  try {
    if constexpr (std::is_void_v<decltype(work())>) {
      std::forward<Work>(work)();
      return Status::Ok();
    } else {
      return std::forward<Work>(work)();
    }
  } catch (...) {
    return CaughtError();
  }
}

}  // namespace varve
