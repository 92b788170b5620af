/// Saves in the background. The state is copied once into memory that is kept from save to save;
/// then training goes on while the stager writes and publishes the copy.
///
///   auto stager = varve::Stager::Make();                       // Kept for all saves.
///   varve::AsyncSaveHandle save = varve::AsyncSave(state, path, {}, **stager, *coordinator);
///   ...                                                        // Change the tensors.
///   const auto& report = save.done().get();                    // When it must be durable.
///
/// DeferSave leaves the copy with an agent, which writes it only if this process ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/coordinator.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

class AsyncJob;
class SaveExecutor;

/// The effect of a new save while as many as allowed are under way.
enum class WhenBusy : std::uint8_t {
  kWait,     ///< Wait until one of them has ended.
  kSkip,     ///< Do not save; the handle returns Cancelled on all ranks.
  kReplace,  ///< Give up the newest save that has not begun to write, in favour of this one.
};

struct StagerOptions {
  /// Memory for copies, shared by the saves in flight. 0: half of what the process could get (the
  /// least of the system's available memory, what its cgroups have left and what RLIMIT_AS leaves)
  /// divided by `local_ranks`. A state that
  /// is larger than the budget is copied in waves: the call then lasts until all but the last wave
  /// have been written.
  std::uint64_t budget_bytes = 0;
  int local_ranks = 1;  ///< Processes of this node that each have a stager.
  /// Threads that copy. By default as many as there are cores, half as many in overlapped saves,
  /// at most 8; more where tensors are on devices, for most of these wait.
  int copy_threads = 0;
  int max_in_flight = 2;
  WhenBusy when_busy = WhenBusy::kWait;
  /// Tensors may be on CUDA devices (CudaMemory): they are copied straight into staging memory, on
  /// a stream of the engine's own. The driver is loaded when the first such tensor comes; with
  /// true, when the stager is made. False: they are refused.
  std::optional<bool> copy_from_devices{};
  /// Staging memory is registered with the CUDA driver, in few large ranges and in the background,
  /// so that copies from devices go straight to it; until then they pass through memory that is.
  /// Where the driver refuses, copies are slower, and AsyncSaveReport::pageable_bytes says how
  /// much. By default, and with true, wherever a tensor is on a device; false: never.
  std::optional<bool> pinned_memory{};
};

/// The result of an asynchronous save.
struct AsyncSaveReport : SaveReport {
  double staging_seconds = 0;  ///< From the call until the copy was made.
  bool in_waves = false;       ///< The state was larger than the staging memory.
  int attempts = 1;            ///< Number of times the file was written, with the last.
  /// Of the stager, when the copy had been made.
  StagingMemory staging_memory{};
};

/// The result of a deferred save on this rank; other ranks may differ.
struct DeferredReport {
  SaveId save_id;
  std::uint64_t bytes = 0;           ///< Size of this rank's file, which the agent holds.
  double seconds = 0;                ///< From the call until the agent had the copy.
  std::uint64_t device_bytes = 0;    ///< As in SaveReport.
  std::uint64_t pageable_bytes = 0;  ///< As in SaveReport.
  CopiedAhead copied_ahead{};        ///< The State's.
  std::vector<std::string> differing_tensors{};  ///< As in SaveReport.
  std::vector<std::string> differing_objects{};  ///< As in SaveReport.
};

/// The options that AsyncSave and DeferSave share.
struct StagedSaveOptions {
  SaveOptions save;
  /// Return before the copy is made. Tensors must not be written to before `staged`.
  bool overlapped = false;
  /// Compare samples of every tensor before and after the copy, to find one that was written to
  /// meanwhile: an error then. By default for overlapped saves, and where VARVE_DEBUG is set in the
  /// environment.
  std::optional<bool> check_torn;
  /// Number of times that a save that failed for want of space or of storage is written again,
  /// after `retry_delay`, twice that, and so on. Not in waves, where the copy no longer exists.
  int retries = 1;
  std::chrono::milliseconds retry_delay = std::chrono::seconds(1);
  /// Time from the call on after which the save is given up. If a call of the storage does not
  /// return even then, an error names the storage, and further saves of this stager fail until it
  /// returns.
  std::optional<std::chrono::milliseconds> deadline;
  /// Time within which the storage must return from a call after the save has been given up.
  std::chrono::milliseconds stuck_grace = std::chrono::seconds(10);
  /// Called once, from another thread or from within the call; must be quick.
  std::function<void(const Status&)> on_staged;
};

struct AsyncSaveOptions : StagedSaveOptions {
  /// Called once, from another thread or from within the call; must be quick.
  std::function<void(const Result<AsyncSaveReport>&)> on_done;
};

struct DeferSaveOptions : StagedSaveOptions {
  /// Called once, from another thread or from within the call; must be quick.
  std::function<void(const Result<DeferredReport>&)> on_held;
};

