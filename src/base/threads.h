/// Starting threads in processes that fork.
///
/// glibc keeps the stacks of threads that have ended, for new ones. pthread_create takes one, frees
/// what its thread-local memory had, and then forgets it. A fork between the two gives the child a
/// stack whose memory is freed and not forgotten: the first thread that the child starts on it
/// frees it again, and the child aborts ("double free or corruption"). PyTorch's data loaders fork
/// while saves run. So no fork of this process begins while a thread is being started here.
#pragma once

#include <utility>

namespace varve {

/// Keeps forks waiting while it exists. Threads: any; not to be nested.
class NoForkMeanwhile {
 public:
  NoForkMeanwhile();
  ~NoForkMeanwhile();
  NoForkMeanwhile(const NoForkMeanwhile&) = delete;
  NoForkMeanwhile& operator=(const NoForkMeanwhile&) = delete;
};

/// Starts a std::thread or std::jthread. All threads of the library are started by it.
template <class Thread, class Body>
Thread StartThread(Body&& body) {
  const NoForkMeanwhile guard;
  return Thread(std::forward<Body>(body));
}

}  // namespace varve
