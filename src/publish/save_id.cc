#include "publish/save_id.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include <sys/random.h>
#include <sys/types.h>

#include "base/time_source.h"

namespace varve {

Result<SaveId> RandomSaveId() {
  SaveId id;
  if (const auto random = SimulatedRandom()) {
    std::memcpy(id.bytes.data(), &*random, sizeof(*random));
    return id;
  }
  std::size_t filled = 0;
  while (filled < id.bytes.size()) {
    const ssize_t got = ::getrandom(id.bytes.data() + filled, id.bytes.size() - filled, 0);
    if (got < 0 && errno != EINTR) {
      return Unavailable(std::string("no randomness for a save id: ") + std::strerror(errno));
    }
    filled += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return id;
}

std::uint64_t UnixTimeNs() { return static_cast<std::uint64_t>(TimeOfDay().count()); }

}  // namespace varve
