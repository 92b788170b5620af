// Relays over real sockets: channels with a small fan-out, so that they have several levels.

#include "coordinate/channel/relay.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/seconds.h"
#include "base/time_source.h"
#include "coordinate/channel/channel.h"
#include "support/memory_rendezvous.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::relay_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::LongDeadline;
using test::TempDir;

constexpr double kLimit = 60;

class Tree {
 public:
  explicit Tree(int size, int fan_out = 3) : size_(size) {
    for (int rank = 0; rank < size; ++rank) {
      channels.push_back(std::make_shared<Channel>(
          ChannelOptions{.rank = rank, .size = size, .fan_out = fan_out}));
    }
  }
  [[nodiscard]] Channel& At(int rank) const { return *channels[static_cast<std::size_t>(rank)]; }

  /// Makes a call on all ranks but `absent`, each on a thread of its own.
  void Call(const std::string& what, const std::function<void(int, Channel&)>& body,
            const std::vector<int>& absent = {}, double limit = kLimit) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      if (std::find(absent.begin(), absent.end(), rank) != absent.end()) {
        continue;
      }
      threads.emplace_back([&, rank] {
        Channel& channel = At(rank);
        const Status entered = channel.Enter(what, limit, After(Now(), limit), rendezvous, "key");
        ASSERT_TRUE(IsOk(entered)) << "rank " << rank;
        body(rank, channel);
        channel.Leave("", -1);
        channel.Flush(After(Now(), 5));
      });
    }
  }

  test::MemoryRendezvous rendezvous;
  std::vector<std::shared_ptr<Channel>> channels;

 private:
  int size_;
};

using Replies = std::vector<std::string>;

Result<std::string> Join(Channel& channel, const std::string& mine, Deadline deadline) {
  const auto ranks = MakeInStep({std::shared_ptr<void>(), &channel});
  return Exchange(*ranks, "join", mine, deadline,
                  [](const std::vector<std::string>& given) -> Result<std::vector<std::string>> {
                    std::vector<std::string> replies;
                    for (const std::string& one : given) {
                      replies.push_back(one + " of " + std::to_string(given.size()));
                    }
                    return replies;
                  });
}

TEST(RankTree, EveryWayLeadsToRank0ByFewSteps) {
  for (const int fan_out : {2, 3, 32}) {
    const RankTree tree{fan_out};
    std::map<int, int> connections;
    for (int rank = 1; rank < 20'000; ++rank) {
      int end = tree.LeaderOf(rank);
      ++connections[end];
      EXPECT_EQ(end == rank, tree.Leads(rank));
      int steps = 1;
      for (; end != 0; ++steps) {
        const int above = tree.AboveOf(end);
        ASSERT_LT(above, end);
        end = above;
      }
      ASSERT_LE(steps, fan_out == 32 ? 4 : 16);
    }
    for (int leader = fan_out; leader < 20'000; leader += fan_out) {
      ++connections[tree.AboveOf(leader)];
    }
    for (const auto& [end, count] : connections) {
      EXPECT_LE(count, fan_out * 16);
    }
    EXPECT_LE(connections[0], fan_out == 32 ? 31 + 31 + 19 : 32);
  }
}

TEST(Relay, MessagesOfAllRanksAndSizesReachTheOthersEndInOrder) {
  const int size = 31;
  Tree ranks(size);
  const auto message = [](int rank, int turn) {
    return std::to_string(rank * 100 + turn) + std::string(turn == 1   ? 300'000
                                                           : turn == 2 ? 5'000
                                                                       : 0,
                                                           'x');
  };
  for (int call = 0; call < 3; ++call) {
    ranks.Call("call " + std::to_string(call), [&](int rank, Channel& channel) {
      for (int turn = 0; turn < 4; ++turn) {
        const auto reply = Join(channel, message(rank, turn), LongDeadline());
        ASSERT_TRUE(IsOk(reply)) << rank;
        EXPECT_TRUE(*reply == message(rank, turn) + " of 31") << rank << " " << turn;
      }
    });
  }
}

TEST(Relay, EqualMessagesReachAllRanks) {
  const int size = 30;
  Tree ranks(size);
  ranks.Call("equal", [&](int rank, Channel& channel) {
    for (int turn = 0; turn < 20; ++turn) {
      const auto reply = Join(channel, "as before", LongDeadline());
      ASSERT_TRUE(IsOk(reply)) << rank;
      EXPECT_EQ(*reply, "as before of 30");
    }
  });
}

