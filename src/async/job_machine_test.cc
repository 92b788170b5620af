#include "async/job_machine.h"

#include <vector>

#include <gtest/gtest.h>

namespace varve {
namespace {

/// A save that has taken these events.
JobState After(const std::vector<JobEvent>& events) {
  JobState state;
  for (const JobEvent event : events) {
    (void)Step(&state, event);
  }
  return state;
}

TEST(JobMachine, TheCallerIsToldThatTensorsMayChangeWhenTheCopyHasEnded) {
  JobState state = After({JobEvent::kPlanned});
  EXPECT_FALSE(Step(&state, JobEvent::kMayWrite).tell) << "in waves the copy goes on";
  EXPECT_FALSE(Step(&state, JobEvent::kWriteBegins).tell);
  EXPECT_TRUE(Step(&state, JobEvent::kCopyEnded).tell);
  const JobActions end = Step(&state, JobEvent::kWriteEnded);
  EXPECT_TRUE(end.deliver);
  EXPECT_FALSE(end.tell) << "told once";
}

TEST(JobMachine, ASaveThatFailsBeforeItIsPlannedTellsTheCallerWithTheOutcome) {
  JobState state;
  const JobActions end = Step(&state, JobEvent::kWriteEnded);
  EXPECT_TRUE(end.tell);
  EXPECT_TRUE(end.deliver);
  EXPECT_FALSE(Step(&state, JobEvent::kCopyEnded).tell);
}

TEST(JobMachine, ASaveGivenUpWhileAThreadCopiesTellsTheCallerOnlyWhenThatThreadHasEnded) {
  JobState state = After({JobEvent::kPlanned, JobEvent::kDeadlinePassed});
  const JobActions given_up = Step(&state, JobEvent::kGracePassed);
  EXPECT_TRUE(given_up.deliver);
  EXPECT_FALSE(given_up.tell) << "the tensors are still being read";
  EXPECT_EQ(state.deadline, DeadlineState::kStuck);
  EXPECT_TRUE(Step(&state, JobEvent::kCopyEnded).tell);
}

TEST(JobMachine, TheOutcomeIsDeliveredOnce) {
  JobState state = After({JobEvent::kPlanned, JobEvent::kCopyEnded, JobEvent::kGracePassed});
  EXPECT_FALSE(Step(&state, JobEvent::kWriteEnded).deliver);
  (void)Step(&state, JobEvent::kDeadlinePassed);
  EXPECT_EQ(state.deadline, DeadlineState::kStuck);
}

TEST(JobMachine, ADeadlineAfterTheEndDoesNothing) {
  JobState state = After(
      {JobEvent::kPlanned, JobEvent::kCopyEnded, JobEvent::kWriteBegins, JobEvent::kWriteEnded});
  (void)Step(&state, JobEvent::kDeadlinePassed);
  EXPECT_FALSE(Step(&state, JobEvent::kGracePassed).deliver);
  EXPECT_EQ(state.deadline, DeadlineState::kAhead);
}

TEST(JobMachine, EveryOrderOfEventsTellsOnceDeliversOnceAndNeverLeavesTheEnd) {
  constexpr int kEvents = 7;
  constexpr int kLength = 5;
  constexpr int kOrders = 7 * 7 * 7 * 7 * 7;
  for (int order = 0; order < kOrders; ++order) {
    JobState state;
    int told = 0;
    int delivered = 0;
    for (int i = 0, rest = order; i < kLength; ++i, rest /= kEvents) {
      const bool ended = state.write == WriteState::kEnded;
      const bool copied = state.copy == CopyState::kEnded;
      const auto event = static_cast<JobEvent>(rest % kEvents);
      const JobActions actions = Step(&state, event);
      told += actions.tell ? 1 : 0;
      delivered += actions.deliver ? 1 : 0;
      ASSERT_LE(told, 1) << order;
      ASSERT_LE(delivered, 1) << order;
      ASSERT_TRUE(!ended || state.write == WriteState::kEnded) << order;
      ASSERT_TRUE(!copied || state.copy == CopyState::kEnded || event == JobEvent::kPlanned)
          << order;
      ASSERT_EQ(state.write == WriteState::kEnded, delivered == 1) << order;
    }
  }
}

}  // namespace
}  // namespace varve
