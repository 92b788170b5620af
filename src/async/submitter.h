/// A stager's side of the process that writes its saves.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "async/submission.h"
#include "pipeline/staged_file.h"
#include "pipeline/staging_pool.h"
#include "save/session.h"
#include "varve/async_save.h"
#include "varve/storage.h"

namespace varve {

/// Whether the other process has a save.
enum class SubmissionState : std::uint8_t {
  kNo,
  kYes,
  kPerhaps,  ///< It was sent, and no answer came.
};

/// The account of a save's steps, and of the death of either process, is at the top of
/// submitter.cc. Threads: safe.
class Submitter {
 public:
  /// Attaches the pool to the executor. `pool` must be shared; it and `storage`, where the saves
  /// are written, must outlive this. Errors: the executor's.
  static Result<std::unique_ptr<Submitter>> Make(std::shared_ptr<SaveExecutor> executor,
                                                 StagingPool& pool, Storage& storage);
  Submitter(const Submitter&) = delete;
  Submitter& operator=(const Submitter&) = delete;
  /// Leaves the kept copies to the other process.
  ~Submitter() = default;

  /// Submits a staged file; `staged` may be null where the file has no data. `group` is null unless
  /// the save is deferred. Says in `*submitted` whether the other process has it.
  Status Submit(std::uint64_t ticket, const std::string& path, const SaveSession& session,
                StagedFile* staged, const StagedSaveOptions& options, const DeferredGroup* group,
                SubmissionState* submitted);
  void Pass(std::uint64_t ticket) { executor_->Pass(ticket); }

  /// Keeps the copy of a deferred save that was submitted with `ticket`; null where its file has no
  /// data. Returns a report in which bytes_written counts the file that the agent holds.
  AsyncSaveReport KeepDeferred(std::uint64_t ticket, const SaveSession& session,
                               std::unique_ptr<StagedFile> staged);

  /// Takes what the ranks have found out about the deferred save of that ticket. If all have
  /// submitted it (`whole`), gives up the copies of earlier ones; if not, gives up this one.
  void DeferredIs(std::uint64_t ticket, bool whole);

  /// Returns true while both processes keep the copy of that ticket's save.
  bool Keeps(std::uint64_t ticket);

  /// Waits for a save that was submitted with `ticket`. Writes one that was not submitted, if this
  /// rank is `ready`. Takes the copy from `*staged` where it is kept.
  Result<AsyncSaveReport> Write(std::uint64_t ticket, SubmissionState submitted,
                                SaveSession& session, std::unique_ptr<StagedFile>* staged,
                                const std::string& path, const StagedSaveOptions& options,
                                const Status& ready);

 private:
  Submitter(std::shared_ptr<SaveExecutor> executor, StagingPool& pool, Storage& storage)
      : executor_(std::move(executor)), pool_(pool), storage_(storage) {}
  Result<AsyncSaveReport> Await(std::uint64_t ticket, const std::stop_token& stop, bool* lost);
  std::vector<std::string> RecentlySaved(const std::string& path);
  Result<std::vector<std::string>> MayReplace(const Submission& save);
  using Kept = std::map<std::uint64_t, StagingPool::Reservation>;
  void Keep(std::uint64_t ticket, std::unique_ptr<StagedFile> staged);
  /// Gives up the copies of tickets in [first, end).
  void GiveUp(std::uint64_t first, std::uint64_t end);
  /// Gives up the oldest copy, because memory is short.
  void GiveUpOne();

  const std::shared_ptr<SaveExecutor> executor_;
  StagingPool& pool_;
  Storage& storage_;
  std::mutex mutex_;                                        // Guards all members below.
  Kept kept_;                                               // Kept copies by ticket.
  std::deque<std::pair<std::string, std::string>> recent_;  // Saves: path and OccupantOf.
};

}  // namespace varve
