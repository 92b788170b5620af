/// A stager's dealings with the process that writes its saves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "checkpoint/handover.h"
#include "checkpoint/save_session.h"
#include "pipeline/staged_file.h"
#include "pipeline/staging_pool.h"
#include "varve/async_save.h"

namespace varve {

/// The account of what happens to a save, whoever dies, is at the top of handoff.cc. Threads: safe.
class Handoff {
 public:
  /// `pool` must be shared and outlive this. Errors: the executor's.
  static Result<std::unique_ptr<Handoff>> Make(std::shared_ptr<SaveExecutor> executor,
                                               StagingPool& pool);
  Handoff(const Handoff&) = delete;
  Handoff& operator=(const Handoff&) = delete;
  /// What is kept becomes the other process's alone.
  ~Handoff() = default;

  /// `staged` may be null where the file has no data.
  Status HandOver(std::uint64_t turn, const std::string& path, const SaveSession& session,
                  StagedFile* staged, const AsyncSaveOptions& options);
  void Pass(std::uint64_t turn) { executor_->Pass(turn); }

  /// A save has been planned, for which all ranks came: all of them have handed over the save
  /// before it. What was kept in case they had not is given up.
  void NextIsPlanned();

  /// Ends the save that was handed over in `turn` and is to be written at the end: its copy, of
  /// `*staged`, stays until a newer one takes its place.
  SaveReport KeepBack(std::uint64_t turn, const SaveSession& session,
                      std::unique_ptr<StagedFile>* staged);

  /// Waits for a save that was handed over in `turn`; one that was not is written here, in so far
  /// as this rank is `ready`. Takes the copy from `*staged` where it is kept.
  Result<SaveReport> Write(std::optional<std::uint64_t> turn, SaveSession& session,
                           std::unique_ptr<StagedFile>* staged, const WriteAttempts& attempts,
                           const Status& ready);

 private:
  Handoff(std::shared_ptr<SaveExecutor> executor, StagingPool& pool)
      : executor_(std::move(executor)), pool_(pool) {}
  Result<SaveReport> Await(std::uint64_t turn, const std::stop_token& stop, bool* lost);
  void Keep(std::uint64_t turn, std::unique_ptr<StagedFile> staged, bool written);
  /// All but the newest `stay`.
  void GiveUpAllBut(std::size_t stay);
  /// For memory that is wanted: the oldest.
  void GiveUpOne();

  struct Kept {
    std::uint64_t turn = 0;
    StagingPool::Reservation memory;
    bool written = false;
  };

  const std::shared_ptr<SaveExecutor> executor_;
  StagingPool& pool_;
  std::mutex mutex_;       // Guards what is below.
  std::deque<Kept> kept_;  // In the order of their turns.
};

}  // namespace varve
