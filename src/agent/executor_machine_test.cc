#include "agent/executor_machine.h"

#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace varve::executor_machine_test {
namespace {

namespace on = executor_event;

ExecutorState After(const std::vector<ExecutorEvent>& events) {
  ExecutorState state;
  for (const ExecutorEvent& event : events) {
    (void)Step(&state, event);
  }
  return state;
}

std::optional<std::uint64_t> RevokedBy(ExecutorState state, std::uint64_t ticket) {
  return Step(&state, on::GivenUp{ticket}).revoke;
}

using Tickets = std::vector<std::uint64_t>;

TEST(ExecutorMachine, MemoryIsUsedAgainWithoutTheAgentsConsentOnlyWhenItsLeaseIsRevoked) {
  const std::vector<ExecutorEvent> sent{on::Connected{0}, on::Submitted{0}};
  EXPECT_EQ(RevokedBy(After(sent), 0), 0U);
  std::vector<ExecutorEvent> events = sent;
  events.emplace_back(on::Answered{0, true});
  EXPECT_EQ(RevokedBy(After(events), 0), 0U);
  events.emplace_back(on::Ended{0});
  EXPECT_EQ(RevokedBy(After(events), 0), 0U) << "the agent may hold it for those who load it";
  events.emplace_back(on::Forgotten{0});
  EXPECT_EQ(RevokedBy(After(events), 0), std::nullopt);
}

TEST(ExecutorMachine, ATicketIsRevokedOnce) {
  ExecutorState state = After({on::Connected{0}, on::Submitted{0}});
  EXPECT_EQ(Step(&state, on::GivenUp{0}).revoke, 0U);
  EXPECT_EQ(Step(&state, on::GivenUp{0}).revoke, std::nullopt);
}

TEST(ExecutorMachine, WithTheConnectionAllTicketsAreLostAndLaterMessagesChangeNothing) {
  ExecutorState state = After(
      {on::Connected{0}, on::Submitted{0}, on::Answered{0, true}, on::Submitted{1}, on::Lost{}});
  EXPECT_FALSE(state.connected);
  for (const ExecutorEvent& late : {ExecutorEvent(on::Answered{1, true}),
                                    ExecutorEvent(on::Ended{0}), ExecutorEvent(on::Forgotten{0})}) {
    (void)Step(&state, late);
  }
  EXPECT_EQ(StateOf(state, 0), TicketState::kLost);
  EXPECT_EQ(StateOf(state, 1), TicketState::kLost);
  EXPECT_EQ(RevokedBy(state, 0), 0U) << "an agent that is lost may live";
}

TEST(ExecutorMachine, ASaveThatIsSubmittedWithoutAConnectionIsLost) {
  EXPECT_EQ(StateOf(After({on::Submitted{0}}), 0), TicketState::kLost);
}

TEST(ExecutorMachine, ANewAgentIsToldOfTheTicketsThatItNeedNotWaitFor) {
  ExecutorState state =
      After({on::Connected{0}, on::Submitted{0}, on::Passed{3}, on::Submitted{4}, on::Lost{}});
  EXPECT_EQ(Step(&state, on::Connected{1}).pass, (Tickets{3, 4}));
  EXPECT_TRUE(state.connected);
}

TEST(ExecutorMachine, ARefusedSaveIsNotAccepted) {
  const ExecutorState state = After({on::Connected{0}, on::Submitted{0}, on::Answered{0, false},
                                     on::Answered{0, true}, on::Ended{0}});
  EXPECT_EQ(StateOf(state, 0), TicketState::kRefused);
}

}  // namespace
}  // namespace varve::executor_machine_test
