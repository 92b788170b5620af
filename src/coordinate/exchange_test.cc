#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/status_matchers.h"
#include "varve/coordinator.h"

namespace varve::exchange_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::LongDeadline;
using test::OnEveryRank;
using test::ShortDeadline;
using test::SoonDeadline;
using test::World;

using Payloads = std::vector<std::string>;

/// Answers each rank with its own payload, twice.
Result<Payloads> Double(Payloads payloads) {
  for (std::string& payload : payloads) {
    payload += payload;
  }
  return payloads;
}

Result<std::string> ExchangeRank(Coordinator& rank, Deadline deadline) {
  return Exchange(rank, "counting", std::to_string(rank.rank()), deadline, Double);
}

TEST(Exchange, GivesEachRankItsOwnReply) {
  const World world = MakeInProcessCoordinators(5);
  const auto results =
      OnEveryRank(world, [](Coordinator& rank) { return ExchangeRank(rank, LongDeadline()); });
  for (std::size_t rank = 0; rank < world.size(); ++rank) {
    ASSERT_TRUE(IsOk(*results[rank]));
    EXPECT_EQ(**results[rank], std::to_string(rank) + std::to_string(rank));
  }
}

// Seed 19925 of the simulator: rank 0 took what rank 1 brought to the save after, and a checkpoint
// of two saves became visible.
TEST(Exchange, ARankThatHasGivenAnExchangeUpBringsOnlyErrorsToTheNext) {
  const World world = MakeInProcessCoordinators(2);
  EXPECT_FALSE(ExchangeRank(*world[1], ShortDeadline()).ok()) << "rank 0 stands still";
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(FailsWith(ExchangeRank(*world[1], LongDeadline()), StatusCode::kUnavailable,
                          {"out of step"}));
  }
  EXPECT_TRUE(IsOk(ExchangeRank(*world[0], LongDeadline()))) << "what rank 1 has brought is there";
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(FailsWith(ExchangeRank(*world[0], LongDeadline()), StatusCode::kUnavailable,
                          {"rank 1", "out of step"}));
  }
}

TEST(Exchange, ACoordinatorThatHasGivenARankUpTellsAllRanksFromThenOn) {
  const World world = MakeInProcessCoordinators(2);
  EXPECT_TRUE(
      FailsWith(ExchangeRank(*world[0], ShortDeadline()), StatusCode::kUnavailable, {"rank 1"}));
  const auto results =
      OnEveryRank(world, [](Coordinator& rank) { return ExchangeRank(rank, LongDeadline()); });
  EXPECT_TRUE(FailsWith(*results[0], StatusCode::kUnavailable, {"out of step"}));
  EXPECT_TRUE(FailsWith(*results[1], StatusCode::kUnavailable)) << "its late call has failed";
  EXPECT_TRUE(FailsWith(ExchangeRank(*world[1], LongDeadline()), StatusCode::kUnavailable,
                        {"out of step"}));
}

TEST(Exchange, WithoutADeadlineWaitsForTheLastRank) {
  const World world = MakeInProcessCoordinators(2);
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(rank.rank() == 0 ? 50 : 0));
    return ExchangeRank(rank, Deadline::max());
  });
  EXPECT_TRUE(IsOk(*results[0]));
  EXPECT_TRUE(IsOk(*results[1]));
}

TEST(Exchange, CombinesOnRankZeroOnlyWithThePayloadsByRank) {
  const World world = MakeInProcessCoordinators(3);
  std::atomic<int> calls{0};
  const auto results = OnEveryRank(world, [&](Coordinator& rank) {
    return Exchange(rank, "x", std::string(1, static_cast<char>('a' + rank.rank())), LongDeadline(),
                    [&](Payloads payloads) -> Result<Payloads> {
                      ++calls;
                      EXPECT_EQ(rank.rank(), 0);
                      const std::string all = payloads[0] + payloads[1] + payloads[2];
                      return Payloads(3, all);
                    });
  });
  EXPECT_EQ(calls, 1);
  for (const auto& result : results) {
    EXPECT_EQ(**result, "abc");
  }
}

