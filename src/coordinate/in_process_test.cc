#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/status_matchers.h"
#include "varve/coordinator.h"

namespace varve::in_process_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::LongDeadline;
using test::ShortDeadline;

TEST(InProcess, RanksAreNumberedAndKnowTheirWorld) {
  const auto world = MakeInProcessCoordinators(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(world[static_cast<std::size_t>(rank)]->rank(), rank);
    EXPECT_EQ(world[static_cast<std::size_t>(rank)]->size(), 3);
  }
  EXPECT_TRUE(world[0]->is_coordinator());
  EXPECT_FALSE(world[1]->is_coordinator());
}

TEST(InProcess, MessagesOfOneSenderArriveInOrderAndApartFromOthers) {
  const auto world = MakeInProcessCoordinators(3);
  ASSERT_TRUE(IsOk(world[1]->Send(0, "1a", LongDeadline())));
  ASSERT_TRUE(IsOk(world[2]->Send(0, "2a", LongDeadline())));
  ASSERT_TRUE(IsOk(world[1]->Send(0, "1b", LongDeadline())));
  EXPECT_EQ(*world[0]->Receive(2, LongDeadline()), "2a");
  EXPECT_EQ(*world[0]->Receive(1, LongDeadline()), "1a");
  EXPECT_EQ(*world[0]->Receive(1, LongDeadline()), "1b");
}

TEST(InProcess, ReceiveGivesUpAtTheDeadline) {
  const auto world = MakeInProcessCoordinators(2);
  EXPECT_TRUE(FailsWith(world[0]->Receive(1, ShortDeadline()), StatusCode::kUnavailable,
                        {"no answer before the deadline"}));
}

TEST(InProcess, WhatARankSentBeforeItsDeathStillArrives) {
  auto world = MakeInProcessCoordinators(2);
  ASSERT_TRUE(IsOk(world[1]->Send(0, "last words", LongDeadline())));
  world[1].reset();
  EXPECT_EQ(*world[0]->Receive(1, LongDeadline()), "last words");
  EXPECT_TRUE(
      FailsWith(world[0]->Receive(1, LongDeadline()), StatusCode::kUnavailable, {"is lost"}));
  EXPECT_TRUE(
      FailsWith(world[0]->Send(1, "x", LongDeadline()), StatusCode::kUnavailable, {"rank 1"}));
}

TEST(SingleProcess, IsAWorldOfOne) {
  const auto alone = MakeSingleProcessCoordinator();
  EXPECT_EQ(alone->rank(), 0);
  EXPECT_EQ(alone->size(), 1);
  EXPECT_TRUE(FailsWith(alone->Send(1, "x", LongDeadline()), StatusCode::kInternal));
  EXPECT_TRUE(FailsWith(alone->Receive(1, LongDeadline()), StatusCode::kInternal));
}

}  // namespace
}  // namespace varve::in_process_test
