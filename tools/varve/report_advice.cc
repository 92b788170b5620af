#include "report_advice.h"

#include <algorithm>

#include "text.h"

namespace varve::cli {
namespace {

/// Below it a number says little.
constexpr std::uint64_t kFewSaves = 5;
/// Share of the time that saves may cost; the default of Every("auto").
constexpr double kShare = 0.01;
constexpr double kDay = 24 * 3600;

/// Returns "20 h", "12 days".
std::string Days(double seconds) {
  if (seconds < 2 * kDay) {
    return FormatSeconds(seconds);
  }
  return seconds < 10000 * kDay ? Count(static_cast<std::uint64_t>(seconds / kDay), "day")
                                : "many years";
}

class Advisor {
 public:
  explicit Advisor(const ReportData& data) : data_(data) {}

  std::vector<Advice> All() {
    Stalls();
    Overruns();
    Interval();
    SlowRanks();
    Failures();
    Lost();
    Damage();
    Disk();
    std::stable_sort(advice_.begin(), advice_.end(),
                     [](const Advice& a, const Advice& b) { return a.kind > b.kind; });
    return std::move(advice_);
  }

 private:
  void Add(Advice::Kind kind, std::string text) { advice_.push_back({kind, std::move(text)}); }

  void Stalls() {
    if (data_.ran <= 0 || data_.stall.count == 0) {
      return;
    }
    const double share = std::min(data_.stalled / data_.ran, 1.0);
    const std::string measured = "Training stood still in saves for " + FormatShare(share) +
                                 " of the time: " + FormatSeconds(data_.stalled) + " of " +
                                 FormatSeconds(data_.ran) + ".";
    if (share > kShare) {
      Add(Advice::Kind::kWarning,
          measured + " Save less often, or asynchronously, or let the copy overlap with training.");
    } else {
      Add(Advice::Kind::kGood, measured);
    }
  }

  void Overruns() {
    const double share = data_.interval.count == 0 ? 0
                                                   : static_cast<double>(data_.overruns) /
                                                         static_cast<double>(data_.interval.count);
    if (share > 0.1 && data_.overruns >= 2) {
      Add(Advice::Kind::kWarning,
          Count(data_.overruns, "save") + " (" + FormatShare(share) +
              ") took longer than the time to the next save, which then had to wait. Save less "
              "often, or write faster: median time of a save " +
              FormatSeconds(data_.write.median) + ", between saves " +
              FormatSeconds(data_.interval.median) + ".");
    }
  }

  void Interval() {
    if (data_.write.count < kFewSaves || data_.interval.count == 0) {
      return;
    }
    const SaveCosts costs{.stall = data_.stall.median,
                          .background = 0,
                          .write = data_.write.median,
                          .restart = data_.restart};
    const IntervalChoice choice = ChooseInterval(costs, data_.mtbf, kShare);
    const double now = data_.interval.median;
    std::string text = "Saves were " + FormatSeconds(now) +
                       " apart (median). With the measured stall (" + FormatSeconds(costs.stall) +
                       ") and time of a save (" + FormatSeconds(costs.write) + ") and " +
                       (data_.mtbf ? "a job killed every " + FormatSeconds(*data_.mtbf)
                                   : std::string("no job killed yet")) +
                       ", ";
    if (!data_.mtbf) {
      Add(Advice::Kind::kNote, text + "a save every " + FormatSeconds(choice.seconds) +
                                   " would still cost no more than " + FormatShare(kShare) +
                                   " of the time. The shorter it is, the less a failure costs.");
    } else if (now > 1.5 * choice.seconds || now < choice.seconds / 1.5) {
      Add(Advice::Kind::kNote, text + "a save every " + FormatSeconds(choice.seconds) +
                                   " is advised (" + choice.reason +
                                   "). Every(\"auto\") does this by itself.");
    } else {
      Add(Advice::Kind::kGood,
          text + "that is about right (advised: " + FormatSeconds(choice.seconds) + ").");
    }
  }