TEST(Exchange, CarriesAnyBytes) {
  const World world = MakeInProcessCoordinators(2);
  const std::string bytes("\0\xFF\x01 any", 7);
  const auto results = OnEveryRank(
      world, [&](Coordinator& rank) { return Exchange(rank, "x", bytes, LongDeadline(), Double); });
  EXPECT_EQ(**results[1], bytes + bytes);
}

TEST(Exchange, CanBeRepeated) {
  const World world = MakeInProcessCoordinators(3);
  const auto results = OnEveryRank(world, [](Coordinator& rank) -> Status {
    for (int i = 0; i < 100; ++i) {
      auto reply = Exchange(rank, "x", std::to_string(i), LongDeadline(), Double);
      VARVE_RETURN_IF_ERROR(reply.status());
      if (*reply != std::to_string(i) + std::to_string(i)) {
        return Internal("reply of another round: " + *reply);
      }
    }
    return Status::Ok();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(IsOk(*result));
  }
}

TEST(Exchange, OfASingleProcessCallsCombine) {
  const auto alone = MakeSingleProcessCoordinator();
  EXPECT_EQ(*Exchange(*alone, "x", std::string("ab"), LongDeadline(), Double), "abab");
  EXPECT_TRUE(FailsWith(Exchange(*alone, "saving", NotFound("gone"), LongDeadline(), Double),
                        StatusCode::kNotFound, {"saving: rank 0: gone"}));
}

TEST(Exchange, AnErrorOnOneRankArrivesAtAllWithItsNumberAndCause) {
  for (int failing = 0; failing < 3; ++failing) {
    const World world = MakeInProcessCoordinators(3);
    std::atomic<int> combined{0};
    const auto results = OnEveryRank(world, [&](Coordinator& rank) {
      const Contribution mine = rank.rank() == failing
                                    ? Contribution({StatusCode::kOutOfSpace, "disk is full"})
                                    : Contribution("fine");
      return Exchange(rank, "writing", mine, LongDeadline(), [&](Payloads payloads) {
        ++combined;
        return Double(std::move(payloads));
      });
    });
    EXPECT_EQ(combined, 0);
    for (const auto& result : results) {
      EXPECT_TRUE(FailsWith(*result, StatusCode::kOutOfSpace,
                            {"writing: rank " + std::to_string(failing) + ": disk is full"}));
      EXPECT_EQ(result->status().message(), results[0]->status().message());
    }
  }
}

TEST(Exchange, NamesEveryFailingRank) {
  const World world = MakeInProcessCoordinators(5);
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    const bool fails = rank.rank() % 2 == 1;
    return Agree(rank, "writing",
                 fails ? DataLoss("cause " + std::to_string(rank.rank())) : Status::Ok(),
                 LongDeadline());
  });
  for (const auto& result : results) {
    EXPECT_TRUE(FailsWith(*result, StatusCode::kDataLoss, {"rank 1: cause 1", "rank 3: cause 3"}));
    EXPECT_EQ(result->message().find("rank 2"), std::string::npos);
  }
}

TEST(Exchange, GivesEveryRankTheErrorOfEachRankThatFailed) {
  const World world = MakeInProcessCoordinators(5);
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    Status mine;
    if (rank.rank() == 1) {
      mine = DataLoss("torn").With({.path = "/run/a", .system_error = 5});
    } else if (rank.rank() == 3) {
      mine = NotFound("missing");
    }
    const Status first = Agree(rank, "reading", mine, LongDeadline());
    // The ranks' own errors, and not what they made of them, when the error is exchanged again.
    return Agree(rank, "ending", first, LongDeadline());
  });
  const std::vector<RankFailure> expected = {{1, StatusCode::kDataLoss, "torn", "/run/a", 5},
                                             {3, StatusCode::kNotFound, "missing"}};
  for (const auto& result : results) {
    EXPECT_EQ(result->details().failures, expected);
  }
}

