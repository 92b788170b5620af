/// A stager's dealings with the process that writes its saves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "async/submission.h"
#include "pipeline/staged_file.h"
#include "pipeline/staging_pool.h"
#include "save/session.h"
#include "varve/async_save.h"

namespace varve {

/// The account of what happens to a save, whoever dies, is at the top of submitter.cc. Threads:
/// safe.
class Submitter {
 public:
  /// `pool` must be shared and outlive this. Errors: the executor's.
  static Result<std::unique_ptr<Submitter>> Make(std::shared_ptr<SaveExecutor> executor,
                                                 StagingPool& pool);
  Submitter(const Submitter&) = delete;
  Submitter& operator=(const Submitter&) = delete;
  /// What is kept becomes the other process's alone.
  ~Submitter() = default;

  /// `staged` may be null where the file has no data.
  Status Submit(std::uint64_t turn, const std::string& path, const SaveSession& session,
                StagedFile* staged, const AsyncSaveOptions& options);
  void Pass(std::uint64_t turn) { executor_->Pass(turn); }

  /// Keeps the copy of a save that was submitted in `turn` and is to be written at the end; null
  /// where its file has no data. Gives what there is to report of it.
  SaveReport KeepBack(std::uint64_t turn, const SaveSession& session,
                      std::unique_ptr<StagedFile> staged);

  /// What the ranks have found out of the save of that turn: all of them have handed it over
  /// (`whole`), and what is kept of earlier ones is given up; or some have not, and it is.
  void DeferredIs(std::uint64_t turn, bool whole);

  /// True while the copy of a save of that turn is kept, here and there.
  bool Keeps(std::uint64_t turn);

  /// Waits for a save that was submitted in `turn`; one that was not is written here, in so far
  /// as this rank is `ready`. Takes the copy from `*staged` where it is kept.
  Result<SaveReport> Write(std::optional<std::uint64_t> turn, SaveSession& session,
                           std::unique_ptr<StagedFile>* staged, const WriteAttempts& attempts,
                           const Status& ready);

 private:
  Submitter(std::shared_ptr<SaveExecutor> executor, StagingPool& pool)
      : executor_(std::move(executor)), pool_(pool) {}
  Result<SaveReport> Await(std::uint64_t turn, const std::stop_token& stop, bool* lost);
  using Kept = std::map<std::uint64_t, StagingPool::Reservation>;
  void Keep(std::uint64_t turn, std::unique_ptr<StagedFile> staged);
  /// What is kept of turns in [first, end).
  void GiveUp(std::uint64_t first, std::uint64_t end);
  /// For memory that is wanted: the oldest.
  void GiveUpOne();

  const std::shared_ptr<SaveExecutor> executor_;
  StagingPool& pool_;
  std::mutex mutex_;  // Guards what is below.
  Kept kept_;         // By turn.
};

}  // namespace varve
