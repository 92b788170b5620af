#include "agent/session_machine.h"

#include <algorithm>

namespace varve {
namespace {

using Actions = std::vector<SessionAction>;
using Saves = std::map<std::uint64_t, SessionState::Save>;

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};

void Become(SessionState::Save* save, SaveState is, TimePoint now) {
  save->is = is;
  save->since = now;
}

void Become(SessionState* state, TrainerState trainer, TimePoint now) {
  state->trainer = trainer;
  state->trainer_since = now;
}

/// Ends the deferred saves that `wanted` is false for: those being written are stopped.
template <class Wanted>
void EndDeferred(SessionState* state, const Wanted& wanted, Actions* actions) {
  for (auto at = state->saves.begin(); at != state->saves.end();) {
    const auto& [ticket, save] = *at;
    const bool ends = save.deferred && !wanted(ticket);
    if (ends && save.is == SaveState::kWriting) {
      actions->push_back(session_action::Stop{ticket});
    }
    if (ends && save.is != SaveState::kWriting) {
      actions->push_back(session_action::Drop{ticket});
      at = state->saves.erase(at);
    } else {
      ++at;
    }
  }
}

/// Returns the save that was submitted for good and is written next, if its turn has come.
Saves::iterator NextOfThoseSubmitted(SessionState* state) {
  const auto is_kept = [&](std::uint64_t ticket) {
    const auto found = state->saves.find(ticket);
    return found != state->saves.end() && found->second.deferred;
  };
  while (state->passed.erase(state->next_ticket) > 0 || is_kept(state->next_ticket)) {
    ++state->next_ticket;
  }
  const auto waits = [](const auto& entry) { return entry.second.is == SaveState::kQueued; };
  const auto first = std::find_if(state->saves.begin(), state->saves.end(), waits);
  // A trainer that has exited submits no more tickets.
  const bool its_turn =
      first != state->saves.end() && (first->first == state->next_ticket || !Lives(*state));
  return its_turn ? first : state->saves.end();
}

void StartWriting(SessionState* state, TimePoint now, Actions* actions) {
  if (!state->writing) {
    if (const auto next = NextOfThoseSubmitted(state); next != state->saves.end()) {
      Become(&next->second, SaveState::kWriting, now);
      state->writing = next->first;
      state->next_ticket = std::max(state->next_ticket, next->first + 1);
      actions->push_back(session_action::Write{next->first, false});
    }
  }
  if (!state->writing_deferred) {
    const auto chosen =
        std::find_if(state->saves.rbegin(), state->saves.rend(),
                     [](const auto& entry) { return entry.second.is == SaveState::kChosen; });
    const auto same_name = [&](const auto& entry) {
      return !entry.second.deferred && entry.second.path == chosen->second.path;
    };
    if (chosen != state->saves.rend() &&
        std::none_of(state->saves.begin(), state->saves.end(), same_name)) {
      Become(&chosen->second, SaveState::kWriting, now);
      state->writing_deferred = chosen->first;
      actions->push_back(session_action::Write{chosen->first, true});
    }
  }
}

void Release(SessionState* state, Actions* actions) {
  if (state->memory_is_ours) {
    ++state->releasing;
    actions->push_back(session_action::Release{});
  }
}

void Abandon(SessionState* state, TimePoint now, Actions* actions) {
  if (state->trainer == TrainerState::kBack) {
    return;
  }
  Become(state, TrainerState::kBack, now);
  state->memory_is_ours = false;
  EndDeferred(state, [](std::uint64_t) { return false; }, actions);
  for (const auto& [ticket, save] : state->saves) {
    if (!save.deferred) {
      actions->push_back(session_action::Stop{ticket});
    }
  }
  actions->push_back(session_action::ForgetHeld{});
}

void EndProcess(SessionState* state, bool memory_is_ours, TimePoint now, Actions* actions) {
  if (!Lives(*state)) {
    return;
  }
  Become(state, TrainerState::kExited, now);
  state->memory_is_ours = memory_is_ours;
  Release(state, actions);
  state->agreeing = std::any_of(state->saves.begin(), state->saves.end(), [](const auto& entry) {
    return entry.second.is == SaveState::kKept;
  });
  if (state->agreeing) {
    actions->push_back(session_action::Agree{});
  }
}

void Choose(SessionState* state, const std::vector<std::uint64_t>& tickets, TimePoint now,
            Actions* actions) {
  state->agreeing = false;
  state->agreed_since = now;
  const auto is_chosen = [&](std::uint64_t ticket) {
    return std::find(tickets.begin(), tickets.end(), ticket) != tickets.end();
  };
  EndDeferred(state, is_chosen, actions);
  for (auto& [ticket, save] : state->saves) {
    if (save.deferred) {
      Become(&save, SaveState::kChosen, now);
    }
  }
}

void EndWriting(SessionState* state, const session_event::WriteEnded& event, Actions* actions) {
  const auto found = state->saves.find(event.ticket);
  if (found == state->saves.end()) {
    return;
  }
  (found->second.deferred ? state->writing_deferred : state->writing).reset();
  state->saves.erase(found);
  actions->push_back(session_action::Drop{event.ticket});
  if (event.written) {
    EndDeferred(state, [&](std::uint64_t ticket) { return ticket > event.ticket; }, actions);
  }
  Release(state, actions);
}

}  // namespace

