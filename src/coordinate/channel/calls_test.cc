// Which call of rank 0 is which of another rank. channel_state_test.cc tries many orders.

#include "coordinate/channel/calls.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace varve::calls_test {
namespace {

using Kind = CallDecision::Kind;
using Names = std::vector<std::string>;

TEST(Calls, ALateRankFailsAloneAndNeverJoinsALaterCallOfTheSameName) {
  Calls calls;
  calls.Begin("save latest");
  calls.End("waited");
  calls.Begin("save latest");  // Rank 0 is in its second call when the other comes to its first.
  calls.Comes(1, "save latest");
  const CallDecision decision = calls.Decide();
  EXPECT_EQ(decision.kind, Kind::kOtherRankFails);
  EXPECT_EQ(decision.why, "the other ranks have ended this call without this rank: waited");
  calls.Comes(2, "save latest");
  EXPECT_EQ(calls.Decide().kind, Kind::kJoined);
}

TEST(Calls, ARankThatComesBetweenRank0sCallsIsNotTakenForLateToOneThatBothHaveLeft) {
  Calls calls;
  calls.Begin("save latest");
  calls.End("another rank had left it");
  calls.Comes(1, "save latest");
  calls.Leaves(1, "waited");
  calls.Comes(2, "save latest");
  EXPECT_EQ(calls.Decide().kind, Kind::kWait);
  calls.Begin("save latest");
  EXPECT_EQ(calls.Decide().kind, Kind::kJoined);
}

TEST(Calls, ALateRank0FailsAloneLikewise) {
  Calls calls;
  calls.Comes(1, "save latest");
  calls.Leaves(1, "waited");
  calls.Comes(2, "save latest");
  calls.Begin("save latest");
  EXPECT_EQ(calls.Decide().why, "has left this call before rank 0 came: waited");
  calls.End("late");
  calls.Begin("save latest");
  EXPECT_EQ(calls.Decide().number, 2U);
}

TEST(Calls, WhatNoNameDecidesWaitsForAVote) {
  for (const auto& [vote, kind] : {std::pair{-1, Kind::kRank0Fails}, {1, Kind::kOtherRankFails}}) {
    Calls calls;
    calls.Begin("load best");
    calls.Comes(1, "save step-3");
    EXPECT_EQ(calls.Decide().kind, Kind::kUnclear);
    EXPECT_EQ(calls.Decide(vote).kind, kind);
  }
}

TEST(Calls, ARankThatIsPastACallHasMissedIt) {
  Calls calls;
  calls.OtherIsPast("save step-15");
  calls.Begin("save step-10");
  const CallDecision decision = calls.Decide();
  EXPECT_EQ(decision.kind, Kind::kRank0Fails);
  EXPECT_TRUE(decision.why.starts_with("has missed save step-10")) << decision.why;
  calls.End(decision.why);
  calls.Begin("save step-20");
  EXPECT_EQ(calls.Decide().kind, Kind::kWait);
  calls.Comes(1, "save step-20");
  EXPECT_EQ(calls.Decide().missed_by_other, Names{"save step-10"});
}

TEST(Calls, Rank0ThatIsPastACallHasMissedIt) {
  Calls calls;
  calls.Comes(1, "save step-10");
  EXPECT_EQ(calls.Rank0IsPast("save step-10").kind, Kind::kWait);
  EXPECT_EQ(calls.Rank0IsPast("load best").kind, Kind::kWait);
  EXPECT_EQ(calls.Rank0IsPast("save step-15").number, 1U);
  calls.Begin("save step-20");
  calls.Comes(2, "save step-20");
  EXPECT_EQ(calls.Decide().missed_by_0, Names{"save step-10"});
}

TEST(Calls, ACallThatIsReportedTwiceCountsOnce) {
  Calls calls;
  for (int i = 0; i < 2; ++i) {
    calls.Comes(1, "save step-1");
    calls.Leaves(1, "waited");
  }
  calls.Begin("save step-1");
  EXPECT_EQ(calls.Decide().kind, Kind::kRank0Fails);
  calls.End("late");
  calls.Begin("save step-1");
  EXPECT_EQ(calls.Decide().kind, Kind::kWait);
}

TEST(Calls, NumbersInNamesOrderThem) {
  EXPECT_EQ(OrderOfCalls("save step-5", "save step-10"), -1);
  EXPECT_EQ(OrderOfCalls("save step-010", "save step-9"), 1);
  EXPECT_EQ(OrderOfCalls("save step-7", "save step-07"), 0);
  EXPECT_EQ(OrderOfCalls("save step-5", "load step-10"), 0);
  EXPECT_EQ(OrderOfCalls("save step-5", "save step-5-final"), 0);
  EXPECT_EQ(OrderOfCalls("save 99999999999999999999999", "save 100000000000000000000000"), -1);
}

}  // namespace
}  // namespace varve::calls_test
