#include "agent/executor_machine.h"

namespace varve {
namespace {

using ToDo = ExecutorActions;

/// One event's effect.
class TakingForTurns {
 public:
  explicit TakingForTurns(ExecutorState* state) : state_(*state) {}

  ToDo operator()(const executor_event::Connected& event) {
    state_.connected = true;
    ToDo actions;
    for (auto turn = state_.used.upper_bound(event.first_turn); turn != state_.used.end(); ++turn) {
      actions.pass.push_back(*turn);
    }
    return actions;
  }

  ToDo operator()(const executor_event::Lost& /*event*/) {
    state_.connected = false;
    for (auto& [turn, is] : state_.turns) {
      is = TurnState::kLost;
    }
    return {.close = true};
  }

  ToDo operator()(const executor_event::Submitted& event) {
    Use(event.turn);
    state_.turns[event.turn] = state_.connected ? TurnState::kSent : TurnState::kLost;
    return {};
  }

  ToDo operator()(const executor_event::Passed& event) {
    Use(event.turn);
    return {};
  }

  ToDo operator()(const executor_event::Answered& event) {
    if (Is(event.turn, TurnState::kSent)) {
      state_.turns[event.turn] = event.accepted ? TurnState::kAccepted : TurnState::kRefused;
    }
    return {};
  }

  ToDo operator()(const executor_event::Ended& event) {
    if (Is(event.turn, TurnState::kAccepted)) {
      state_.turns[event.turn] = TurnState::kEnded;
    }
    return {};
  }

  ToDo operator()(const executor_event::Forgotten& event) {
    if (Is(event.turn, TurnState::kAccepted) || Is(event.turn, TurnState::kEnded)) {
      state_.turns[event.turn] = TurnState::kForgotten;
    }
    return {};
  }

  ToDo operator()(const executor_event::GivenUp& event) {
    const auto found = state_.turns.find(event.turn);
    if (found == state_.turns.end()) {
      return {};
    }
    const bool is_read = found->second != TurnState::kForgotten;
    state_.turns.erase(found);
    return {.revoke = is_read ? std::optional(event.turn) : std::nullopt};
  }

 private:
  [[nodiscard]] bool Is(std::uint64_t turn, TurnState is) const {
    return StateOf(state_, turn) == is;
  }

  void Use(std::uint64_t turn) {
    state_.used.insert(turn);
    while (state_.used.erase(state_.all_used_below) > 0) {
      ++state_.all_used_below;
    }
  }

  ExecutorState& state_;
};

}  // namespace

ExecutorActions Step(ExecutorState* state, const ExecutorEvent& event) {
  return std::visit(TakingForTurns(state), event);
}

std::optional<TurnState> StateOf(const ExecutorState& state, std::uint64_t turn) {
  const auto found = state.turns.find(turn);
  return found == state.turns.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace varve
