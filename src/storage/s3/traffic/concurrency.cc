#include "storage/s3/traffic/concurrency.h"

#include <algorithm>

namespace varve::s3 {

ConcurrencyState Unloaded(int most) {
  ConcurrencyState state;
  state.most = std::max(most, 1);
  state.limit = state.most;
  return state;
}

bool MayBegin(const ConcurrencyState& state) { return state.in_flight < state.limit; }

std::uint64_t Begin(ConcurrencyState* state) {
  ++state->in_flight;
  return state->round;
}

bool End(ConcurrencyState* state, std::uint64_t round, ServerLoad load) {
  --state->in_flight;
  switch (load) {
    case ServerLoad::kUnknown: return false;
    case ServerLoad::kTaken:
      if (state->limit < state->most && ++state->good_since_change >= state->limit) {
        ++state->limit;
        state->good_since_change = 0;
      }
      return false;
    case ServerLoad::kTooMuch: break;
  }
  if (round != state->round) {
    return false;
  }
  ++state->round;
  state->good_since_change = 0;
  state->limit = std::max(state->limit / 2, 1);
  return true;
}

}  // namespace varve::s3
