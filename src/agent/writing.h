/// Writes one save for a trainer, which may live or have ended.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>

#include "async/submission.h"
#include "async/submitted.h"
#include "base/time_source.h"
#include "varve/async_save.h"
#include "varve/storage.h"

namespace varve {

/// What the agent knows of the trainer, at any time. Called by the writing thread.
struct TrainerView {
  /// Until when the agent waits for ranks that have sent nothing; nothing while the trainer lives.
  std::function<std::optional<TimePoint>()> waits_until;
};

/// Returns an error when the agent has waited long enough for ranks that have sent nothing.
Status CheckWaitingTime(const TrainerView& trainer);

/// Writes and publishes a save. Where it fails and the trainer has exited, no other process reports
/// it: this one reports it to ranks that come later, and leaves a note for `varve ls`. Errors: as
/// WriteSubmission.
Result<AsyncSaveReport> WriteForTrainer(const Submission& save, Storage& storage,
                                        const LeasedMemory& memory, const std::stop_token& stop,
                                        const TrainerView& trainer, SubmittedFile* file);

}  // namespace varve