TEST(Exchange, KeepsWhatAnEarlierExchangeHasPutTogetherBesideItsFirstRanksOwnError) {
  const World world = MakeInProcessCoordinators(3);
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    ErrorDetails before{.rank = 2};
    before.failures = {{2, StatusCode::kDataLoss, "torn"}, {1, StatusCode::kDataLoss, "cut"}};
    const Status mine = rank.rank() == 2 ? DataLoss("another") : DataLoss("both").With(before);
    return Agree(rank, "reading", mine, LongDeadline());
  });
  for (const auto& result : results) {
    EXPECT_TRUE(FailsWith(*result, StatusCode::kDataLoss, {"both", "another"}));
    EXPECT_EQ(result->details().failures.size(), 2U);
  }
}

TEST(Exchange, NamesTheRankThatFailedAndNoneThatWasNotWaitedForBecauseOfIt) {
  const World world = MakeInProcessCoordinators(4);
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    Status mine;
    if (rank.rank() == 1) {
      mine = Unavailable("was not waited for").With({.rank = 3});
    } else if (rank.rank() == 3) {
      mine = DataLoss("torn");
    }
    return Agree(rank, "reading", mine, LongDeadline());
  });
  for (const auto& result : results) {
    EXPECT_TRUE(FailsWith(*result, StatusCode::kDataLoss, {"reading: rank 3: torn"}));
    EXPECT_EQ(result->message().find("waited"), std::string::npos);
    EXPECT_EQ(result->details().rank, 3);
    EXPECT_EQ(result->details().failures,
              (std::vector<RankFailure>{{3, StatusCode::kDataLoss, "torn"}}));
  }
}

TEST(Exchange, CountsTheRanksBeyondTheFirstSixteen) {
  const World world = MakeInProcessCoordinators(20);
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    return Agree(rank, "writing", DataLoss("torn " + std::to_string(rank.rank())), LongDeadline());
  });
  EXPECT_TRUE(
      FailsWith(*results[7], StatusCode::kDataLoss, {"rank 15: torn 15; and 4 more ranks"}));
}

TEST(Exchange, NamesRanksThatSayTheSameTogether) {
  const World world = MakeInProcessCoordinators(20);
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    return Agree(rank, "writing", DataLoss(rank.rank() == 7 ? "torn" : "disk is full"),
                 LongDeadline());
  });
  EXPECT_EQ(results[7]->message(), "writing: each of ranks 0-6, 8-19: disk is full; rank 7: torn");
  EXPECT_EQ(results[7]->details().failures.size(), 20U);
}

TEST(Exchange, AFailureOfCombineReachesEveryRank) {
  const World world = MakeInProcessCoordinators(3);
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    return Exchange(rank, "settling", std::string(), LongDeadline(),
                    [](Payloads) -> Result<Payloads> { return InvalidArgument("overlap"); });
  });
  for (const auto& result : results) {
    EXPECT_TRUE(FailsWith(*result, StatusCode::kInvalidArgument, {"settling: overlap"}));
  }
}

// ---- ranks that are lost or late ----

TEST(Exchange, NamesADeadRankOnAllOthers) {
  World world = MakeInProcessCoordinators(4);
  world[2].reset();
  const auto results =
      OnEveryRank(world, [](Coordinator& rank) { return ExchangeRank(rank, LongDeadline()); });
  for (const std::size_t rank : {0, 1, 3}) {
    EXPECT_TRUE(FailsWith(*results[rank], StatusCode::kUnavailable, {"counting: rank 2: is lost"}));
  }
}

TEST(Exchange, NoticesARankThatDiesWhileItIsAwaited) {
  World world = MakeInProcessCoordinators(3);
  std::jthread dies;
  auto victim = std::move(world[1]);
  std::atomic<bool> waiting{false};
  dies = std::jthread([&] {
    while (!waiting) {
      std::this_thread::yield();
    }
    victim.reset();
  });
  const auto results = OnEveryRank(world, [&](Coordinator& rank) {
    waiting = true;
    return ExchangeRank(rank, LongDeadline());
  });
  for (const std::size_t rank : {0, 2}) {
    EXPECT_TRUE(FailsWith(*results[rank], StatusCode::kUnavailable, {"rank 1: is lost"}));
  }
}

