#include "save/report_outcome.h"

#include <array>
#include <cstdio>
#include <utility>

#include "base/events.h"
#include "base/trace.h"

namespace varve {
namespace {

std::string Seconds(double seconds) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.3f", seconds);
  return text.data();
}

Event EventOf(const std::string& what, int rank, const Status& status, const SaveReport* report,
              std::string_view ends_as) {
  Event event{.level = rank == 0 ? EventLevel::kInfo : EventLevel::kDebug, .rank = rank};
  if (report == nullptr) {
    const bool cancelled = status.code() == StatusCode::kCancelled;
    event.message = what + (cancelled ? ": was given up: " : ": has failed: ") + status.ToString();
    return event;
  }
  event.message = what + ": " + std::string(ends_as);
  event.fields = {{"bytes", std::to_string(report->bytes_written)},
                  {"seconds", Seconds(report->seconds)}};
  for (const Phase& phase : report->phases) {
    event.fields.emplace_back(phase.name, Seconds(phase.seconds));
  }
  return event;
}

}  // namespace

void ReportOutcome(const std::string& what, int rank, const Status& status,
                   const SaveReport* report, std::string_view ends_as) noexcept {
  ReportEvent([&] { return EventOf(what, rank, status, report, ends_as); });
}

void NoteSlowest(std::uint32_t rank, const std::vector<Phase>& theirs, std::vector<Phase>* phases) {
  for (const Phase& their : theirs) {
    if (their.name == "exchange" || their.name == "commit" || their.name == "wait") {
      continue;  // Who takes longest there has waited for another.
    }
    AddPhase(phases, {.name = their.name});  // This rank may have had nothing to stage.
    for (Phase& phase : *phases) {
      if (their.name == phase.name &&
          (!phase.slowest_rank || their.seconds > phase.slowest_seconds)) {
        phase.slowest_rank = rank;
        phase.slowest_seconds = their.seconds;
      }
    }
  }
}

}  // namespace varve
