/// Runs: the steps that a training run has saved, which of them is the newest good one, and which
/// may go. Decisions are pure (JudgeSteps, ChooseInterval). Functions that act say what they leave.
///
/// A step of a run is a checkpoint in the run's directory whose name is letters and a number behind
/// them: "step-00001000", "checkpoint-500", "global_step120". Other checkpoints there, such as
/// "step-1000-backup" or "pretrained", are the user's: nothing here counts or removes them. Nor is
/// it a step where the manager's note has another step than the name: a user has copied or renamed
/// the directory, and it would be taken for newer than it is.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/catalogue.h"
#include "varve/status.h"
#include "varve/step_note.h"
#include "varve/storage.h"

namespace varve {

/// A step of a run.
struct RunStep {
  std::string name;  ///< In the run's directory.
  std::uint64_t step = 0;
  std::uint64_t attempt = 0;  ///< 0: no manager has saved it.
  CheckpointState state = CheckpointState::kWhole;
  std::string detail;  ///< Why it is not whole.
  std::uint64_t bytes = 0;
  std::uint32_t world_size = 0;
  std::int64_t time_ns = 0;  ///< Unix time: of the note, else of what makes it a checkpoint.
  std::vector<std::pair<std::string, double>> metrics;
  std::optional<std::string> pin;  ///< Why it is pinned.
  std::optional<SaveId> save_id{};
  bool is_link = false;  ///< A symbolic link to a checkpoint: a user has made it.
  /// The step in the manager's note where the name has another; nothing where they agree.
  std::optional<std::uint64_t> other_step{};

  /// Returns true for a step that can be loaded, as far as names, sizes and the index tell.
  [[nodiscard]] bool whole() const {
    return state == CheckpointState::kWhole || state == CheckpointState::kDisplaced;
  }
};

/// Returns the steps of a run, from the oldest to the newest: by attempt, then by step, then by
/// NaturalLess of the name. A step that no manager has saved counts as one of the attempt during
/// which it was written. With those that are not whole; without failed and stale ones and those
/// in quarantine. Reads indexes, sizes and notes. An empty list where there is no directory.
Result<std::vector<RunStep>> ListSteps(const std::string& run, Storage& storage = AnyStorage(),
                                       const std::stop_token& stop = {});

/// Returns the checkpoints of a run that ListSteps leaves out because the note in them has another
/// step (RunStep::other_step), in the same order. Reads as ListSteps.
Result<std::vector<RunStep>> ListMisnamedSteps(const std::string& run,
                                               Storage& storage = AnyStorage(),
                                               const std::stop_token& stop = {});

/// Returns the path of the newest whole checkpoint in `directory`: the last whole step in the order
/// of ListSteps; where there is none, that with the highest step in its name; where no name has
/// one, that written last. Reads indexes, sizes and notes. Errors: NotFound when there is none.
Result<std::string> NewestCheckpoint(const std::string& directory, Storage& storage = AnyStorage(),
                                     const std::stop_token& stop = {});

/// The `count` steps with the best value of a metric are kept.
struct KeepBest {
  std::uint64_t count = 1;
  std::string metric;
  bool highest = false;  ///< False: the lowest value is the best.
};

/// Rules by which steps are kept; a step that any of them keeps stays. Without any rule all stay.
struct KeepRules {
  std::optional<std::uint64_t> last;         ///< The newest so many.
  std::optional<std::uint64_t> every_steps;  ///< Those whose step is a multiple; > 0.
  std::optional<std::chrono::milliseconds>
      every_time;  ///< One for each such time, the oldest; > 0.
  std::optional<std::chrono::milliseconds> newer_than;  ///< Those made since so long.
  std::optional<KeepBest> best;
  [[nodiscard]] bool any() const { return last || every_steps || every_time || newer_than || best; }
};

/// Errors: InvalidArgument for a rule that makes no sense: every 0 steps, the best by no metric.
Status CheckRules(const KeepRules& rules);

/// What the rules say of a step.
struct Judgement {
  bool keeps = true;
  std::vector<std::string> reasons;  ///< Why it is kept: "the newest", "last 3", "pinned: paper".
};

/// Judges the steps of a run, in the order of ListSteps; one judgement each. Pure. Whatever the
/// rules:
///   - the newest whole step is kept, and every pinned one;
///   - a step that is not whole is neither counted nor removed;
///   - NaN is never best, nor a step without the metric; of equal values the newer one is better;
///   - judging what was kept keeps all of it.
std::vector<Judgement> JudgeSteps(std::span<const RunStep> steps, const KeepRules& rules,
                                  std::int64_t now_ns);

struct PruneOptions {
  DryRun dry_run = DryRun::kNo;
  /// Share of the time in which files are removed, in (0, 1]: after each file the removal rests, so
  /// that it leaves the disk to training and saves.
  double busy_share = 1.0;
  std::stop_token stop{};
  /// Only what a manager has saved may go, also in a run of which no step has a manager's note.
  /// Otherwise that is so where any step has one, and a rule for the best by a metric that no step
  /// has is refused: to a manager the first may yet come.
  bool only_managed = false;
  /// Only steps whose names begin with these letters count; others are listed and stay. Nothing:
  /// all must begin alike.
  std::optional<std::string> prefix{};
};

/// A step as PruneRun has found and left it.
struct PrunedStep {
  RunStep step;
  bool removed = false;              ///< With dry_run: would be removed.
  std::vector<std::string> reasons;  ///< Why it stays.
};

/// Removes the steps of a run that the rules do not keep, the oldest first, as RemoveStep does.
/// One that is being saved or read, or has changed since it was judged, stays, with the reason; the
/// next call looks at it again. In a run with steps that a manager has saved, those that none has
/// saved stay and are not counted; symbolic links too. Returns all steps, in the order of
/// ListSteps. `dry_run` removes nothing and finds out who reads and saves all the same. Errors:
/// InvalidArgument as CheckRules; FailedPrecondition when names begin differently and no prefix is
/// given, or no step has the metric by which the best stay, but others; those of the storage, after
/// which the steps before are removed; Cancelled.
Result<std::vector<PrunedStep>> PruneRun(const std::string& run, const KeepRules& rules,
                                         const PruneOptions& options = {},
                                         Storage& storage = AnyStorage());

/// Removes a checkpoint as RemoveCheckpoint does, unless it is pinned or a reader has it:
/// FailedPrecondition. For programs that remove by rules of their own.
Status RemoveStep(const std::string& path, const PruneOptions& options = {},
                  Storage& storage = AnyStorage());

/// Keeps a step from being pruned, removed and replaced, until it is unpinned. `why` is any text of
/// at most 1000 bytes.
/// The pin is a file in the checkpoint's directory, so that it goes where the directory goes.
/// Errors: NotFound when there is no checkpoint; FailedPrecondition for a displaced one.
Status PinCheckpoint(const std::string& path, std::string_view why,
                     Storage& storage = AnyStorage());
/// Success when it was not pinned.
Status UnpinCheckpoint(const std::string& path, Storage& storage = AnyStorage());
/// Returns why each of the checkpoints at `paths` is pinned; nothing for those that are not. A pin
/// that cannot be read counts, and its reason says so. Errors: Cancelled on `stop`.
Result<std::vector<std::optional<std::string>>> ReadPins(const std::vector<std::string>& paths,
                                                         Storage& storage = AnyStorage(),
                                                         const std::stop_token& stop = {});

/// Takes a damaged checkpoint out of the way: gives it a hidden name, under which ListCheckpoints
/// finds it with its reason, and which no load, `latest` or retention takes for a step. Nothing of
/// it is removed: RemoveCheckpoint of that name does, and renaming it brings it back. Where names
/// cannot be changed, its commit record gets another name in its directory instead, and
/// RemoveCheckpoint of the directory removes it. Returns the new path. Errors: NotFound;
/// FailedPrecondition when a save of the name is under way, and for a symbolic link; Unavailable
/// where the directory cannot be written to.
Result<std::string> QuarantineCheckpoint(const std::string& path, std::string_view reason,
                                         Storage& storage = AnyStorage());

/// The right to be the one job of a run. Ends with the object, or with the process.
class RunLock {
 public:
  virtual ~RunLock() = default;

