/// The writing of a save by a process that it was submitted to.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stop_token>
#include <string>

#include "async/submission.h"

namespace varve {

/// Where a file that was submitted can be read from memory.
struct SubmittedFile {
  std::string name;  ///< In the checkpoint's directory.
  std::uint64_t data_begin = 0;
};

/// Memory of another process.
struct LentMemory {
  std::span<const std::byte* const> blocks;  ///< Those of the image, in its order.
  std::function<bool()> intact;              ///< What was read of it before this call is the copy.
};

/// Claims, writes and publishes, connected to the other ranks of the save; again if that fails and
/// is worth it. `give_up` as in MakeFileChannel. Errors: as Save; DataLoss where the memory is not
/// intact.
Result<SaveReport> WriteSubmission(const Submission& save, const LentMemory& memory,
                                   const std::stop_token& stop,
                                   const std::function<Status()>& give_up, SubmittedFile* file);

}  // namespace varve