  void SlowRanks() {
    for (const auto& [name, phase] : data_.history.phases) {
      std::uint64_t saves = 0;
      const auto slowest = SlowestOf(phase, &saves);
      const bool two = phase.slowest.size() <= 2;
      if (saves < kFewSaves || phase.slowest.empty() || Ranks() < 2) {
        continue;
      }
      const double share = static_cast<double>(slowest.second) / static_cast<double>(saves);
      if (share > (two && Ranks() == 2 ? 0.9 : 0.5)) {
        Add(Advice::Kind::kWarning,
            "Rank " + std::to_string(slowest.first) + " was the slowest in \"" + name + "\" in " +
                std::to_string(slowest.second) + " of " + Count(saves, "save") +
                ": look at its node, its disk and its share of the state.");
      }
    }
  }

  void Failures() {
    const std::uint64_t failed = data_.history.failures.count;
    if (failed == 0) {
      return;
    }
    Add(Advice::Kind::kWarning, Count(failed, "save") + " of " +
                                    std::to_string(data_.history.saves.size()) +
                                    " failed. The messages are in the list of failures.");
  }

  void Lost() {
    double lost = 0;
    std::uint64_t ended = 0;
    for (const JobEnd& end : data_.ends) {
      lost += end.lost;
      ended += end.lost > 0 ? 1 : 0;
    }
    if (ended > 0) {
      Add(Advice::Kind::kNote, Count(ended, "job") +
                                   " ended without a save of their last steps: at most " +
                                   FormatSeconds(lost) +
                                   " of work was done again or is lost, waiting for the next job "
                                   "included. More frequent saves lose less.");
    }
  }

  void Damage() {
    if (data_.history.damaged.count > 0) {
      Add(Advice::Kind::kWarning,
          Count(data_.history.damaged.count, "damaged step") +
              " found by a resume. Look for failing disks; `varve verify` says what is damaged.");
    }
  }

  void Disk() {
    std::uint64_t bytes = 0;
    std::uint64_t whole = 0;
    for (const RunStep& step : data_.steps) {
      bytes += step.bytes;
      whole += step.whole() ? 1 : 0;
    }
    if (data_.history.removed.count > 0 || whole < 3) {
      return;
    }
    std::string text =
        "Nothing has ever been removed: " + Count(whole, "step") + " hold " + FormatBytes(bytes) +
        ", and there seems to be no rule of retention. Keep(...) or `varve prune` makes one.";
    if (data_.interval.median > 0 && data_.disk_free) {
      const double step_bytes =
          static_cast<double>(bytes) / static_cast<double>(data_.steps.size());
      const double rate = step_bytes / data_.interval.median;
      if (rate > 0) {
        const double left = static_cast<double>(*data_.disk_free) / rate;
        text += " Training adds " +
                FormatBytes(static_cast<std::uint64_t>(std::min(rate * kDay, 1e18))) +
                " a day; the " + FormatBytes(*data_.disk_free) + " that are free last for " +
                Days(left) + " of it.";
      }
    }
    Add(Advice::Kind::kWarning, text);
  }

  [[nodiscard]] std::uint64_t Ranks() const {
    std::uint64_t most = 0;
    for (const HistoryJob& job : data_.history.jobs) {
      most = std::max(most, job.world_size);
    }
    return most;
  }

  /// Returns the rank that was most often the slowest, and how often; adds up the saves.
  static std::pair<std::uint64_t, std::uint64_t> SlowestOf(const HistoryPhase& phase,
                                                           std::uint64_t* saves) {
    std::pair<std::uint64_t, std::uint64_t> slowest{0, 0};
    for (const auto& [rank, count] : phase.slowest) {
      *saves += count;
      if (count > slowest.second) {
        slowest = {rank, count};
      }
    }
    return slowest;
  }

  const ReportData& data_;
  std::vector<Advice> advice_;
};

}  // namespace

std::string_view KindName(Advice::Kind kind) {
  switch (kind) {
    case Advice::Kind::kGood: return "good";
    case Advice::Kind::kNote: return "note";
    case Advice::Kind::kWarning: return "warning";
  }
  return "note";
}

std::vector<Advice> AdviceFor(const ReportData& data) { return Advisor(data).All(); }

}  // namespace varve::cli
