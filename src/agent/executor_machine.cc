#include "agent/executor_machine.h"

namespace varve {
namespace {

using ToDo = ExecutorActions;

/// One event's effect.
class TakingForTickets {
 public:
  explicit TakingForTickets(ExecutorState* state) : state_(*state) {}

  ToDo operator()(const executor_event::Connected& event) {
    state_.connected = true;
    ToDo actions;
    for (auto ticket = state_.used.upper_bound(event.first_ticket); ticket != state_.used.end();
         ++ticket) {
      actions.pass.push_back(*ticket);
    }
    return actions;
  }

  ToDo operator()(const executor_event::Lost& /*event*/) {
    state_.connected = false;
    for (auto& [ticket, is] : state_.tickets) {
      is = TicketState::kLost;
    }
    return {.close = true};
  }

  ToDo operator()(const executor_event::Submitted& event) {
    Use(event.ticket);
    state_.tickets[event.ticket] = state_.connected ? TicketState::kSent : TicketState::kLost;
    return {};
  }

  ToDo operator()(const executor_event::Passed& event) {
    Use(event.ticket);
    return {};
  }

  ToDo operator()(const executor_event::Answered& event) {
    if (Is(event.ticket, TicketState::kSent)) {
      state_.tickets[event.ticket] =
          event.accepted ? TicketState::kAccepted : TicketState::kRefused;
    }
    return {};
  }

  ToDo operator()(const executor_event::Ended& event) {
    if (Is(event.ticket, TicketState::kAccepted)) {
      state_.tickets[event.ticket] = TicketState::kEnded;
    }
    return {};
  }

  ToDo operator()(const executor_event::Forgotten& event) {
    if (Is(event.ticket, TicketState::kAccepted) || Is(event.ticket, TicketState::kEnded)) {
      state_.tickets[event.ticket] = TicketState::kForgotten;
    }
    return {};
  }

  ToDo operator()(const executor_event::GivenUp& event) {
    const auto found = state_.tickets.find(event.ticket);
    if (found == state_.tickets.end()) {
      return {};
    }
    const bool is_read = found->second != TicketState::kForgotten;
    state_.tickets.erase(found);
    return {.revoke = is_read ? std::optional(event.ticket) : std::nullopt};
  }

 private:
  [[nodiscard]] bool Is(std::uint64_t ticket, TicketState is) const {
    return StateOf(state_, ticket) == is;
  }

  void Use(std::uint64_t ticket) {
    state_.used.insert(ticket);
    while (state_.used.erase(state_.all_used_below) > 0) {
      ++state_.all_used_below;
    }
  }

  ExecutorState& state_;
};

}  // namespace

ExecutorActions Step(ExecutorState* state, const ExecutorEvent& event) {
  return std::visit(TakingForTickets(state), event);
}

std::optional<TicketState> StateOf(const ExecutorState& state, std::uint64_t ticket) {
  const auto found = state.tickets.find(ticket);
  return found == state.tickets.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace varve