TEST(Exchange, NamesEveryRankThatMissesTheDeadline) {
  const World world = MakeInProcessCoordinators(4);
  const auto results =
      OnEveryRank(world, [](Coordinator& rank) -> std::optional<Result<std::string>> {
        if (rank.rank() == 1 || rank.rank() == 3) {
          return std::nullopt;  // Alive, but busy elsewhere.
        }
        return ExchangeRank(rank, SoonDeadline());
      });
  for (const std::size_t rank : {0, 2}) {
    EXPECT_TRUE(FailsWith(**results[rank], StatusCode::kUnavailable,
                          {"each of ranks 1, 3: no answer before the deadline"}));
  }
}

TEST(Exchange, ARankThatComesTooLateLearnsThatTheExchangeFailed) {
  const World world = MakeInProcessCoordinators(2);
  EXPECT_FALSE(ExchangeRank(*world[0], ShortDeadline()).ok());
  EXPECT_TRUE(FailsWith(ExchangeRank(*world[1], LongDeadline()), StatusCode::kUnavailable,
                        {"counting: rank 1: no answer before the deadline"}));
}

TEST(Exchange, TellsTheCauseRatherThanTheSilenceItLedTo) {
  World world = MakeInProcessCoordinators(3);
  world[1].reset();
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    return Agree(rank, "writing",
                 rank.rank() == 2 ? Status(StatusCode::kOutOfSpace, "disk is full") : Status::Ok(),
                 LongDeadline());
  });
  EXPECT_TRUE(
      FailsWith(*results[0], StatusCode::kOutOfSpace, {"rank 1: is lost", "rank 2: disk is full"}));
}

TEST(Exchange, GivesAllRanksTheDetailsOfTheErrorWhoseCodeTheyGet) {
  World world = MakeInProcessCoordinators(3);
  world[1].reset();  // Lost, which tells less than what rank 2 reports.
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    const Status full = Status(StatusCode::kOutOfSpace, "disk is full")
                            .With({.path = "/run/f", .system_error = ENOSPC});
    return Agree(rank, "writing", rank.rank() == 2 ? full : Status::Ok(), LongDeadline());
  });
  for (const std::size_t rank : {0, 2}) {
    const ErrorDetails& details = results[rank]->details();
    EXPECT_EQ(details.path, "/run/f") << rank;
    EXPECT_EQ(details.rank, 2) << rank;
    EXPECT_EQ(details.system_error, ENOSPC) << rank;
    ASSERT_EQ(details.failures.size(), 2U) << rank;
    EXPECT_EQ(details.failures[0].code, StatusCode::kUnavailable) << rank;
    EXPECT_EQ(details.failures[1].code, StatusCode::kOutOfSpace) << rank;
  }
}

TEST(Exchange, NumbersTheRankThatIsLost) {
  World world = MakeInProcessCoordinators(3);
  world[1].reset();
  const auto results = OnEveryRank(world, [](Coordinator& rank) {
    return Agree(rank, "writing", Status::Ok(), LongDeadline());
  });
  EXPECT_EQ(results[0]->details().rank, 1);
  EXPECT_EQ(results[2]->details().rank, 1);
}

TEST(Exchange, TheDeathOfTheCoordinatorIsNamedAsRankZero) {
  World world = MakeInProcessCoordinators(3);
  world[0].reset();
  const auto results =
      OnEveryRank(world, [](Coordinator& rank) { return ExchangeRank(rank, LongDeadline()); });
  for (const std::size_t rank : {1, 2}) {
    EXPECT_TRUE(FailsWith(*results[rank], StatusCode::kUnavailable,
                          {"counting: rank 0 (coordinator)", "lost"}));
  }
}

TEST(Exchange, AFailedRankReportsItsOwnCauseWhenTheCoordinatorIsLostToo) {
  World world = MakeInProcessCoordinators(2);
  world[0].reset();
  EXPECT_TRUE(FailsWith(Agree(*world[1], "writing", DataLoss("torn"), LongDeadline()),
                        StatusCode::kDataLoss, {"writing: torn"}));
}

TEST(Agree, IsOkWhenAllRanksAre) {
  const World world = MakeInProcessCoordinators(4);
  const auto results = OnEveryRank(
      world, [](Coordinator& rank) { return Agree(rank, "x", Status::Ok(), LongDeadline()); });
  for (const auto& result : results) {
    EXPECT_TRUE(IsOk(*result));
  }
}

}  // namespace
}  // namespace varve::exchange_test
