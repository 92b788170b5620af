/// The writing of a save by a process that it was handed over to.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stop_token>
#include <string>

#include "async/handover.h"

namespace varve {

/// Where a file that was handed over can be read from memory.
struct HandedOverFile {
  std::string name;  ///< In the checkpoint's directory.
  std::uint64_t data_begin = 0;
};

/// Memory of another process.
struct LentMemory {
  std::span<const std::byte* const> blocks;  ///< Those of the image, in its order.
  std::function<bool()> intact;              ///< What was read of it before this call is the copy.
};

/// Claims, writes and publishes, talking to the other ranks of the save; again if that fails and is
/// worth it. `give_up` as in MakeTalk. Errors: as Save; DataLoss where the memory is not intact.
Result<SaveReport> WriteHandedOver(const Handover& save, const LentMemory& memory,
                                   const std::stop_token& stop,
                                   const std::function<Status()>& give_up, HandedOverFile* file);

}  // namespace varve