TEST(Relay, AnErrorOfOneRankIsNamedOnAll) {
  Tree ranks(14);
  ranks.Call("error", [&](int rank, Channel& channel) {
    const auto combine = [](const std::vector<std::string>& given) -> Result<Replies> {
      return Replies(given.size());
    };
    const auto reply =
        Exchange(channel, "save",
                 rank == 11 ? Contribution(Status(StatusCode::kOutOfSpace, "no room"))
                            : Contribution(std::string()),
                 LongDeadline(), combine);
    EXPECT_TRUE(FailsWith(reply, StatusCode::kOutOfSpace, {"rank 11: no room"})) << rank;
  });
}

TEST(Relay, ARankThatComesTooLateIsNamedAndNotItsLeader) {
  Tree ranks(14);
  ranks.Call("first",
             [](int, Channel& channel) { ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))); });
  for (const int absent : {9, 10}) {  // A leader of ranks and relays, and a rank.
    const std::string call = "call without " + std::to_string(absent);
    const std::string text = "rank " + std::to_string(absent) + ": did not come";
    ranks.Call(
        call,
        [&](int rank, Channel& channel) {
          const auto reply = Join(channel, "", After(Now(), 1));
          EXPECT_TRUE(FailsWith(reply, StatusCode::kUnavailable, {text})) << rank;
          EXPECT_EQ(reply.status().message().find("rank 11"), std::string::npos) << rank;
        },
        {absent}, 1);
    const Status late = ranks.At(absent).Enter(call, 1, After(Now(), 1), ranks.rendezvous, "key");
    ASSERT_TRUE(IsOk(late));
    EXPECT_FALSE(Join(ranks.At(absent), "", After(Now(), 1)).ok());
    ranks.At(absent).Leave("", -1);
    ranks.Call("call after " + std::to_string(absent), [](int rank, Channel& channel) {
      ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
    });
  }
}

TEST(Relay, WhereALeaderHasNoRelayItsRanksConnectToRank0) {
  Tree ranks(14);
  // Rank 3 thinks that the ranks are a star.
  ranks.channels[3] =
      std::make_shared<Channel>(ChannelOptions{.rank = 3, .size = 14, .fan_out = 0});
  ranks.Call(
      "star",
      [](int rank, Channel& channel) {
        ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
      },
      {}, 1);
}

TEST(Relay, ALeaderThatGivesUpBeforeRank0ComesHoldsNoRankUp) {
  Tree ranks(6);
  const Status early = ranks.At(3).Enter("call", 1, After(Now(), 1), ranks.rendezvous, "key");
  EXPECT_TRUE(FailsWith(early, StatusCode::kUnavailable, {"rank 0: did not come"}));
  ranks.Call(
      "call",
      [](int rank, Channel& channel) {
        const auto reply = Join(channel, "", After(Now(), 3));
        EXPECT_TRUE(FailsWith(reply, StatusCode::kUnavailable, {"rank 3: "})) << rank;
        EXPECT_EQ(reply.status().message().find("rank 4"), std::string::npos) << rank;
      },
      {3}, 3);
  ranks.Call("next", [](int rank, Channel& channel) {
    ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
  });
}

