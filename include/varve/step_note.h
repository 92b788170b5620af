/// A manager writes a note beside each checkpoint that it saves: the step, the job and the metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/status.h"

namespace varve {

/// The side file in which a manager notes what it knows of a step.
inline constexpr std::string_view kStepNoteName = "varve-step.json";

/// The file in a run's directory in which a manager keeps the run's history.
inline constexpr std::string_view kHistoryName = "varve-history.jsonl";

/// The content of that note.
struct StepNote {
  std::uint64_t step = 0;
  /// Number of the job that saved it, from 1 on: higher than those of all jobs of the run before. A
  /// job that goes on from an older step takes a higher one, so that what it saves is newer than
  /// what it left behind.
  std::uint64_t attempt = 0;
  std::optional<std::uint64_t> resumed_from;  ///< Step; nothing for a run from its beginning.
  std::int64_t time_ns = 0;                   ///< When the save began, Unix time.
  std::vector<std::pair<std::string, double>> metrics{};  ///< By name, sorted. May be NaN.
  friend bool operator==(const StepNote&, const StepNote&) = default;
};

/// Returns the note as JSON. Errors: InvalidArgument for a metric's name that is no UTF-8 or given
/// twice.
Result<std::string> EncodeStepNote(const StepNote& note);
/// Errors: DataLoss.
Result<StepNote> DecodeStepNote(std::string_view text);

}  // namespace varve
