#include "async/submission.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include "async/file_channel.h"
#include "base/fields.h"
#include "base/phase_fields.h"
#include "pipeline/staged_file.h"
#include "save/session.h"

namespace varve {
namespace {

constexpr std::uint64_t kMostMilliseconds = std::numeric_limits<std::int32_t>::max();

/// Encodes or decodes a number in [0, most]; a larger one is read as `most`.
template <class Archive, class Number>
void Bounded(Archive& archive, Number& number, std::uint64_t most) {
  std::uint64_t sent = 0;
  if constexpr (Archive::kWrites) {
    sent = number > 0 ? static_cast<std::uint64_t>(number) : 0;
  }
  archive(sent);
  if constexpr (!Archive::kWrites) {
    number = static_cast<Number>(std::min(sent, most));
  }
}

template <class Archive, class Time>
void Milliseconds(Archive& archive, Time& time) {
  std::int64_t count = time.count();
  Bounded(archive, count, kMostMilliseconds);
  if constexpr (!Archive::kWrites) {
    time = std::chrono::milliseconds(count);
  }
}

/// Names with a scheme are the same for all processes.
bool HasScheme(std::string_view path) {
  const std::size_t end = path.find("://");
  return end != 0 && end < path.find('/');
}

bool IsAbsolute(std::string_view path) { return path.starts_with('/') || HasScheme(path); }

/// Returns why this rank cannot take part, or Ok.
Status CheckImage(const Submission& save, const FileWork& work) {
  if (save.image.bytes() != work.size - work.data_begin ||
      save.image.checksum_block_bytes != work.block_bytes) {
    return DataLoss("save " + save.path + ": the staged copy does not fit what was settled");
  }
  return Status::Ok();
}

}  // namespace

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, DeferredGroup>& group) {
  archive(group.path, group.id);
}

/// Encodes or decodes the options of writing; the others are not sent.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Submission>& submission) {
  archive(submission.path, submission.settled, submission.image);
  auto& options = submission.options.save;
  archive.Enum(options.overwrite, Overwrite::kNever, Overwrite::kInPlace, "unknown overwrite");
  archive(options.direct, options.max_write_bandwidth);
  Bounded(archive, options.writes_in_flight, 1024);
  Milliseconds(archive, options.timeout);
  Bounded(archive, submission.options.retries, 1 << 20);
  Milliseconds(archive, submission.options.retry_delay);
  archive(submission.deferred, submission.phases, submission.replaces, submission.access);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, AsyncSaveReport>& report) {
  archive(report.save_id, report.bytes_written, report.seconds, report.direct,
          report.differing_objects, report.differing_tensors, report.conflicts, report.weak_publish,
          report.phases);
  Bounded(archive, report.attempts, std::numeric_limits<int>::max());
}

Bytes EncodeSubmission(const Submission& submission) { return EncodeFields(submission); }

Result<Submission> DecodeSubmission(std::string_view bytes, std::uint64_t pool_blocks) {
  VARVE_ASSIGN_OR_RETURN(Submission submission, DecodeFields<Submission>(bytes));
  VARVE_RETURN_IF_ERROR(CheckStagedImage(submission.image, pool_blocks));
  SaveOptions& options = submission.options.save;
  options.coordinate = submission.settled.identity.coordinated;
  options.format = submission.settled.format;
  options.block_bytes = submission.settled.identity.block_bytes;
  if (!IsAbsolute(submission.path)) {
    return DataLoss("a save of \"" + submission.path + "\", which is not an absolute path");
  }
  if (submission.deferred && !IsAbsolute(submission.deferred->path)) {
    return DataLoss("deferred saves beside \"" + submission.deferred->path +
                    "\", which is not an absolute path");
  }
  VARVE_RETURN_IF_ERROR(CheckSaveOptions(options, submission.path));
  return submission;
}

Bytes EncodeReport(const AsyncSaveReport& report) { return EncodeFields(report); }
Result<AsyncSaveReport> DecodeReport(std::string_view bytes) {
  return DecodeFields<AsyncSaveReport>(bytes);
}

Result<std::string> AbsolutePath(const std::string& path) {
  if (HasScheme(path)) {
    return path;
  }
  std::error_code error;
  const auto parent =
      std::filesystem::weakly_canonical(std::filesystem::absolute(ParentPath(path), error), error);
  if (error || path.empty()) {
    return InvalidArgument("\"" + path + "\" cannot be made an absolute path" +
                           (error ? ": " + error.message() : ""));
  }
  return JoinPath(parent.string(), BaseName(path));
}

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
  const Status ready = CheckImage(save, session->work());
  std::unique_ptr<StagedFile> staged;
  if (ready.ok()) {
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
