/// Writing a save that another process has submitted.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stop_token>
#include <string>

#include "async/submission.h"
#include "varve/storage.h"

namespace varve {

/// A submitted file that can be read from memory.
struct SubmittedFile {
  std::string name;  ///< File name in the checkpoint's directory.
  std::uint64_t data_begin = 0;
  std::string published_as;  ///< SaveSession::published_as.
};

/// Leased memory of another process.
struct LeasedMemory {
  std::span<const std::byte* const> blocks;  ///< Those of the image, in its order.
  std::function<bool()> intact;              ///< Returns true while the lease holds: bytes read
                                             ///< before are the copy.
};

/// What the writing thread asks of a trainer that may have exited.
struct TrainerChecks {
  std::function<Status()> give_up;   ///< As in MakeFileChannel.
  std::function<bool()> has_exited;  ///< The trainer has. Then another job may have taken the name
                                     ///< since, and only what this one knew is replaced.
};

/// Claims, writes and publishes, connected to the other ranks of the save. Repeats that after a
/// failure that may pass. Errors: as Save; DataLoss where the
/// memory is not intact.
Result<AsyncSaveReport> WriteSubmission(const Submission& save, Storage& storage,
                                        const LeasedMemory& memory, const std::stop_token& stop,
                                        const TrainerChecks& trainer, SubmittedFile* file);

}  // namespace varve