  /// Asks whether this job still has the run. Where there are locks it has, unless the directory
  /// was removed or renamed: it takes the one that is there now. Elsewhere a later job takes the
  /// run. Errors: FailedPrecondition when another job has it, with its `holder`; Unavailable once
  /// for another directory; those of the storage, after which it is not known.
  virtual Status CheckHeld() = 0;

  /// Returns a number that is higher than those of all jobs that have had the run before; 0 where
  /// there are locks, and no earlier job can go on.
  [[nodiscard]] virtual std::uint64_t number() const { return 0; }
};

/// Locks a run, whose directory is made if need be. `holder` says who this is, for the message that
/// another job gets. In an object store the run is taken from the job that has it, which learns of
/// it by CheckHeld (run_claim.cc). Errors: FailedPrecondition when another job has it, with its
/// `holder`; Unimplemented where the file system has no locks.
Result<std::unique_ptr<RunLock>> LockRun(const std::string& run, std::string_view holder,
                                         Storage& storage = AnyStorage());

/// Small texts that a manager keeps beside the steps where files cannot be appended to, as in an
/// object store; a directory has files for them (docs/manager.md). All are Unimplemented for
/// directories.
///
/// Adds a line, JSON of an event, to the run's history: an object "varve-history/TIME-EVENT-ID".
Status AddToRunHistory(const std::string& run, std::string_view event, std::string_view line,
                       Storage& storage = AnyStorage());
/// Returns the lines of the history from the oldest on, of events of the kinds `wanted` (all where
/// none is given). Of others a line has its time and event alone, which costs no request.
Result<std::vector<std::string>> ReadRunHistory(const std::string& run,
                                                const std::vector<std::string>& wanted,
                                                Storage& storage = AnyStorage());
/// Reads, writes and removes a note of at most 64 KiB, the object `name` of the run.
Result<std::string> ReadRunNote(const std::string& run, std::string_view name,
                                Storage& storage = AnyStorage());
Status WriteRunNote(const std::string& run, std::string_view name, std::string_view text,
                    Storage& storage = AnyStorage());
Status RemoveRunNote(const std::string& run, std::string_view name,
                     Storage& storage = AnyStorage());

/// What a choice of the time between saves depends on, in seconds.
struct SaveCosts {
  double stall = 0;       ///< Training stands still for so long in a save.
  double background = 0;  ///< Training loses so much more while the save is written.
  double write = 0;       ///< The save is durable so long after its begin.
  double restart = 0;     ///< From a failure until training goes on.
};

struct IntervalChoice {
  double seconds = 0;     ///< From the begin of a save to the begin of the next.
  double save_share = 0;  ///< Of the time, what saves cost.
  double lost_share = 0;  ///< Of the time, what failures cost: work done again, and restarts.
  std::string reason;     ///< Which limit decided, for people.
};

/// Chooses the time between saves: Daly's optimum for these costs and the mean time between
/// failures (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
/// dumps, FGCS 22, 2006, equation 37), but never so short that saves cost more than `max_share` of
/// the time, nor shorter than a save takes. Pure. Without `mtbf` only the latter two decide.
IntervalChoice ChooseInterval(const SaveCosts& costs, std::optional<double> mtbf, double max_share);

}  // namespace varve