std::string_view Name(TrainerState state) {
  switch (state) {
    case TrainerState::kAttached: return "attached";
    case TrainerState::kSilent: return "silent";
    case TrainerState::kExited: return "exited";
    case TrainerState::kBack: return "back";
  }
  return "unknown";
}

std::string_view Name(SaveState state) {
  switch (state) {
    case SaveState::kQueued: return "queued";
    case SaveState::kKept: return "kept";
    case SaveState::kChosen: return "chosen";
    case SaveState::kWriting: return "writing";
  }
  return "unknown";
}

bool Lives(const SessionState& state) {
  return state.trainer == TrainerState::kAttached || state.trainer == TrainerState::kSilent;
}

bool CanBeSubmitted(const SessionState& state, std::uint64_t ticket) {
  return state.trainer == TrainerState::kAttached && ticket >= state.next_ticket &&
         !state.saves.contains(ticket) && !state.passed.contains(ticket);
}

std::vector<SessionAction> Step(SessionState* state, const SessionEvent& event, TimePoint now) {
  Actions actions;
  std::visit(
      Overloaded{
          [&](const session_event::Submitted& it) {
            const SaveState is = it.deferred ? SaveState::kKept : SaveState::kQueued;
            state->saves[it.ticket] = {it.deferred, it.path, is, now};
          },
          [&](const session_event::Passed& it) {
            if (it.ticket >= state->next_ticket && !state->saves.contains(it.ticket)) {
              state->passed.insert(it.ticket);
            }
          },
          [&](const session_event::Cancelled& it) {
            if (state->saves.contains(it.ticket)) {
              actions.push_back(session_action::Stop{it.ticket});
            }
          },
          [&](const session_event::Forgotten& it) {
            const auto found = state->saves.find(it.ticket);
            if (Lives(*state) && found != state->saves.end() && found->second.deferred) {
              state->saves.erase(found);
              actions.push_back(session_action::Drop{it.ticket});
              if (it.ticket >= state->next_ticket) {
                state->passed.insert(it.ticket);  // Later tickets must not wait for this one.
              }
            }
          },
          [&](const session_event::ConnectionEnded&) {
            if (state->trainer == TrainerState::kAttached) {
              Become(state, TrainerState::kSilent, now);
            }
          },
          [&](const session_event::ProcessEnded& it) {
            EndProcess(state, it.memory_is_ours, now, &actions);
          },
          [&](const session_event::Abandoned&) { Abandon(state, now, &actions); },
          [&](const session_event::Agreed& it) { Choose(state, it.tickets, now, &actions); },
          [&](const session_event::WriteEnded& it) { EndWriting(state, it, &actions); },
          [&](const session_event::Released&) { --state->releasing; },
          [&](const session_event::TimePassed&) {
            if (state->trainer == TrainerState::kSilent &&
                now >= state->trainer_since + state->timeout) {
              Abandon(state, now, &actions);
            }
          },
      },
      event);
  StartWriting(state, now, &actions);
  return actions;
}

std::optional<TimePoint> WaitsUntil(const SessionState& state, bool deferred) {
  if (Lives(state)) {
    return std::nullopt;
  }
  if (state.trainer == TrainerState::kBack) {
    return state.trainer_since;
  }
  TimePoint since = deferred && !state.agreeing ? state.agreed_since : state.trainer_since;
  if (const auto& ticket = deferred ? state.writing_deferred : state.writing) {
    since = std::max(since, state.saves.at(*ticket).since);
  }
  return since + std::chrono::duration_cast<TimePoint::duration>(state.timeout);
}

std::size_t Pending(const SessionState& state) {
  return static_cast<std::size_t>(std::count_if(
      state.saves.begin(), state.saves.end(),
      [&](const auto& entry) { return !(Lives(state) && entry.second.is == SaveState::kKept); }));
}

bool IsOver(const SessionState& state) {
  return !Lives(state) && state.saves.empty() && !state.agreeing && state.releasing == 0;
}

}  // namespace varve
