#include "base/process_descriptor.h"

#include <map>
#include <mutex>

#include <pthread.h>
#include <unistd.h>

namespace varve {
namespace {

/// The open descriptors of this process. `mutex` guards both.
struct Registry {
  std::mutex mutex;
  std::map<std::uint64_t, int> open;
  std::uint64_t newest = 0;
};

Registry& TheRegistry() {
  // Never destroyed: descriptors of objects of static storage are closed after it would be.
  static auto* const registry = [] {
    auto* const made = new Registry;
    pthread_atfork([] { TheRegistry().mutex.lock(); }, [] { TheRegistry().mutex.unlock(); },
                   [] {
                     Registry& inherited = TheRegistry();
                     for (const auto& [id, fd] : inherited.open) {
                       ::close(fd);
                     }
                     inherited.open.clear();
                     inherited.mutex.unlock();
                   });
    return made;
  }();
  return *registry;
}

}  // namespace

ProcessDescriptor::ProcessDescriptor(int fd) : fd_(fd) {
  if (fd >= 0) {
    Registry& registry = TheRegistry();
    const std::scoped_lock lock(registry.mutex);
    id_ = ++registry.newest;
    registry.open[id_] = fd;
  }
}

void ProcessDescriptor::Close() {
  if (fd_ >= 0) {
    Registry& registry = TheRegistry();
    const std::scoped_lock lock(registry.mutex);
    if (registry.open.erase(id_) != 0) {
      ::close(fd_);
    }
    fd_ = -1;
  }
}

}  // namespace varve