TEST(Relay, WhatALeaderHasFlushedReachesRank0ThoughItsProcessEnds) {
  // Rank 2 is a process that ends right after its message; the others are here.
  const TempDir dir;
  const auto rendezvous = MakeDirectoryRendezvous(dir.path());
  const auto enter = [&](Channel& channel) {
    return channel.Enter("call", kLimit, After(Now(), kLimit), *rendezvous, "key");
  };
  const ::pid_t child = ::fork();
  if (child == 0) {
    Channel channel(ChannelOptions{.rank = 2, .size = 3, .fan_out = 2});
    const bool sent = enter(channel).ok() && channel.Send(0, "last", LongDeadline()).ok();
    channel.Leave("", -1);
    ::_exit(sent && channel.Flush(LongDeadline()) ? 0 : 1);
  }
  Channel rank_0(ChannelOptions{.rank = 0, .size = 3, .fan_out = 2});
  Channel rank_1(ChannelOptions{.rank = 1, .size = 3, .fan_out = 2});
  ASSERT_TRUE(IsOk(enter(rank_0)));
  ASSERT_TRUE(IsOk(enter(rank_1)));
  const auto last = rank_0.Receive(2, LongDeadline());
  ASSERT_TRUE(IsOk(last));
  EXPECT_EQ(*last, "last");
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Relay, AForkedChildThatEndsALeadersChannelTouchesNoOtherDescriptor) {
  Tree ranks(4);
  ranks.Call("call", [](int rank, Channel& channel) {
    ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
  });
  const ::pid_t child = ::fork();
  if (child == 0) {  // Every descriptor that the parent's sockets had is now one of a file.
    std::vector<std::FILE*> files;
    for (int i = 0; i < 200; ++i) {
      files.push_back(std::tmpfile());
    }
    ranks.At(3).Interrupt();
    ranks.channels[3].reset();
    off_t written = 0;
    for (std::FILE* const file : files) {
      written += file == nullptr ? 0 : ::lseek(::fileno(file), 0, SEEK_END);
    }
    ::_exit(written == 0 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Relay, RanksBehindADeadLeaderNameItAsTheCause) {
  Tree ranks(6);
  ranks.Call("call", [&](int rank, Channel& channel) {
    ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
    if (rank == 3) {
      channel.Close();
      return;
    }
    const auto reply = Join(channel, "", LongDeadline());
    EXPECT_FALSE(reply.ok()) << rank;
    EXPECT_EQ(reply.status().details().rank, 3) << rank << reply.status().message();
  });
}

TEST(Relay, EveryRankNamesRank0SomeSecondsAfterItHasEndedBetweenTwoCalls) {
  const int size = 14;
  Tree ranks(size);
  ranks.Call("save x", [&](int rank, Channel& channel) {
    ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
  });
  ranks.channels[0].reset();
  std::vector<std::jthread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Channel& channel = ranks.At(rank);
      const auto enter = [&](const std::string& what) {
        return channel.Enter(what, 600, After(Now(), 600), ranks.rendezvous, "key");
      };
      if (enter("save y").ok()) {  // Its relay had not seen it yet.
        EXPECT_EQ(Join(channel, "", LongDeadline()).status().details().rank, 0) << rank;
        channel.Leave("", -1);
      }
      EXPECT_TRUE(FailsWith(enter("save z"), StatusCode::kUnavailable,
                            {"save z: rank 0: is lost", "its process has ended"}))
          << rank;
    });
  }
}

TEST(Relay, ARankThatHangsUpIsNamedOnAllOthersAtOnce) {
  for (const int dead : {4, 9, 12}) {
    Tree ranks(14);
    std::atomic<int> came{0};
    ranks.Call("call", [&](int rank, Channel& channel) {
      if (rank == dead) {
        ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline())));
        while (came < 13) {
          std::this_thread::yield();
        }
        channel.Close();
        return;
      }
      ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
      ++came;
      const auto reply = Join(channel, "", LongDeadline());
      const std::string text = "rank " + std::to_string(dead) + ": is lost";
      EXPECT_TRUE(FailsWith(reply, StatusCode::kUnavailable, {text})) << rank;
    });
  }
}

TEST(Relay, ChannelsOfABackgroundPassRelaysToo) {
  const int size = 14;
  Tree ranks(size);
  std::vector<std::shared_ptr<Channel>> background(size);
  ranks.Call("call", [&](int rank, Channel& channel) {
    auto made = channel.MakeBackground(kLimit, "save in the background");
    ASSERT_TRUE(IsOk(made)) << rank;
    background[static_cast<std::size_t>(rank)] = *made;
    EXPECT_TRUE(IsOk(Join(**made, "b", LongDeadline())));
    EXPECT_TRUE(IsOk(Join(channel, "f", LongDeadline())));
  });
}

TEST(Relay, RanksMeetAgainAfterOneThatHasClosedItsChannel) {
  Tree ranks(14);
  for (const int closed : {0, 9, 4}) {
    ranks.Call("before", [](int rank, Channel& channel) {
      ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
    });
    ranks.At(closed).Close();
    // A rank may have read an address that is no longer listened at: it fails this call alone.
    ranks.Call("between", [](int, Channel& channel) { (void)Join(channel, "", After(Now(), 1)); });
    ranks.Call("after", [](int rank, Channel& channel) {
      ASSERT_TRUE(IsOk(Join(channel, "", LongDeadline()))) << rank;
    });
  }
}

}  // namespace
}  // namespace varve::relay_test
