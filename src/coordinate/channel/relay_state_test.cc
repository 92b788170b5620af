// Relays over a network and a clock that a seed drives, and frames that become one.

#include "coordinate/channel/relay_state.h"

#include <chrono>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/sanitized.h"
#include "support/simulated_channel.h"

namespace varve::relay_state_test {
namespace {

using simulated::kLimit;
using simulated::Rank;
using simulated::World;

std::vector<std::string> Steps(int count) {
  std::vector<std::string> calls;
  for (int step = 0; step < count; ++step) {
    calls.push_back("save step-" + std::to_string(step));
  }
  return calls;
}

Frame MessageOf(const std::string& text, std::uint64_t call = 1) {
  return {FrameKind::kMessage, call, text};
}

std::vector<std::pair<std::string, std::string>> Told(std::vector<Frame> frames) {
  std::vector<std::pair<std::string, std::string>> told;
  for (const Frame& frame : frames) {
    const RoutedFrame routed = *DecodeFields<RoutedFrame>(frame.payload);
    std::string ranks;
    ForEachRank(routed.ranks, 1000, [&](int rank) { ranks += std::to_string(rank) + " "; });
    told.emplace_back(ranks, routed.frame.payload);
  }
  return told;
}

TEST(FrameMerger, EqualFramesBecomeOneAndNoFrameOfARankOvertakesAnother) {
  FrameMerger merger;
  merger.Add({{4, 1}}, MessageOf("a"));
  merger.Add({{2, 1}}, MessageOf("a"));
  merger.Add({{3, 1}}, MessageOf("b"));
  merger.Add({{3, 1}}, MessageOf("a"));  // Behind its "b": it may not join the first two.
  merger.Add({{2, 1}}, MessageOf("b"));
  merger.Add({{5, 2}}, MessageOf("a"));
  merger.Add({{2, 1}}, MessageOf("a", 2));
  using Told_ = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(Told(merger.Take()),
            (Told_{{"2 4 ", "a"}, {"2 3 ", "b"}, {"3 5 6 ", "a"}, {"2 ", "a"}}));
  EXPECT_TRUE(merger.empty());
}

TEST(FrameMerger, FramesOfARankKeepTheirOrderWhateverOthersSend) {
  for (unsigned seed = 0; seed < 300 / test::kEvery; ++seed) {
    std::mt19937 random(seed);
    FrameMerger merger;
    std::map<int, std::vector<std::string>> sent;
    std::map<int, std::vector<std::string>> taken;
    for (int i = 0; i < 60; ++i) {
      const auto first = static_cast<int>(random() % 6);
      const auto count = 1 + static_cast<int>(random() % 2);
      const std::string text(1, static_cast<char>('a' + random() % 3));
      merger.Add({{static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(count)}},
                 MessageOf(text));
      for (int rank = first; rank < first + count; ++rank) {
        sent[rank].push_back(text);
      }
    }
    for (const Frame& frame : merger.Take()) {
      const RoutedFrame routed = *DecodeFields<RoutedFrame>(frame.payload);
      ForEachRank(routed.ranks, 1000,
                  [&](int rank) { taken[rank].push_back(routed.frame.payload); });
    }
    ASSERT_EQ(taken, sent) << "seed " << seed;
  }
}

TEST(RelayState, TheLeaderGetsWhatIsSentToAllAfterTheOthers) {
  RelayState relay(4, 0, 16);
  relay.Connected(RelayState::kUp, {});
  for (const int rank : {4, 5, 6}) {
    relay.Connected(rank, {});
  }
  (void)relay.TakeFrames(TimePoint{});
  FrameMerger merger;
  merger.Add({{4, 3}}, MessageOf("end"));
  relay.Arrived(RelayState::kUp, merger.Take().front(), {});
  std::vector<int> order;
  for (const auto& [key, frame] : relay.TakeFrames(TimePoint{})) {
    order.push_back(key);
    EXPECT_EQ(frame.payload, "end");
  }
  EXPECT_EQ(order, (std::vector{5, 6, 4}));
}

TEST(RelayState, RanksBehindARelayAreLostWithItOnRank0AtEveryLevel) {
  const int size = 27;
  ChannelState rank_0(0, size, std::chrono::seconds(30));
  RelayedRanks relayed(&rank_0);
  RelayState upper(9, 0, size);
  RelayState lower(12, 9, size);
  TimePoint now{};
  const auto pass_up = [&] {
    now += std::chrono::milliseconds(5);
    for (const auto& [key, frame] : lower.TakeFrames(now)) {
      upper.Arrived(KeyOfRelay(12, size), frame, now);
    }
    now += std::chrono::milliseconds(5);
    for (const auto& [key, frame] : upper.TakeFrames(now)) {
      relayed.Arrived(KeyOfRelay(9, size), frame, now);
    }
  };
  upper.Connected(RelayState::kUp, now);
  lower.Connected(RelayState::kUp, now);
  for (const int rank : {9, 10, 11}) {
    upper.Connected(rank, now);
  }
  upper.Connected(KeyOfRelay(12, size), now);
  for (const int rank : {12, 13, 14}) {
    lower.Connected(rank, now);
  }
  pass_up();
  EXPECT_EQ(rank_0.connected(), 6);
  lower.Lost(14, now);
  pass_up();
  EXPECT_EQ(rank_0.connected(), 5);
  EXPECT_EQ(rank_0.WhyNotConnected(14), kLostReason);
  upper.Lost(KeyOfRelay(12, size), now);
  pass_up();
  EXPECT_EQ(rank_0.connected(), 3);
  EXPECT_EQ(rank_0.WhyNotConnected(12), kLostReason);
  EXPECT_EQ(rank_0.WhyNotConnected(13), LostWith(12));
  relayed.Lost(KeyOfRelay(9, size), kLostReason);
  EXPECT_EQ(rank_0.connected(), 0);
  EXPECT_EQ(rank_0.WhyNotConnected(9), kLostReason);
  EXPECT_EQ(rank_0.WhyNotConnected(11), LostWith(9));
}

TEST(RelayState, ARelayThatIsLateDoesNotTakeTheConnectionOfARankThatHasTurnedToRank0) {
  const int size = 9;
  ChannelState rank_0(0, size, std::chrono::seconds(30));
  RelayedRanks relayed(&rank_0);
  RelayState relay(3, 0, size);
  TimePoint now{};
  const auto pass_up = [&] {
    now += std::chrono::milliseconds(5);
    for (const auto& [key, frame] : relay.TakeFrames(now)) {
      relayed.Arrived(KeyOfRelay(3, size), frame, now);
    }
  };
  rank_0.Connected(4);  // By a connection of its own.
  relay.Connected(RelayState::kUp, now);
  relay.Connected(4, now);  // The one that it has given up.
  pass_up();
  EXPECT_FALSE(relayed.Has(4));
  relay.Lost(4, now);
  pass_up();
  EXPECT_TRUE(rank_0.IsConnected(4));
  relayed.DirectIsLost(4);
  EXPECT_FALSE(relayed.Has(4));

  relay.Connected(4, now);  // It is back before rank 0 has seen the end of its own connection.
  pass_up();
  EXPECT_FALSE(relayed.Has(4));
  rank_0.Lost(4, kLostReason);
  relayed.DirectIsLost(4);
  EXPECT_TRUE(relayed.Has(4));
  EXPECT_TRUE(rank_0.IsConnected(4));
}

TEST(RelayState, RanksBehindOneThatDiesAreLostWithItAndItIsNamed) {
  for (unsigned seed = 0; seed < 300 / test::kEvery; ++seed) {
    const int size = 5 + static_cast<int>(seed % 23);
    World world(size, seed, 2 + static_cast<int>(seed % 4));
    const auto victim = static_cast<int>(world.Random(size));
    for (Rank& rank : world.ranks) {
      rank.calls = Steps(rank.state->rank() == victim ? 1 : 2);
    }
    const bool at_once = world.Random(2) == 0;
    if (at_once) {
      world.Kill(victim);
    }
    world.Run();
    for (int number = 0; number < size; ++number) {
      if (number == victim) {
        continue;
      }
      const Rank& rank = world.At(number);
      ASSERT_EQ(rank.outcomes.size(), 2U) << "seed " << seed;
      const std::string& last = rank.outcomes.at("save step-1");
      EXPECT_NE(last.find("rank " + std::to_string(victim)), std::string::npos)
          << "seed " << seed << ", rank " << number << ": " << last;
      EXPECT_LE(rank.took.at("save step-1"), kLimit + 10) << "seed " << seed;
      EXPECT_EQ(rank.outcomes.at("save step-0") == "done", !at_once) << "seed " << seed;
    }
  }
}

TEST(RelayState, AMessageThatAllRanksSendReachesRank0InFramesOfSomeDozens) {
  const int size = 16'384;
  const RankTree tree{32};
  std::vector<ChannelState> ranks;
  std::map<int, RelayState> relays;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back(rank, size, std::chrono::seconds(30));
    if (tree.Leads(rank)) {
      relays.emplace(rank, RelayState(rank, tree.AboveOf(rank), size));
    }
  }
  RelayedRanks relayed(ranks.data());
  TimePoint now{};
  int into_0 = 0;
  // Relays with greater leaders are below: one pass from the last leader on carries all frames up.
  const auto pass_up = [&](TimePoint at) {
    for (auto relay = relays.rbegin(); relay != relays.rend(); ++relay) {
      const int above = tree.AboveOf(relay->first);
      for (auto& [key, frame] : relay->second.TakeFrames(at)) {
        if (key != RelayState::kUp) {
          EXPECT_EQ(frame.kind, FrameKind::kHello);  // The answer to one that has connected.
        } else if (above == 0) {
          ++into_0;
          relayed.Arrived(KeyOfRelay(relay->first, size), frame, at);
        } else {
          relays.at(above).Arrived(KeyOfRelay(relay->first, size), std::move(frame), at);
        }
      }
    }
  };
  for (int rank = 1; rank < size; ++rank) {
    ranks[static_cast<std::size_t>(rank)].Connected(0);
    if (const int leader = tree.LeaderOf(rank); leader == 0) {
      ranks[0].Connected(rank);
    } else {
      relays.at(leader).Connected(rank, now);
    }
  }
  pass_up(now + std::chrono::milliseconds(2));
  EXPECT_EQ(ranks[0].connected(), size - 1);
  into_0 = 0;
  ranks[0].Begin("save", kLimit, now);
  for (int rank = 1; rank < size; ++rank) {
    ChannelState& state = ranks[static_cast<std::size_t>(rank)];
    state.Begin("save", kLimit, now);
    ASSERT_TRUE(state.Send(0, "as before").ok());
    for (auto& [to, frame] : state.TakeFrames()) {
      if (const int leader = tree.LeaderOf(rank); leader == 0) {
        ranks[0].Arrived(rank, std::move(frame), now);
      } else {
        relays.at(leader).Arrived(rank, std::move(frame), now);
      }
    }
  }
  pass_up(now + std::chrono::milliseconds(2));
  EXPECT_LE(into_0, 3 * 46);  // 31 relays of ranks below 1,024 and 15 above them, and two frames.
  for (int rank = 1; rank < size; ++rank) {
    ranks[0].Await(rank, kLimit, now);
    TimePoint again{};
    const auto received = ranks[0].Poll(false, now, &again);
    ASSERT_TRUE(received && received->ok()) << rank;
    EXPECT_EQ(**received, "as before");
  }
  // The replies.
  (void)ranks[0].TakeFrames();
  for (int rank = 32; rank < size; ++rank) {
    ASSERT_TRUE(ranks[0].Send(rank, "settled").ok());
  }
  for (auto& [rank, frame] : ranks[0].TakeFrames()) {
    relayed.Add(rank, std::move(frame));
  }
  EXPECT_EQ(relayed.TakeFrames().size(), 46U);
}

}  // namespace
}  // namespace varve::relay_state_test
