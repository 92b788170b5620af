// The states of an agent's session, without threads.

#include "agent/session_machine.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace varve::session_machine_test {
namespace {

using namespace std::chrono_literals;
using namespace session_event;  // NOLINT(google-build-using-namespace): the events' names.

constexpr TimePoint kStart{1h};

std::string Text(const SessionAction& action) {
  if (const auto* write = std::get_if<session_action::Write>(&action)) {
    return (write->deferred ? "write deferred " : "write ") + std::to_string(write->ticket);
  }
  if (const auto* stop = std::get_if<session_action::Stop>(&action)) {
    return "stop " + std::to_string(stop->ticket);
  }
  if (const auto* drop = std::get_if<session_action::Drop>(&action)) {
    return "drop " + std::to_string(drop->ticket);
  }
  if (std::holds_alternative<session_action::Agree>(action)) {
    return "agree";
  }
  return std::holds_alternative<session_action::Release>(action) ? "release" : "forget held";
}

/// A session that takes events, and the actions of the last one.
class Session {
 public:
  Session() { state.timeout = 60s; }
  std::string operator()(SessionEvent event, std::chrono::seconds at = 0s) {
    if (auto* const submitted = std::get_if<Submitted>(&event);
        submitted != nullptr && submitted->path.empty()) {
      submitted->path = std::to_string(submitted->ticket);
    }
    std::string actions;
    for (const SessionAction& action : Step(&state, event, kStart + at)) {
      actions += (actions.empty() ? "" : ", ") + Text(action);
    }
    return actions;
  }
  SessionState state;
};

TEST(SessionMachine, SavesAreWrittenOneAfterTheOtherInTheOrderOfTheirTickets) {
  Session session;
  EXPECT_EQ(session(Submitted{1, false}), "");
  EXPECT_EQ(session(Submitted{0, false}), "write 0");
  EXPECT_EQ(session(Submitted{3, false}), "");
  EXPECT_EQ(session(WriteEnded{0, true}), "drop 0, write 1");
  EXPECT_EQ(session(WriteEnded{1, false}), "drop 1");
  EXPECT_EQ(session(Passed{2}), "write 3");
  EXPECT_EQ(session(WriteEnded{3, true}), "drop 3");
  EXPECT_FALSE(IsOver(session.state));
}

TEST(SessionMachine, TicketsThatADeadTrainerLeftOutAreNotWaitedFor) {
  Session session;
  session(Submitted{5, false});
  session(Submitted{3, false});
  EXPECT_EQ(session(ProcessEnded{true}), "release, write 3");
  EXPECT_EQ(session(Released{}), "");
  EXPECT_EQ(session(WriteEnded{3, false}), "drop 3, release, write 5");
  EXPECT_EQ(session(WriteEnded{5, true}), "drop 5, release");
  EXPECT_FALSE(IsOver(session.state));
  session(Released{});
  session(Released{});
  EXPECT_TRUE(IsOver(session.state));
}

TEST(SessionMachine, ATicketIsSubmittedOnceAndNotAfterLaterOnesHaveBegun) {
  Session session;
  session(Submitted{0, false});
  session(Passed{2});
  EXPECT_FALSE(CanBeSubmitted(session.state, 0));
  EXPECT_TRUE(CanBeSubmitted(session.state, 1));
  EXPECT_FALSE(CanBeSubmitted(session.state, 2));
  session(ConnectionEnded{});
  EXPECT_FALSE(CanBeSubmitted(session.state, 1));
}

TEST(SessionMachine, DeferredSavesAreKeptUntilTheTrainerEndsAndHoldNoTicketBack) {
  Session session;
  EXPECT_EQ(session(Submitted{0, true}), "");
  EXPECT_EQ(session(Submitted{1, true}), "");
  EXPECT_EQ(session(Submitted{2, false}), "write 2");
  EXPECT_EQ(Pending(session.state), 1U);
  EXPECT_EQ(session(Forgotten{0}), "drop 0");
  EXPECT_EQ(session(WriteEnded{2, false}), "drop 2");
  EXPECT_EQ(Pending(session.state), 0U);
  EXPECT_EQ(session(ProcessEnded{false}), "agree");
  EXPECT_EQ(Pending(session.state), 1U);
}

TEST(SessionMachine, OfTheDeferredSavesThatAllRanksHaveTheNewestIsWritten) {
  Session session;
  for (const std::uint64_t ticket : {0, 1, 2}) {
    session(Submitted{ticket, true});
  }
  session(ProcessEnded{false});
  EXPECT_EQ(session(Agreed{{1, 0}}), "drop 2, write deferred 1");
  EXPECT_EQ(session(WriteEnded{1, true}), "drop 1, drop 0");
  EXPECT_TRUE(IsOver(session.state));
}

TEST(SessionMachine, TwoSavesOfOneNameAreNotWrittenAtOnce) {
  Session session;
  session(Submitted{0, false, "a"});
  session(Submitted{1, true, "a"});
  session(ProcessEnded{false});
  EXPECT_EQ(session(Agreed{{1}}), "");
  EXPECT_EQ(session(WriteEnded{0, true}), "drop 0, write deferred 1");
}

TEST(SessionMachine, WhereTheNewestCannotBeWrittenTheOneBeforeItIs) {
  Session session;
  session(Submitted{0, true});
  session(Submitted{1, true});
  session(ProcessEnded{false});
  EXPECT_EQ(session(Agreed{{1, 0}}), "write deferred 1");
  EXPECT_EQ(session(WriteEnded{1, false}), "drop 1, write deferred 0");
}

TEST(SessionMachine, WhereTheRanksDoNotAgreeNoDeferredSaveIsWritten) {
  Session session;
  session(Submitted{0, true});
  session(ProcessEnded{false});
  EXPECT_FALSE(IsOver(session.state));
  EXPECT_EQ(session(Agreed{}), "drop 0");
  EXPECT_TRUE(IsOver(session.state));
}

TEST(SessionMachine, ASaveThatIsWrittenReplacesTheDeferredOnesBeforeIt) {
  Session session;
  session(Submitted{0, true});
  session(Submitted{1, false});
  session(Submitted{2, true});
  EXPECT_EQ(session(WriteEnded{1, true}), "drop 1, drop 0");
  session(Submitted{3, false});
  session(ProcessEnded{false});
  EXPECT_EQ(session(Agreed{{2}}), "write deferred 2");
  EXPECT_EQ(session(WriteEnded{3, true}), "drop 3, stop 2");
}

TEST(SessionMachine, ATrainerThatIsSilentForLongIsLeftWithItsMemory) {
  Session session;
  session(Submitted{0, false});
  session(Submitted{1, true});
  session(Submitted{2, false});
  EXPECT_EQ(session(ConnectionEnded{}, 10s), "");
  EXPECT_EQ(session(TimePassed{}, 69s), "");
  EXPECT_EQ(WaitsUntil(session.state, false), std::nullopt);
  EXPECT_EQ(session(TimePassed{}, 70s), "drop 1, stop 0, stop 2, forget held");
  EXPECT_EQ(session.state.trainer, TrainerState::kBack);
  EXPECT_EQ(session(WriteEnded{0, false}, 71s), "drop 0, write 2");  // It fails, and says so.
  EXPECT_EQ(session(WriteEnded{2, false}, 71s), "drop 2");
  EXPECT_TRUE(IsOver(session.state));
}

TEST(SessionMachine, MemoryIsNotTouchedOnceATrainerThatSeemedGoneAttachesItAgain) {
  Session session;
  session(Submitted{0, false});
  session(Submitted{1, true});
  session(ProcessEnded{true});
  session(Released{});
  EXPECT_EQ(session(Abandoned{}), "drop 1, stop 0, forget held");
  EXPECT_EQ(session(WriteEnded{0, false}), "drop 0");
  EXPECT_EQ(session(Agreed{}), "");
  EXPECT_TRUE(IsOver(session.state));
}

TEST(SessionMachine, RanksThatSentNothingAreWaitedForAsLongAsTheTimeoutFromTheTrainersEnd) {
  Session session;
  session(Submitted{0, false});
  session(Submitted{1, true});
  EXPECT_EQ(WaitsUntil(session.state, false), std::nullopt);
  session(ProcessEnded{false}, 5s);
  EXPECT_EQ(WaitsUntil(session.state, false), kStart + 65s);
  EXPECT_EQ(WaitsUntil(session.state, true), kStart + 65s);
  session(Agreed{{1}}, 30s);
  EXPECT_EQ(WaitsUntil(session.state, false), kStart + 65s);
  EXPECT_EQ(WaitsUntil(session.state, true), kStart + 90s);
}

}  // namespace
}  // namespace varve::session_machine_test
