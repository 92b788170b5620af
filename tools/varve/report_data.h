/// What `varve report` knows of a run: its history, the steps that are there, and what follows from
/// them.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "history.h"
#include "subtrees.h"
#include "varve/catalogue.h"
#include "varve/manage.h"

namespace varve::cli {

/// Many measurements as a few numbers.
struct Summary {
  std::uint64_t count = 0;
  double median = 0;
  double p95 = 0;  ///< 95 of 100 are not above it.
  double most = 0;
  double total = 0;
};

/// The state of a model, by the index of one step.
struct ModelSize {
  std::string step;  ///< Name.
  std::uint64_t tensor_count = 0;
  std::uint64_t bytes = 0;
  std::vector<Subtree> parts;
  std::vector<Subtree> dtypes;  ///< The largest first.
};

/// The end of a job, and what it has cost.
struct JobEnd {
  bool killed = false;           ///< Another job has started, and this one had noted no end.
  bool may_run = false;          ///< It is the last one, and has noted no end.
  double lost = 0;               ///< Seconds of work, at most, that no save of it has.
  std::uint64_t steps_back = 0;  ///< The next job went on so many steps before its last save.
};

struct ReportData {
  std::string run;
  double now = 0;  ///< Unix time.
  RunHistory history;
  std::vector<JobEnd> ends;  ///< One for each job of the history.

  Summary stall;  ///< Of saves that were made, in seconds.
  Summary write;
  Summary bandwidth;           ///< Bytes a second.
  Summary interval;            ///< From the begin of a save to that of the next of its job.
  std::uint64_t overruns = 0;  ///< Saves that took longer than the time to the next one.
  double ran = 0;              ///< Seconds that all jobs ran, as far as the history tells.
  double stalled = 0;          ///< Of these, in saves.
  std::optional<double> mtbf;  ///< Mean seconds between jobs that were killed.
  double restart = 0;          ///< Median seconds from a start until its load was done.

  std::vector<RunStep> steps;
  std::vector<Judgement> judgements;    ///< One for each step.
  std::vector<CheckpointEntry> others;  ///< In quarantine, failed, stale, being saved.
  std::optional<ModelSize> model;
  std::string no_model;                    ///< Why there is none.
  std::optional<std::uint64_t> disk_free;  ///< Bytes of the file system.
};

/// Gathers it. Reads the history, indexes and sizes, and no data; changes nothing. Errors: NotFound
/// where `run` is no directory; those of the storage; Cancelled.
Result<ReportData> GatherReport(const std::string& run, const KeepRules& rules,
                                const std::stop_token& stop);

/// Returns the saves to be drawn, by index: all of them, or of many the slowest and the longest
/// stalling of each stretch, the first one and the newest 200, so that no peak is lost. At most
/// kMostPoints.
inline constexpr std::size_t kMostPoints = 1500;
std::vector<std::size_t> PointsToDraw(const std::vector<HistorySave>& saves);

}  // namespace varve::cli
