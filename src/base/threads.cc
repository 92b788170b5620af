#include "base/threads.h"

#include <mutex>

#include <pthread.h>

namespace varve {
namespace {

/// Held while a thread is started, and by a thread that forks until it has forked.
std::mutex& StartMutex() {
  static auto* const mutex = new std::mutex;  // Never destroyed: threads start at any time.
  return *mutex;
}

void RegisterOnce() {
  static const int registered =
      pthread_atfork([] { StartMutex().lock(); }, [] { StartMutex().unlock(); },
                     [] { StartMutex().unlock(); });  // The child's one thread is its owner.
  (void)registered;  // Without memory for the handlers forks are as they were.
}

}  // namespace

NoForkMeanwhile::NoForkMeanwhile() {
  RegisterOnce();
  StartMutex().lock();
}

NoForkMeanwhile::~NoForkMeanwhile() { StartMutex().unlock(); }

}  // namespace varve
