/// The states of an agent's session: which of one trainer's saves is written when, and when the
/// agent stops to wait. It has no threads, files or clock, so that the simulator can drive it.
///
/// The trainer:
///
/// | state     | the agent sees                      | becomes
/// |-----------|-------------------------------------|------------------------------------------
/// | kAttached | its connection                      | kSilent, kExited, kBack
/// | kSilent   | its process, and no connection      | kExited; kBack after the timeout
/// | kExited   | that it has exited                  | kBack, where its process was not seen
/// | kBack     | that it lives and uses its memory,  | (the end)
/// |           | which is not touched any more       |
///
/// A save:
///
/// | state    | it waits for                                       | becomes
/// |----------|----------------------------------------------------|-------------------------------
/// | kQueued  | its turn, or the end of the trainer; then for the  | kWriting
/// |          | saves that were submitted before it                |
/// | kKept    | the end of the trainer (deferred saves only), and  | kChosen, or dropped
/// |          | then for the ranks to agree which one is written   |
/// | kChosen  | the end of a newer chosen one: it is written if    | kWriting, or dropped
/// |          | that one fails                                     |
/// | kWriting | the end of its writing                             | ended
///
/// Two saves are written at a time at most: one submitted for good, and one deferred, which a
/// trainer's end must not keep waiting behind the other; but never two of one name. A save that has
/// been written replaces the deferred ones before it.
///
/// There is one timeout. So long the agent waits for ranks that have sent nothing, from the end of
/// its own trainer on or from when it began to write the save, and for a trainer that is silent.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/time_source.h"

namespace varve {

enum class TrainerState : std::uint8_t { kAttached, kSilent, kExited, kBack };
enum class SaveState : std::uint8_t { kQueued, kKept, kChosen, kWriting };

std::string_view Name(TrainerState state);
std::string_view Name(SaveState state);

struct SessionState {
  struct Save {
    bool deferred = false;
    std::string path;
    SaveState is = SaveState::kQueued;
    TimePoint since;
  };

  std::chrono::nanoseconds timeout{0};
  TrainerState trainer = TrainerState::kAttached;
  TimePoint trainer_since;
  std::map<std::uint64_t, Save> saves;   ///< Those that have not ended, by ticket.
  std::uint64_t next_ticket = 0;         ///< The first that may still be submitted and written.
  std::set<std::uint64_t> passed;        ///< Tickets from next_ticket on that nothing comes for.
  std::optional<std::uint64_t> writing;  ///< The ticket of the save that is being written.
  std::optional<std::uint64_t> writing_deferred;  ///< Likewise, of the deferred one.
  bool agreeing = false;        ///< The ranks find out which deferred save all of them have.
  TimePoint agreed_since;       ///< When they had.
  bool memory_is_ours = false;  ///< No process but the agent uses the memory.
  int releasing = 0;            ///< Times that memory is being given back just now.
};

namespace session_event {
struct Submitted {
  std::uint64_t ticket = 0;
  bool deferred = false;
  std::string path{};
};
struct Passed {
  std::uint64_t ticket = 0;
};
struct Cancelled {
  std::uint64_t ticket = 0;
};
/// The trainer replaces a deferred save.
struct Forgotten {
  std::uint64_t ticket = 0;
};
struct ConnectionEnded {};
struct ProcessEnded {
  bool memory_is_ours = false;
};
/// The agent leaves a trainer that lives, or learns that it uses its memory again.
struct Abandoned {};
/// The ranks have the deferred saves of these tickets, newest first; none where they did not agree.
struct Agreed {
  std::vector<std::uint64_t> tickets;
};
struct WriteEnded {
  std::uint64_t ticket = 0;
  bool written = false;
};
struct Released {};
struct TimePassed {};
}  // namespace session_event

using SessionEvent =
    std::variant<session_event::Submitted, session_event::Passed, session_event::Cancelled,
                 session_event::Forgotten, session_event::ConnectionEnded,
                 session_event::ProcessEnded, session_event::Abandoned, session_event::Agreed,
                 session_event::WriteEnded, session_event::Released, session_event::TimePassed>;

namespace session_action {
/// Writes the save of a ticket; WriteEnded follows.
struct Write {
  std::uint64_t ticket = 0;
  bool deferred = false;
};
/// Ends the writing of a save soon; one that is not yet being written fails when it is.
struct Stop {
  std::uint64_t ticket = 0;
};
/// Forgets a save that will not be written.
struct Drop {
  std::uint64_t ticket = 0;
};
/// Asks the agents of the other ranks which deferred saves they have; Agreed follows.
struct Agree {};
/// Gives memory back that no save and no held file needs; Released follows.
struct Release {};
/// Gives up the files that are held in the trainer's memory.
struct ForgetHeld {};
}  // namespace session_action

using SessionAction =
    std::variant<session_action::Write, session_action::Stop, session_action::Drop,
                 session_action::Agree, session_action::Release, session_action::ForgetHeld>;

/// Takes an event. Returns what is to be done, in that order.
std::vector<SessionAction> Step(SessionState* state, const SessionEvent& event, TimePoint now);

/// Returns true while the trainer's process lives, as far as the agent sees, and uses the agent.
bool Lives(const SessionState& state);

/// Returns true where a save of this ticket can still be submitted.
bool CanBeSubmitted(const SessionState& state, std::uint64_t ticket);

/// Returns when the agent stops to wait for ranks that have sent nothing: of deferred saves, about
/// which of them to write, and then about that one. Nothing while the trainer lives.
std::optional<TimePoint> WaitsUntil(const SessionState& state, bool deferred);

/// Returns the number of saves that will be written whatever the trainer does.
std::size_t Pending(const SessionState& state);

/// Returns true when there is and will be nothing to do.
bool IsOver(const SessionState& state);

}  // namespace varve
