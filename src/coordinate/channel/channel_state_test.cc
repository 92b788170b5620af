// Channels over a network and a clock that a seed drives: ranks miss calls, come late and die.

#include "coordinate/channel/channel_state.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/sanitized.h"
#include "support/simulated_channel.h"
#include "support/status_matchers.h"

namespace varve::channel_state_test {
namespace {

using simulated::kLimit;
using simulated::Rank;
using simulated::World;
using std::chrono::seconds;
using test::FailsWith;
using test::IsOk;

/// Claims about ranks that all connect to rank 0 (0), and about ranks with relays (their fan-out).
class ChannelOfRanks : public testing::TestWithParam<int> {
 protected:
  [[nodiscard]] World Make(int size, unsigned seed) const { return {size, seed, GetParam()}; }
};

INSTANTIATE_TEST_SUITE_P(Star, ChannelOfRanks, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(Relays, ChannelOfRanks, testing::Values(2));

std::vector<std::string> Steps(int from, int to) {
  std::vector<std::string> calls;
  for (int step = from; step < to; ++step) {
    calls.push_back("save step-" + std::to_string(step));
  }
  return calls;
}

TEST_P(ChannelOfRanks, RanksThatMakeTheSameCallsMakeAllOfThemTogether) {
  for (unsigned seed = 0; seed < 200 / test::kEvery; ++seed) {
    World world = Make(5, seed);
    for (Rank& rank : world.ranks) {
      rank.calls = Steps(0, 6);
    }
    world.Run();
    for (const Rank& rank : world.ranks) {
      for (const auto& [call, outcome] : rank.outcomes) {
        EXPECT_EQ(outcome, "done") << "seed " << seed << ": " << call;
      }
      EXPECT_EQ(rank.outcomes.size(), 6U);
    }
  }
}

TEST_P(ChannelOfRanks, ARankThatMissesCallsCostsTheOthersTheseAloneAndIsNamed) {
  for (unsigned seed = 0; seed < 200 / test::kEvery; ++seed) {
    World world = Make(4, seed);
    const int who = static_cast<int>(world.Random(4));
    const auto missed = static_cast<std::ptrdiff_t>(1 + world.Random(3));
    const auto count = static_cast<std::ptrdiff_t>(1 + world.Random(2));
    for (Rank& rank : world.ranks) {
      rank.calls = Steps(0, 8);
    }
    auto& mine = world.At(who).calls;
    mine.erase(mine.begin() + missed, mine.begin() + missed + count);
    world.Run();
    for (int number = 0; number < 4; ++number) {
      for (const auto& [call, outcome] : world.At(number).outcomes) {
        const auto step = static_cast<std::ptrdiff_t>(call.back() - '0');
        const bool fails = step >= missed && step < missed + count;
        EXPECT_EQ(outcome != "done", fails) << "seed " << seed << ": " << number << ": " << outcome;
        const bool says = outcome.find("has missed") != std::string::npos ||
                          outcome.find("without this rank") != std::string::npos;
        EXPECT_TRUE(!fails || says) << outcome;
      }
      for (const std::string& one : world.At(number).received) {
        EXPECT_TRUE(one.starts_with("save step-"));
      }
    }
  }
}

TEST_P(ChannelOfRanks, WhereOneRankMissesALoadAllAreTogetherAfterOneMoreCallAtMost) {
  for (unsigned seed = 0; seed < 100 / test::kEvery; ++seed) {
    for (const int who : {0, 1}) {
      World world = Make(3, seed);
      for (Rank& rank : world.ranks) {
        rank.calls = Steps(0, 4);
        if (rank.state->rank() != who) {
          rank.calls.insert(rank.calls.begin() + 1, "load best");
        }
      }
      world.Run();
      for (const Rank& rank : world.ranks) {
        std::vector<std::string> done = rank.done;
        ASSERT_GE(done.size(), 2U);
        EXPECT_EQ(std::vector(done.end() - 2, done.end()), Steps(2, 4)) << "seed " << seed;
      }
    }
  }
}

TEST_P(ChannelOfRanks, AnotherCallAtTheSamePlaceCostsAllRanksItAndNoFurtherOne) {
  for (unsigned seed = 0; seed < 100 / test::kEvery; ++seed) {
    World world = Make(3, seed);
    const auto who = static_cast<int>(world.Random(3));
    for (Rank& rank : world.ranks) {
      rank.calls = {"save step-1", rank.state->rank() == who ? "save a" : "save b", "save step-3"};
    }
    world.Run();
    for (const Rank& rank : world.ranks) {
      EXPECT_EQ(rank.done, (std::vector<std::string>{"save step-1", "save step-3"}));
    }
  }
}

/// Programs of 2 to 4 of 6 calls, each kind of name, many orders; then 3 calls that both make.
TEST_P(ChannelOfRanks, TwoRanksMeetAgainWhateverIsMissedByWhomAndInWhateverOrder) {
  const std::vector<std::string> names = {"save step-1", "load best",   "save step-2",
                                          "save step-3", "load step-3", "save step-4"};
  const std::vector<std::string> last = Steps(10, 13);
  std::map<std::ptrdiff_t, int> met;
  for (unsigned seed = 0; seed < 800 / test::kEvery; ++seed) {
    World world = Make(2, seed);
    for (Rank& rank : world.ranks) {
      while (rank.calls.size() < 2 || rank.calls.size() > 4) {
        rank.calls.clear();
        std::copy_if(names.begin(), names.end(), std::back_inserter(rank.calls),
                     [&](const std::string&) { return world.Random(2) == 0; });
      }
      rank.calls.insert(rank.calls.end(), last.begin(), last.end());
    }
    world.Run();
    const std::vector<std::string> done = world.At(0).done;
    EXPECT_EQ(done, world.At(1).done) << "seed " << seed;
    ASSERT_FALSE(done.empty());
    EXPECT_EQ(done.back(), last.back());
    ++met[std::count_if(done.begin(), done.end(), [](const std::string& one) {
      return one.starts_with("save step-1") && one.size() == 12;
    })];
  }
  EXPECT_GE(met.begin()->first, 2);
  EXPECT_GT(met[3], 700 / static_cast<int>(test::kEvery));
}

/// Found by a reader: by the name alone a rank took rank 0's earlier call of a name for its own.
TEST_P(ChannelOfRanks, ARankJoinsTheSecondCallOfANameThoughRank0HasLeftAFirstOne) {
  for (unsigned seed = 0; seed < 100 / test::kEvery; ++seed) {
    World world = Make(2, seed);
    world.At(0).calls = {"save step-1", "save step-5", "save step-5", "save step-6"};
    world.At(1).calls = {"save step-1", "save step-4", "save step-5", "save step-6"};
    world.interrupted = {0, "save step-5"};
    world.At(1).busy_until = {};
    world.Run();
    EXPECT_EQ(world.At(0).outcomes.at("save step-6"), "done") << "seed " << seed;
    EXPECT_EQ(world.At(0).done.size(), world.At(1).done.size());
  }
}

/// Programs of few names, which come again, with calls that one rank leaves at once by Ctrl-C.
TEST_P(ChannelOfRanks, RanksThatRepeatNamesMeetAgainAndAgreeOnWhichCallsWereDone) {
  const std::vector<std::string> names = {"save latest", "load latest", "save step-1"};
  const std::vector<std::string> last = Steps(10, 14);
  int met = 0;
  for (unsigned seed = 0; seed < 1000 / test::kEvery; ++seed) {
    World world = Make(3, seed);
    std::vector<std::string> program;
    for (int i = 0; i < 5; ++i) {
      program.push_back(names[world.Random(3)]);
    }
    for (Rank& rank : world.ranks) {
      rank.calls = program;
      if (world.Random(3) == 0) {
        rank.calls.erase(rank.calls.begin() + world.Random(5));
      }
      rank.calls.insert(rank.calls.end(), last.begin(), last.end());
    }
    world.interrupted = {static_cast<int>(world.Random(3)), names[world.Random(3)]};
    world.Run();
    const std::vector<std::string> done = world.At(0).done;
    EXPECT_EQ(done, world.At(1).done) << "seed " << seed;
    EXPECT_EQ(done, world.At(2).done) << "seed " << seed;
    ASSERT_FALSE(done.empty());
    EXPECT_EQ(done.back(), last.back()) << "seed " << seed;
    met += std::count(done.begin(), done.end(), last.front()) != 0 ? 1 : 0;
  }
  EXPECT_GT(met, 800 / static_cast<int>(test::kEvery));
}

TEST_P(ChannelOfRanks, ARankThatDiesIsNamedOnAllLivingRanksAndNoMessageIsTakenForAnotherCalls) {
  for (unsigned seed = 0; seed < 200 / test::kEvery; ++seed) {
    World world = Make(4, seed);
    const int victim = static_cast<int>(world.Random(4));
    for (Rank& rank : world.ranks) {
      rank.calls = Steps(0, rank.state->rank() == victim ? 2 : 3);
    }
    const bool at_once = world.Random(2) == 0;
    if (at_once) {
      world.Kill(victim);
    }
    world.Run();  // Without the third call of the victim the others wait for it...
    for (int number = 0; number < 4; ++number) {
      if (number == victim) {
        continue;
      }
      const Rank& rank = world.At(number);
      ASSERT_EQ(rank.outcomes.size(), 3U);
      const std::string& last = rank.outcomes.at("save step-2");
      const std::string name = "rank " + std::to_string(victim);
      EXPECT_NE(last.find(name), std::string::npos)
          << "seed " << seed << ", rank " << number << ": " << last;
      EXPECT_LE(rank.took.at("save step-2"), kLimit + 10);
      for (const auto& [call, outcome] : rank.outcomes) {
        EXPECT_TRUE(outcome != "done" || !at_once) << "seed " << seed << ": " << call;
      }
    }
  }
}

/// Ctrl-C on rank 0 or another one, with ranks that come before and after it.
TEST_P(ChannelOfRanks, ARankThatComesAfterRank0HasLeftFailsAtOnceThoughRank0ReadsNothing) {
  for (unsigned seed = 0; seed < 300 / test::kEvery; ++seed) {
    World world = Make(3, seed);
    const int who = static_cast<int>(world.Random(3));
    for (Rank& rank : world.ranks) {
      rank.calls = Steps(0, 3);
    }
    world.interrupted = {who, "save step-1"};
    world.Run();
    for (Rank& rank : world.ranks) {
      ASSERT_EQ(rank.outcomes.size(), 3U);
      EXPECT_EQ(rank.outcomes.at("save step-0"), "done");
      EXPECT_NE(rank.outcomes.at("save step-1").find("interrupted"), std::string::npos)
          << "seed " << seed << ": " << rank.outcomes.at("save step-1");
      EXPECT_LT(rank.took.at("save step-1"), 4) << "seed " << seed;
      EXPECT_EQ(rank.outcomes.at("save step-2"), "done") << "seed " << seed;
    }
  }
}

TEST(ChannelState, Rank0GivesUpAtTheEarliestLimitOfTheRanksThatHaveCome) {
  ChannelState state(0, 3, seconds(30));
  ChannelState other(1, 3, seconds(30));
  state.Connected(1);
  state.Connected(2);
  other.Connected(0);
  const TimePoint start{};
  state.Begin("save x", 100, start);
  other.Begin("save x", 7, start);
  for (auto& [to, frame] : other.TakeFrames()) {
    state.Arrived(1, std::move(frame), start);
  }
  state.Await(2, 100, start);
  TimePoint again{};
  EXPECT_FALSE(state.Poll(false, start + seconds(6), &again));
  EXPECT_EQ(again, start + seconds(7));
  const auto late = state.Poll(false, start + seconds(7), &again);
  ASSERT_TRUE(late);
  EXPECT_TRUE(FailsWith(*late, StatusCode::kUnavailable, {"did not come", "100 s"}));
}

/// Brings all frames of each of two ranks to the other, until there are none.
void Deliver(ChannelState* zero, ChannelState* one, TimePoint now) {
  for (bool any = true; any;) {
    any = false;
    for (ChannelState* from : {zero, one}) {
      for (auto& [to, frame] : from->TakeFrames()) {
        (from == zero ? one : zero)->Arrived(from->rank(), std::move(frame), now);
        any = true;
      }
    }
  }
}

/// As names do that are made of each rank's clock. The training's own collectives wait meanwhile.
TEST(ChannelState, ARankWhoseNameIsAnotherForGoodIsWaitedForForAMinuteAndNotForTheWholeLimit) {
  for (const int first : {0, 1}) {
    ChannelState zero(0, 2, seconds(3600));
    ChannelState one(1, 2, seconds(3600));
    zero.Connected(1);
    one.Connected(0);
    const TimePoint start{};
    const auto name = [&](int rank) { return rank == first ? "save t-100" : "save t-101"; };
    zero.Begin(name(0), 1800, start);
    one.Begin(name(1), 1800, start);
    Deliver(&zero, &one, start);
    ChannelState& fails = first == 0 ? zero : one;
    ChannelState& waits = first == 0 ? one : zero;
    TimePoint again{};
    fails.Await(waits.rank(), 1800, start);
    const auto failed = fails.Poll(false, start, &again);
    ASSERT_TRUE(failed);
    EXPECT_TRUE(FailsWith(*failed, StatusCode::kUnavailable,
                          {"save t-100", "save t-101", "of the same names, in the same order"}));
    fails.End("failed", -1);
    Deliver(&zero, &one, start);
    waits.Await(fails.rank(), 1800, start);
    EXPECT_FALSE(waits.Poll(false, start + seconds(59), &again));
    const auto given_up = waits.Poll(false, start + seconds(60), &again);
    ASSERT_TRUE(given_up);
    EXPECT_TRUE(FailsWith(*given_up, StatusCode::kUnavailable, {"has made another call"}));
    waits.End("waited", -1);
    Deliver(&zero, &one, start);
    zero.Begin("save end", 1800, start);
    one.Begin("save end", 1800, start);
    Deliver(&zero, &one, start);
    zero.Await(1, 1800, start);
    EXPECT_FALSE(zero.Poll(false, start + seconds(100), &again));  // Together again.
    EXPECT_TRUE(IsOk(one.Send(0, "hello")));
    Deliver(&zero, &one, start);
    EXPECT_TRUE(zero.Poll(false, start + seconds(100), &again));
  }
}

TEST(ChannelState, AWaitIsLoggedAtDoublingIntervalsWithTheRanksThatAreWaitedFor) {
  ChannelState state(0, 4, seconds(30));
  const TimePoint start{};
  state.Begin("save x", 1000, start);
  state.Await(1, 1000, start);
  TimePoint again = start;
  std::vector<std::string> lines;
  while (again < start + seconds(250)) {
    EXPECT_FALSE(state.Poll(false, again, &again));
    for (std::string& line : state.TakeLines()) {
      lines.push_back(std::move(line));
    }
  }
  ASSERT_EQ(lines.size(), 4U);  // After 30, 60, 120 and 240 s.
  EXPECT_EQ(lines.front(),
            "save x: rank 0 has waited 30 s for ranks 1-3 (not there yet); the time limit is 1000 "
            "s; every rank of the process group has to make this call");
  EXPECT_NE(lines.back().find("has waited 240 s"), std::string::npos) << lines.back();
}

TEST(ChannelState, TheAdviceToMakeTheCallFollowsFromDataNotFromWords) {
  ChannelState state(1, 2, seconds(30));
  state.Connected(0);
  const TimePoint start{};
  state.Begin("save x", 60, start);
  for (const bool absent : {false, true}) {
    const CallReport note{.text = "rank 0, which waits for rank 3 (not there yet)",
                          .waits_for_absent = absent};
    state.Arrived(0, {FrameKind::kNote, 1, EncodeFields(note)}, start);
    state.Await(0, 60, start);
    TimePoint again{};
    EXPECT_FALSE(state.Poll(false, start + seconds(30), &again));
    const auto lines = state.TakeLines();
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines[0].find("every rank of the process group") != std::string::npos, absent);
  }
}

TEST(ChannelState, NamesRanks) {
  EXPECT_EQ(NameRanks({7}), "rank 7");
  EXPECT_EQ(NameRanks({0, 1, 2, 3, 7}), "ranks 0-3, 7");
  EXPECT_EQ(NameRanks({1, 3}), "ranks 1, 3");
}

TEST(ChannelState, OfOneCallWaitsByTheDeadlinesOfItsWaits) {
  const TimePoint start{};
  const TimePoint later = start + seconds(3600);
  for (const bool one_call : {false, true}) {
    ChannelState state(0, 2, seconds(30), one_call);
    state.Connected(1);
    state.Begin("save in the background", kLimit, start);
    state.Await(1, kLimit, later);
    TimePoint again{};
    const auto received = state.Poll(false, later, &again);
    EXPECT_EQ(received.has_value(), !one_call);  // A call has ended long ago; this one has not.
  }
}

}  // namespace
}  // namespace varve::channel_state_test
