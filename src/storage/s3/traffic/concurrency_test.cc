#include "storage/s3/traffic/concurrency.h"

#include <deque>

#include <gtest/gtest.h>

namespace varve::s3::concurrency_test {
namespace {

void Answer(ConcurrencyState* state, ServerLoad load) { (void)End(state, Begin(state), load); }

TEST(Concurrency, BeginsAtTheMostOfTheSettings) {
  ConcurrencyState state = Unloaded(3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(MayBegin(state));
    (void)Begin(&state);
  }
  EXPECT_FALSE(MayBegin(state));
  EXPECT_EQ(Unloaded(0).limit, 1);
}

TEST(Concurrency, IsHalvedOnceForARoundOfRefusals) {
  ConcurrencyState state = Unloaded(16);
  std::deque<std::uint64_t> rounds;
  for (int i = 0; i < 16; ++i) {
    rounds.push_back(Begin(&state));
  }
  EXPECT_TRUE(End(&state, rounds[0], ServerLoad::kTooMuch));
  for (int i = 1; i < 16; ++i) {
    EXPECT_FALSE(End(&state, rounds[static_cast<std::size_t>(i)], ServerLoad::kTooMuch));
  }
  EXPECT_EQ(state.limit, 8);
  Answer(&state, ServerLoad::kTooMuch);
  EXPECT_EQ(state.limit, 4);
}

TEST(Concurrency, NeverFallsBelowOne) {
  ConcurrencyState state = Unloaded(4);
  for (int i = 0; i < 10; ++i) {
    Answer(&state, ServerLoad::kTooMuch);
  }
  EXPECT_EQ(state.limit, 1);
  EXPECT_TRUE(MayBegin(state));
}

TEST(Concurrency, GrowsByOneForAsManyGoodAnswersAsItAllows) {
  ConcurrencyState state = Unloaded(8);
  Answer(&state, ServerLoad::kTooMuch);
  ASSERT_EQ(state.limit, 4);
  for (int i = 0; i < 3; ++i) {
    Answer(&state, ServerLoad::kTaken);
  }
  EXPECT_EQ(state.limit, 4);
  Answer(&state, ServerLoad::kTaken);
  EXPECT_EQ(state.limit, 5);
  for (int i = 0; i < 100; ++i) {
    Answer(&state, ServerLoad::kTaken);
  }
  EXPECT_EQ(state.limit, 8);
}

TEST(Concurrency, NoAnswerChangesNothing) {
  ConcurrencyState state = Unloaded(8);
  Answer(&state, ServerLoad::kTooMuch);
  for (int i = 0; i < 20; ++i) {
    Answer(&state, ServerLoad::kUnknown);
  }
  EXPECT_EQ(state.limit, 4);
  EXPECT_EQ(state.in_flight, 0);
}

// A server that takes 10 requests at once and refuses the others as soon as they come.
TEST(Concurrency, SettlesBelowWhatAServerTakes) {
  ConcurrencyState state = Unloaded(64);
  std::deque<std::uint64_t> taken;  // The rounds of those on their way.
  constexpr std::size_t kCapacity = 10;
  constexpr int kAnswers = 20'000;
  int refused = 0;
  double at_once = 0;
  for (int i = 0; i < kAnswers; ++i) {
    while (MayBegin(state)) {
      const std::uint64_t round = Begin(&state);
      if (taken.size() < kCapacity) {
        taken.push_back(round);
      } else {
        ++refused;
        (void)End(&state, round, ServerLoad::kTooMuch);
      }
    }
    at_once += static_cast<double>(taken.size());
    (void)End(&state, taken.front(), ServerLoad::kTaken);
    taken.pop_front();
    ASSERT_GE(state.limit, 1);
    ASSERT_LE(state.limit, 64);
  }
  EXPECT_LT(refused, kAnswers / 20);
  EXPECT_GT(at_once / kAnswers, 0.6 * kCapacity);
}

}  // namespace
}  // namespace varve::s3::concurrency_test
