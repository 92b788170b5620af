/// The states of a trainer's side of the agent: of its connection, and of each save that it has
/// submitted. It has no threads, sockets or clock.
///
/// The connection is up, or down. It goes down when it breaks, when the agent does not answer in
/// time, and when a message cannot be received. The next save that is submitted makes it again,
/// perhaps to another agent, which knows nothing of the tickets before.
///
/// A ticket:
///
/// | state      | the trainer                                  | becomes
/// |------------|----------------------------------------------|--------------------------------
/// | kSent      | waits for the agent's answer                 | kAccepted, kRefused, kLost
/// | kAccepted  | knows that the agent has it                  | kEnded, kForgotten, kLost
/// | kRefused   | knows why the agent does not take it         | given up
/// | kEnded     | knows the outcome; the agent may hold it     | kForgotten, kLost
/// | kForgotten | knows that the agent reads its memory no     | given up
/// |            | more                                         |
/// | kLost      | does not know what the agent does with it    | given up
///
/// A ticket is given up when the trainer uses its memory again. Unless the agent has forgotten it,
/// the lease of that memory is revoked first: an agent that is lost may live, and still read it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

namespace varve {

enum class TicketState : std::uint8_t { kSent, kAccepted, kRefused, kEnded, kForgotten, kLost };

struct ExecutorState {
  bool connected = false;
  std::map<std::uint64_t, TicketState> tickets;  ///< Those that have not been given up.
  std::uint64_t all_used_below = 0;  ///< All tickets before it were submitted or passed.
  std::set<std::uint64_t> used;      ///< Likewise these. Tickets need not come in order.
};

namespace executor_event {
/// Messages of this ticket and of later ones can be sent to the agent, which has received none.
struct Connected {
  std::uint64_t first_ticket = 0;
};
struct Lost {};
struct Submitted {
  std::uint64_t ticket = 0;
};
struct Passed {
  std::uint64_t ticket = 0;
};
struct Answered {
  std::uint64_t ticket = 0;
  bool accepted = false;
};
struct Ended {
  std::uint64_t ticket = 0;
};
struct Forgotten {
  std::uint64_t ticket = 0;
};
/// The trainer uses the memory of the ticket again.
struct GivenUp {
  std::uint64_t ticket = 0;
};
}  // namespace executor_event

using ExecutorEvent =
    std::variant<executor_event::Connected, executor_event::Lost, executor_event::Submitted,
                 executor_event::Passed, executor_event::Answered, executor_event::Ended,
                 executor_event::Forgotten, executor_event::GivenUp>;

/// What is to be done after a step.
struct ExecutorActions {
  bool close = false;                   ///< Close the connection.
  std::optional<std::uint64_t> revoke;  ///< Revoke the lease of this ticket.
  /// Tell the agent that nothing is submitted for these tickets, for which it would wait.
  std::vector<std::uint64_t> pass;
};

/// Takes an event. Events of tickets that are lost or given up change nothing. Needs memory only
/// for Connected, Submitted and Passed: a ticket can be lost and given up without any.
ExecutorActions Step(ExecutorState* state, const ExecutorEvent& event);

/// Returns a ticket's state; nothing for one that was given up or never submitted.
std::optional<TicketState> StateOf(const ExecutorState& state, std::uint64_t ticket);

}  // namespace varve
