#include "agent/writing.h"

#include "async/failure_note.h"
#include "async/file_channel.h"

namespace varve {

Status CheckWaitingTime(const TrainerView& trainer) {
  const auto until = trainer.waits_until();
  return until && Now() >= *until
             ? Unavailable(
                   "the trainer has ended or left its agent, and the agents of other ranks have "
                   "sent nothing")
             : Status::Ok();
}

Result<AsyncSaveReport> WriteForTrainer(const Submission& save, Storage& storage,
                                        const LeasedMemory& memory, const std::stop_token& stop,
                                        const TrainerView& trainer, SubmittedFile* file) {
  bool gave_up = false;
  const auto give_up = [&] {
    if (save.deferred && stop.stop_requested()) {
      return Status(StatusCode::kCancelled, "no longer wanted");
    }
    Status status = CheckWaitingTime(trainer);
    gave_up = gave_up || !status.ok();
    return status;
  };
  const auto has_exited = [&] { return trainer.waits_until().has_value(); };
  auto report = WriteSubmission(save, storage, memory, stop, {give_up, has_exited}, file);
  const bool alone = has_exited();
  if (!report.ok() && alone) {
    const FileIdentity& rank = save.settled.identity;
    if (gave_up) {
      Withdraw({storage, rank, save.path}, report.status());
    }
    if (!rank.coordinated || rank.rank == 0) {
      NoteFailure(storage, save.path, report.status());
    }
  }
  return report;
}

}  // namespace varve
