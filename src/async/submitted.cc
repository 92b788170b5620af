#include "async/submitted.h"

#include <memory>
#include <new>
#include <utility>

#include "async/file_channel.h"
#include "pipeline/staged_file.h"
#include "save/session.h"

namespace varve {
namespace {

/// Returns why this rank cannot take part, or Ok.
Status Check(const Submission& save, const FileWork& work) {
  if (save.image.bytes() != work.size - work.data_begin ||
      save.image.checksum_block_bytes != work.block_bytes) {
    return DataLoss("save " + save.path + ": the staged copy does not fit what was settled");
  }
  return Status::Ok();
}

}  // namespace

Result<AsyncSaveReport> WriteSubmission(const Submission& save, Storage& storage,
                                        const LeasedMemory& memory, const std::stop_token& stop,
                                        const TrainerChecks& trainer, SubmittedFile* file) {
  StagedSaveOptions options = save.options;
  options.save.stop = stop;
  const MeetingPlace ranks{storage, save.settled.identity, save.path};
  const auto resumed = ResumeSave(save.settled, save.path, options.save, storage);
  if (!resumed.ok()) {
    Withdraw(ranks, resumed.status());
    return resumed.status();
  }
  SaveSession* const session = resumed->get();
  session->SetReplaces(trainer.has_exited, save.replaces);
  session->AddPhases(save.phases);
  const Status ready = Check(save, session->work());
  std::unique_ptr<StagedFile> staged;
  if (ready.ok() && !memory.blocks.empty()) {
    staged = std::make_unique<StagedFile>(save.image, memory.blocks, BufferPool::Shared(),
                                          memory.intact);
  }
  const auto channel = MakeFileChannel(ranks, trainer.give_up);
  *file = {session->file_name(), session->work().data_begin, {}};
  auto report = WriteWithRetries(*session, staged.get(), *channel, save.path, options, ready);
  file->published_as = session->published_as();
  return report;
}

}  // namespace varve
