/// The history of a run, as its manager has written it: varve-history.jsonl, a JSON object a line.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "varve/status.h"

namespace varve::cli {

/// A save, made or failed.
struct HistorySave {
  double began = 0;  ///< Unix time.
  double time = 0;   ///< When it was noted, after its end.
  std::uint64_t step = 0;
  std::uint64_t attempt = 0;
  std::uint32_t job = 0;  ///< Index of RunHistory::jobs.
  bool done = false;
  double stall = 0;    ///< Seconds for which training waited.
  double seconds = 0;  ///< From its begin until it was durable; 0 unless done.
  double bytes = 0;    ///< 0 unless done, and where it is not known.
  /// Bytes a second; 0 where they are not known.
  [[nodiscard]] double bandwidth() const { return seconds > 0 ? bytes / seconds : 0; }
};

/// A job of the run: from a start to the next.
struct HistoryJob {
  double start = 0;  ///< Unix time; of the first line, where no start was noted.
  double last = 0;   ///< Of its last line.
  std::uint64_t attempt = 0;
  std::uint64_t world_size = 0;
  std::string host;
  std::optional<std::string> outcome;  ///< Of its end; nothing where it has not ended by itself.
  std::optional<std::uint64_t> resumed_from;
  double ready = 0;  ///< When its load was done; 0 where it loaded nothing.
  std::uint64_t saves = 0;
  std::uint64_t failed = 0;
  std::optional<std::size_t> last_done;  ///< Index of its last save that was made.
  std::string last_reason;               ///< Why that was made.
};

/// A line for a list: of a failed save, of what was removed, or put into quarantine.
struct HistoryNote {
  double time = 0;
  std::uint64_t step = 0;
  std::string name;  ///< Of the step; of a failed save, its kind of error.
  std::string text;  ///< Message, reason.
  double bytes = 0;
};

/// The newest of many, and how many there were.
struct HistoryNotes {
  static constexpr std::size_t kMost = 200;

  std::uint64_t count = 0;
  double bytes = 0;
  std::vector<HistoryNote> newest;  ///< At most kMost.

  void Add(HistoryNote note);
};

/// What the saves of a run have spent in a phase.
struct HistoryPhase {
  std::uint64_t saves = 0;
  double seconds = 0;  ///< Of rank 0, in all.
  double most = 0;
  /// In how many saves a rank was the slowest. At most kMostRanks are told apart.
  std::map<std::uint64_t, std::uint64_t> slowest;
  static constexpr std::size_t kMostRanks = 100'000;
};

/// All that a report needs of a history. Bounded, but for the saves: about 100 bytes each.
struct RunHistory {
  bool found = false;
  std::uint64_t lines = 0;
  std::uint64_t unreadable = 0;  ///< Lines that are no event.
  std::vector<HistorySave> saves;
  std::vector<HistoryJob> jobs;
  HistoryNotes failures;
  HistoryNotes removed;
  HistoryNotes damaged;                        ///< In quarantine, or only passed over.
  std::map<std::string, HistoryPhase> phases;  ///< Of saves, by name.
};

/// Reads the history of a run. Lines that are no event are counted and passed over, and so are
/// values that make no sense. `found` is false where there is no file. Errors: Unavailable where it
/// cannot be read.
Result<RunHistory> ReadHistory(const std::string& run);

}  // namespace varve::cli
