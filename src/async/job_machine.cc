#include "async/job_machine.h"

#include <utility>

namespace varve {
namespace {

/// Ends the save, unless it has ended.
JobActions End(JobState* state) {
  if (state->write == WriteState::kEnded) {
    return {};
  }
  state->write = WriteState::kEnded;
  const bool copies = state->copy == CopyState::kPlanned;  // That thread tells the caller.
  return {.tell = !copies && !std::exchange(state->told, state->told || !copies), .deliver = true};
}

}  // namespace

JobActions Step(JobState* state, JobEvent event) {
  const bool ended = state->write == WriteState::kEnded;
  switch (event) {
    case JobEvent::kPlanned: state->copy = CopyState::kPlanned; return {};
    case JobEvent::kCopyEnded:
      state->copy = CopyState::kEnded;
      state->write = state->write == WriteState::kWaits ? WriteState::kMay : state->write;
      return {.tell = !std::exchange(state->told, true)};
    case JobEvent::kMayWrite:
      state->write = state->write == WriteState::kWaits ? WriteState::kMay : state->write;
      return {};
    case JobEvent::kWriteBegins:
      state->write = ended ? WriteState::kEnded : WriteState::kBegun;
      return {};
    case JobEvent::kWriteEnded: return End(state);
    case JobEvent::kDeadlinePassed:
      state->deadline = ended ? state->deadline : DeadlineState::kPassed;
      return {};
    case JobEvent::kGracePassed:
      state->deadline = ended ? state->deadline : DeadlineState::kStuck;
      return End(state);
  }
  return {};
}

std::string_view Name(const JobState& state) {
  if (state.deadline == DeadlineState::kStuck) {
    return "stuck";
  }
  switch (state.write) {
    case WriteState::kEnded: return "ended";
    case WriteState::kBegun: return "writing";
    case WriteState::kMay: return "waiting for its turn";
    case WriteState::kWaits: break;
  }
  return state.copy == CopyState::kUnplanned ? "planning" : "copying";
}

}  // namespace varve
