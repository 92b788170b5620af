// Ranks that die, and the files that stay when the exchange is over.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "coordinate/directory.h"
#include "storages/faulty.h"
#include "support/directory_ranks.h"
#include "support/ranks.h"
#include "support/status_matchers.h"

namespace varve::directory_end_test {
namespace {

using test::ExchangeRank;
using test::FailsWith;
using test::IsOk;
using test::LongDeadline;
using test::OnEveryRank;
using test::Place;
using test::ShortDeadline;
using test::World;

class DirectoryCoordinatorEnd : public test::DirectoryRanks {};
INSTANTIATE_TEST_SUITE_P(On, DirectoryCoordinatorEnd,
                         testing::Values(Place::kPosix, Place::kMemory), test::PlaceName);

// ---- the dead ----

TEST_P(DirectoryCoordinatorEnd, ASuccessorThatSendsAgainReplacesWhatTheDeadRankSent) {
  const auto zero = Rank(0, 2);
  ASSERT_TRUE(IsOk(Rank(1, 2)->Send(0, "of the dead", LongDeadline())));
  const auto successor = Rank(1, 2);
  ASSERT_TRUE(IsOk(successor->Send(0, "new", LongDeadline())));
  EXPECT_EQ(*zero->Receive(1, LongDeadline()), "new");
  ASSERT_TRUE(IsOk(zero->Send(1, "answer", LongDeadline())));
  EXPECT_EQ(*successor->Receive(0, LongDeadline()), "answer");
  EXPECT_EQ(Names(), std::vector<std::string>());
}

TEST_P(DirectoryCoordinatorEnd, WhatIsSentAgainAfterItWasReadIsNotReadTwice) {
  auto zero = Rank(0, 2);
  ASSERT_TRUE(IsOk(Rank(1, 2)->Send(0, "first", LongDeadline())));
  EXPECT_EQ(*zero->Receive(1, LongDeadline()), "first");
  const auto successor = Rank(1, 2);
  ASSERT_TRUE(IsOk(successor->Send(0, "first", LongDeadline())));
  EXPECT_TRUE(FailsWith(zero->Receive(1, ShortDeadline()), StatusCode::kUnavailable));
  ASSERT_TRUE(IsOk(successor->Send(0, "second", LongDeadline())));
  EXPECT_EQ(*zero->Receive(1, LongDeadline()), "second");
  zero.reset();
  EXPECT_TRUE(IsRemoved());
}

TEST_P(DirectoryCoordinatorEnd, AMessageIsSeenWholeOrNotAtAll) {
  FaultyStorage watched(storage());
  int looks = 0;
  watched.SetObserver([&](Operation /*operation*/, const std::string& /*name*/) {
    EXPECT_TRUE(
        FailsWith(storage().OpenForRead(Path("channel/0-from-1-to-0")), StatusCode::kNotFound));
    ++looks;
  });
  ASSERT_TRUE(IsOk(RankOn(watched, 1, 2)->Send(0, "message", LongDeadline())));
  EXPECT_GE(looks, 4);
  EXPECT_EQ(*Rank(0, 2)->Receive(1, LongDeadline()), "message");
}

TEST_P(DirectoryCoordinatorEnd, ARankThatDiesAnywhereInAnExchangeCanBeSucceeded) {
  int died = 0;
  for (bool finished = false; !finished;) {
    const std::string name = "channel" + std::to_string(died);
    Result<std::string> reply = Internal("not run");
    {
      const std::jthread coordinator([&] {
        const auto zero = Rank(0, 2, name);
        reply = ExchangeRank(*zero, LongDeadline());
      });
      FaultyStorage dying(storage());
      dying.StopAt(static_cast<std::uint64_t>(died));
      auto result = ExchangeRank(*RankOn(dying, 1, 2, name), LongDeadline());
      finished = !dying.stopped();
      if (dying.stopped()) {
        ++died;
        result = ExchangeRank(*Rank(1, 2, name), LongDeadline());
      }
      EXPECT_TRUE(IsOk(result));
      EXPECT_EQ(result.ok() ? *result : "", "1:01");
    }
    ASSERT_TRUE(IsOk(reply));
    EXPECT_EQ(*reply, "0:01");
    EXPECT_TRUE(IsRemoved(name));
  }
  // The directory, the part (in vain before it, too), its two writes, its name; then the answer.
  EXPECT_EQ(died, 7);
}

TEST_P(DirectoryCoordinatorEnd, ASuccessorOfRankZeroAnswersThoseWhoStillWait) {
  const auto one = Rank(1, 2);
  ASSERT_TRUE(IsOk(one->Send(0, "1", LongDeadline())));
  FaultyStorage dying(storage());
  dying.StopAt(0);
  EXPECT_FALSE(ExchangeRank(*RankOn(dying, 0, 2), ShortDeadline()).ok());
  auto successor = Rank(0, 2);
  EXPECT_EQ(*successor->Receive(1, LongDeadline()), "1");
  ASSERT_TRUE(IsOk(successor->Send(1, "answer", LongDeadline())));
  EXPECT_EQ(*one->Receive(0, LongDeadline()), "answer");
  successor.reset();
  EXPECT_TRUE(IsRemoved());
}

// ---- the end ----

TEST_P(DirectoryCoordinatorEnd, TheDirectoryIsRemovedAfterwards) {
  World world = Ranks(3);
  const auto results = OnEveryRank(
      world, [](Coordinator& rank) { return Agree(rank, "x", Status::Ok(), LongDeadline()); });
  for (const auto& result : results) {
    EXPECT_TRUE(IsOk(*result));
  }
  EXPECT_EQ(Names(), std::vector<std::string>());
  world.clear();
  EXPECT_TRUE(IsRemoved());
}

TEST_P(DirectoryCoordinatorEnd, RankZeroWaitsUntilItsLastAnswerIsRead) {
  auto zero = Rank(0, 2);
  const auto one = Rank(1, 2);
  ASSERT_TRUE(IsOk(zero->Send(1, "answer", LongDeadline())));
  std::atomic<bool> ended{false};
  std::jthread end([&] {
    zero.reset();
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(ended);
  EXPECT_EQ(*one->Receive(0, LongDeadline()), "answer");
  end.join();
  EXPECT_TRUE(IsRemoved());
}

TEST_P(DirectoryCoordinatorEnd, AnAnswerThatIsNotReadOutlivesRankZero) {
  auto zero = Rank(0, 2);
  ASSERT_TRUE(IsOk(zero->Send(1, "answer", LongDeadline())));
  const auto before = std::chrono::steady_clock::now();
  zero.reset();
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
  EXPECT_EQ(*Rank(1, 2)->Receive(0, LongDeadline()), "answer");
}

TEST_P(DirectoryCoordinatorEnd, StaleFilesOfDeadRanksGoWithTheDirectory) {
  auto zero = Rank(0, 2);
  ASSERT_TRUE(IsOk(storage().MakeDirectory(Path("channel"))));
  for (const std::string name : {"7-from-1-to-0", ".0-from-1-to-0.part", ".3-from-0-to-1.part"}) {
    ASSERT_TRUE(IsOk(WriteWholeFile(storage(), Path("channel/" + name), "left over")));
  }
  zero.reset();
  EXPECT_TRUE(IsRemoved());
}

TEST_P(DirectoryCoordinatorEnd, ADirectoryWithFilesOfOthersIsNotRemoved) {
  int number = 0;
  for (const std::string other : {"varve.json", "x0-from-1-to-0", "0-from-1-to-0x", "0-from-1-to-",
                                  "-from-1-to-0", ".0-from-1-to-0", "0-from-1"}) {
    const std::string name = "channel" + std::to_string(number++);
    auto zero = Rank(0, 2, name);
    ASSERT_TRUE(IsOk(storage().MakeDirectory(Path(name))));
    ASSERT_TRUE(IsOk(WriteWholeFile(storage(), Path(name + "/" + other), "precious")));
    ASSERT_TRUE(IsOk(Rank(1, 2, name)->Send(0, "x", LongDeadline())));
    zero.reset();
    EXPECT_EQ(Names(name).size(), 2U) << other;
  }
}

TEST_P(DirectoryCoordinatorEnd, OtherRanksRemoveNothing) {
  auto one = Rank(1, 2);
  ASSERT_TRUE(IsOk(one->Send(0, "x", LongDeadline())));
  one.reset();
  EXPECT_EQ(Names(), std::vector<std::string>{"0-from-1-to-0"});
}

}  // namespace
}  // namespace varve::directory_end_test
