#include "save/session.h"

#include <chrono>
#include <memory>
#include <string>

#include "base/events.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "base/trace.h"
#include "catalogue/names.h"
#include "format/data_file.h"
#include "save/coordinated.h"
#include "save/local.h"
#include "save/report_outcome.h"
#include "save/tensor_source.h"
#include "save/written_format.h"
#include "varve/storage.h"

namespace varve {

std::string_view OverwriteName(Overwrite overwrite) {
  switch (overwrite) {
    case Overwrite::kNever: return "false";
    case Overwrite::kAlways: return "true";
    case Overwrite::kDamaged: return "damaged";
    case Overwrite::kInPlace: return "in_place";
  }
  return "unknown";
}

Status CheckSaveOptions(const SaveOptions& options, const std::string& path) {
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path));
  const WrittenFormat* const format = FindWrittenFormat(options.format);
  if (format == nullptr) {
    return InvalidArgument("saves are written as varve, dcp, hf or hfai, not as " +
                           std::string(FormatName(options.format)));
  }
  if (!format->rank_local && !options.coordinate) {
    return InvalidArgument("a save without coordination is written in the native format only");
  }
  if (options.overwrite == Overwrite::kDamaged && !options.coordinate) {
    return InvalidArgument(
        "a save without coordination cannot replace damaged checkpoints only: no rank sees all "
        "files");
  }
  if (options.overwrite == Overwrite::kInPlace && !format->HasFixedNames()) {
    return InvalidArgument("overwrite in place is for the format hfai only: " +
                           std::string(FormatName(options.format)) +
                           " keeps the old checkpoint until the new one is durable, wherever it "
                           "is; overwrite without \"in_place\"");
  }
  if (options.shard_size == 0) {
    return InvalidArgument("shard_size must be at least 1 byte");
  }
  if (options.block_bytes == 0 || options.block_bytes % kDataAlignment != 0 ||
      options.block_bytes > kMaxBlockBytes) {
    return InvalidArgument("block_bytes must be a multiple of 4096 up to 8 MiB, not " +
                           std::to_string(options.block_bytes));
  }
  return Status::Ok();
}

std::unique_ptr<SaveSession> MakeSaveSession(const State& state, const std::string& path,
                                             const SaveOptions& options, Claim claim,
                                             Storage& storage) {
  return options.coordinate ? MakeCoordinatedSave(state, path, options, claim, storage)
                            : MakeRankLocalSave(state, path, options, storage);
}

Result<std::unique_ptr<SaveSession>> ResumeSave(SettledSave settled, const std::string& path,
                                                const SaveOptions& options, Storage& storage) {
  return settled.identity.coordinated
             ? ResumeCoordinatedSave(std::move(settled), path, options, storage)
             : ResumeRankLocalSave(std::move(settled), path, options, storage);
}

Result<SaveReport> Save(const State& state, const std::string& path, const SaveOptions& options,
                        Coordinator& coordinator, Storage& storage) {
  std::string where;
  Status ready;  // All ranks learn of a path that cannot be resolved, as of any other error.
  const auto session = Guarded([&]() -> Result<std::unique_ptr<SaveSession>> {
    const auto resolved = ResolveTarget(path, storage);
    ready = resolved.status();
    where = resolved.ok() ? *resolved : path;
    return MakeSaveSession(state, where, options, Claim::kWithPlan, storage);
  });
  if (!session.ok()) {
    // The other ranks learn of it in their first exchange.
    return options.coordinate ? Agree(coordinator, path, session.status(), Now() + options.timeout)
                              : session.status();
  }
  if (ready.ok()) {
    ready = Guarded([&] { return AwaitDeviceWork(state); });
  }
  const auto save = [&]() -> Result<SaveReport> {
    VARVE_RETURN_IF_ERROR((*session)->Plan(coordinator, ready));
    return (*session)->Write(coordinator, nullptr, Status::Ok());
  };
  auto saved = save();
  if (saved.ok()) {
    (void)Guarded([&] { saved->copied_ahead = state.copied_ahead; });
  }
  FlushTraceOf(coordinator.rank());
  if (EventsAreTaken()) {
    (void)Guarded([&] {
      ReportOutcome("save " + where, coordinator.rank(), saved.status(),
                    saved.ok() ? &*saved : nullptr, "is durable");
    });
  }
  return saved;
}

Result<SaveReport> Save(const State& state, const std::string& path, const SaveOptions& options,
                        Storage& storage) {
  const auto coordinator = MakeSingleProcessCoordinator();
  return Save(state, path, options, *coordinator, storage);
}

}  // namespace varve
