/// The end of storage operations on request.
#pragma once

#include <stop_token>

namespace varve {

/// Returns the token of the calling thread's ScopedStop. Storages whose operations can take long
/// look at it while they wait, and fail with Cancelled.
std::stop_token CurrentStop();

/// Puts the storage operations of the calling thread, and of the threads that the engine starts for
/// it, under a token, until it is destroyed there. Without it a function that is asked to stop by
/// its own argument waits for the requests to a server that are under way.
class ScopedStop {
 public:
  explicit ScopedStop(std::stop_token stop);
  ScopedStop(const ScopedStop&) = delete;
  ScopedStop& operator=(const ScopedStop&) = delete;
  ~ScopedStop();

 private:
  std::stop_token before_;
};

}  // namespace varve