/// A save under way. Copies refer to the same save. Threads: safe.
class AsyncSaveHandle {
 public:
  /// Returns a future that is ready when the copy has been made or never will be: the tensors may
  /// change.
  [[nodiscard]] std::shared_future<Status> staged() const;
  /// Returns a future that is ready when the checkpoint is durable and visible, or the save has
  /// failed; the same on every rank, as Save returns it. Cancelled when the save was skipped,
  /// replaced or cancelled.
  [[nodiscard]] std::shared_future<Result<AsyncSaveReport>> done() const;
  /// Returns whether the ranks have agreed on the save, once AsyncSave has returned. Where they
  /// have not it has failed in the call, on all of them, as where they gave other options. Where
  /// the coordinator's answer is lost on its way, ranks may return different things.
  [[nodiscard]] bool agreed() const;
  /// Returns SaveReport::differing_tensors, which is known as soon as AsyncSave has returned. Empty
  /// on ranks other than the coordinator.
  [[nodiscard]] std::vector<std::string> differing_tensors() const;
  /// Returns SaveReport::differing_objects, likewise.
  [[nodiscard]] std::vector<std::string> differing_objects() const;
  /// Gives the save up, on all ranks, unless it is about to be visible. Nothing stays behind. Other
  /// ranks learn of it in the next exchange, so they write their files to the end first.
  void Cancel() const;

  explicit AsyncSaveHandle(std::shared_ptr<AsyncJob> job);

 private:
  std::shared_ptr<AsyncJob> job_;
};

/// A deferred save under way. Copies refer to the same save. Threads: safe.
class DeferredSaveHandle {
 public:
  using Held = std::shared_future<Result<DeferredReport>>;

  /// As AsyncSaveHandle::staged.
  [[nodiscard]] std::shared_future<Status> staged() const { return save_.staged(); }
  /// Ready when the agent holds this rank's copy, or never will; other ranks may end otherwise.
  [[nodiscard]] Held held() const { return held_; }
  /// As AsyncSaveHandle::differing_tensors.
  [[nodiscard]] std::vector<std::string> differing_tensors() const {
    return save_.differing_tensors();
  }
  [[nodiscard]] std::vector<std::string> differing_objects() const {
    return save_.differing_objects();
  }
  /// Gives the save up on this rank, unless the agent holds its copy already. The agents of the
  /// other ranks never write a save that one rank has not submitted.
  void Cancel() const { save_.Cancel(); }

  DeferredSaveHandle(AsyncSaveHandle save, Held held)
      : save_(std::move(save)), held_(std::move(held)) {}

 private:
  AsyncSaveHandle save_;
  Held held_;
};

/// The memory and the threads of a process's asynchronous saves. The saves of one stager are
/// written one after the other, in the order of the calls. Threads: safe.
class Stager {
 public:
  /// Makes a stager. `background` connects the ranks for messages while training goes on; no other
  /// caller may use it. Null: a single process. Errors: InvalidArgument; OutOfSpace; Unimplemented
  /// where copy_from_devices is true and there is no CUDA driver.
  /// `executor` is another process that writes the saves, from ConnectToAgent (agent.h); the
  /// staging memory is then shared with it. Null: threads of this process.
  static Result<std::unique_ptr<Stager>> Make(const StagerOptions& options = {},
                                              std::unique_ptr<Coordinator> background = nullptr,
                                              std::shared_ptr<SaveExecutor> executor = nullptr);
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;
  /// Waits for the saves in flight.
  ~Stager();

  /// Begins to take memory for a state of `bytes` from the system, in the background, for each save
  /// that may be in flight: the first copy into new memory takes 10-60 times as long as the ones
  /// after it. It is registered as well, if `cuda_device` says for which device; copies from others
  /// are as fast.
  void Prepare(std::uint64_t bytes, std::optional<int> cuda_device = {});
  void WaitPrepared();

  /// Waits for the saves in flight.
  void Drain();
  /// Cancels them, then waits.
  void Abort();

  [[nodiscard]] std::uint64_t budget_bytes() const;
  /// Returns true when no save is in flight.
  [[nodiscard]] bool idle() const;

  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }
  explicit Stager(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

/// Saves as Save does, in the background. Collective like it: the ranks settle the plan and copy
/// their parts in the call. Returns when the copy has been made (at once with `overlapped`). Errors
/// are the handle's, those of the call included; nothing is thrown. `coordinator` is used during
/// the call only. The memory of `state` must stay valid and unchanged until `staged`. `storage`
/// must outlive the save; a stager with an executor takes AnyStorage() alone.
AsyncSaveHandle AsyncSave(State state, std::string path, AsyncSaveOptions options, Stager& stager,
                          Coordinator& coordinator, Storage& storage = AnyStorage());

/// Does the same by a single process.
AsyncSaveHandle AsyncSave(State state, std::string path, AsyncSaveOptions options, Stager& stager,
                          Storage& storage = AnyStorage());

/// Gives the agent a copy of the state and writes nothing. Collective as AsyncSave. The agent,
/// which is the stager's executor, writes the copy only if this process exits or is killed before a
/// newer save of this stager replaces it: a deferred one that all ranks have submitted, or one that
/// has been written. Memory for two copies keeps one whole at any time. `varve agent log` has
/// a failure that comes later, and `varve ls` too unless the name is taken. Errors are the
/// handle's: InvalidArgument for a stager without executor, for a state that is larger than the
/// staging memory, and for uncoordinated saves by several ranks.
DeferredSaveHandle DeferSave(State state, std::string path, DeferSaveOptions options,
                             Stager& stager, Coordinator& coordinator);

/// The same by a single process.
DeferredSaveHandle DeferSave(State state, std::string path, DeferSaveOptions options,
                             Stager& stager);

}  // namespace varve
