#include "async/job_machine.h"

#include <utility>

namespace varve {
namespace {

/// Ends the save, unless it has ended.
JobActions End(JobState* state) {
  if (state->write == WriteIs::kEnded) {
    return {};
  }
  state->write = WriteIs::kEnded;
  const bool copies = state->copy == CopyIs::kPlanned;  // That thread tells the caller.
  return {.tell = !copies && !std::exchange(state->told, state->told || !copies), .deliver = true};
}

}  // namespace

JobActions Step(JobState* state, JobEvent event) {
  const bool ended = state->write == WriteIs::kEnded;
  switch (event) {
    case JobEvent::kPlanned: state->copy = CopyIs::kPlanned; return {};
    case JobEvent::kCopyEnded:
      state->copy = CopyIs::kEnded;
      state->write = state->write == WriteIs::kWaits ? WriteIs::kMay : state->write;
      return {.tell = !std::exchange(state->told, true)};
    case JobEvent::kMayWrite:
      state->write = state->write == WriteIs::kWaits ? WriteIs::kMay : state->write;
      return {};
    case JobEvent::kWriteBegins:
      state->write = ended ? WriteIs::kEnded : WriteIs::kBegun;
      return {};
    case JobEvent::kWriteEnded: return End(state);
    case JobEvent::kCancelled: return {.stop = true};
    case JobEvent::kDeadlinePassed:
      state->deadline = ended ? state->deadline : DeadlineIs::kPassed;
      return {.stop = !ended};
    case JobEvent::kGracePassed:
      state->deadline = ended ? state->deadline : DeadlineIs::kStuck;
      return End(state);
  }
  return {};
}

std::string_view Name(const JobState& state) {
  if (state.deadline == DeadlineIs::kStuck) {
    return "stuck";
  }
  switch (state.write) {
    case WriteIs::kEnded: return "ended";
    case WriteIs::kBegun: return "writing";
    case WriteIs::kMay: return "waiting for its turn";
    case WriteIs::kWaits: break;
  }
  return state.copy == CopyIs::kUnplanned ? "planning" : "copying";
}

}  // namespace varve
