// Channels over real sockets, with a thread for each rank.

#include "coordinate/channel/channel.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file_descriptor.h"
#include "base/seconds.h"
#include "base/time_source.h"
#include "support/memory_rendezvous.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::channel_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::LongDeadline;
using test::TempDir;

constexpr double kLimit = 60;

struct Ranks {
  explicit Ranks(int size) {
    for (int rank = 0; rank < size; ++rank) {
      channels.push_back(std::make_shared<Channel>(ChannelOptions{.rank = rank, .size = size}));
    }
  }

  [[nodiscard]] Channel& At(int rank) const { return *channels[static_cast<std::size_t>(rank)]; }
  Status Enter(int rank, const std::string& what, double limit = kLimit) {
    return At(rank).Enter(what, limit, After(Now(), limit), rendezvous, "key");
  }
  /// Enters a call on all ranks.
  void EnterAll(const std::string& what) {
    for (int rank = 0; rank < static_cast<int>(channels.size()); ++rank) {
      ASSERT_TRUE(IsOk(Enter(rank, what)));
    }
  }
  void LeaveAll() {
    for (const auto& channel : channels) {
      channel->Leave("", -1);
    }
  }
  /// Sends a message from rank 1 to rank 0 and back.
  void ExpectConnected(const std::string& text) const {
    ASSERT_TRUE(IsOk(At(1).Send(0, text, LongDeadline())));
    const auto up = At(0).Receive(1, LongDeadline());
    ASSERT_TRUE(IsOk(up));
    EXPECT_EQ(*up, text);
    ASSERT_TRUE(IsOk(At(0).Send(1, text + "?", LongDeadline())));
    const auto down = At(1).Receive(0, LongDeadline());
    ASSERT_TRUE(IsOk(down));
    EXPECT_EQ(*down, text + "?");
  }

  test::MemoryRendezvous rendezvous;
  std::vector<std::shared_ptr<Channel>> channels;
};

TEST(Channel, CarriesMessagesLargerThanASocketTakes) {
  Ranks ranks(2);
  ranks.EnterAll("x");
  std::string message(std::size_t{20} << 20, 'a');
  message.back() = 'z';
  for (const int from : {1, 0}) {
    std::jthread sender([&] {
      EXPECT_TRUE(IsOk(ranks.At(from).Send(1 - from, message, LongDeadline())));
      EXPECT_TRUE(ranks.At(from).Flush(LongDeadline()));
    });
    EXPECT_TRUE(ranks.At(1 - from).Receive(from, LongDeadline()).value() == message);
  }
}

TEST(Channel, TurnsStrangersAwayWhoDisturbNoCall) {
  Ranks ranks(2);
  ASSERT_TRUE(IsOk(ranks.Enter(0, "x")));
  const Address address = *DecodeFields<Address>(**ranks.rendezvous.Get("key"));
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<std::uint16_t>(address.port));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<FileDescriptor> strangers;
  std::string wrong_token(17, '\0');
  wrong_token[0] = '\1';
  wrong_token[9] = '\7';
  for (const std::string& first :
       {std::string("GET / HTTP/1.0\r\n\r\n"), "\1" + std::string(16, '\0'),
        "\1" + std::string(8, '\0') + std::string(8, '\xff'), wrong_token + "\1\5token"}) {
    const FileDescriptor& stranger = strangers.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(stranger.get(), reinterpret_cast<sockaddr*>(&there), sizeof(there)), 0);
    ASSERT_EQ(::send(stranger.get(), first.data(), first.size(), 0),
              static_cast<ssize_t>(first.size()));
  }
  ASSERT_TRUE(IsOk(ranks.Enter(1, "x")));
  ranks.ExpectConnected("plan");
}

TEST(Channel, DoesNotTakeWhatIsLeftOfAnEarlierCallForALaterOnes) {
  Ranks ranks(2);
  ranks.EnterAll("x");
  ranks.ExpectConnected("first");
  ASSERT_TRUE(IsOk(ranks.At(1).Send(0, "never read", LongDeadline())));
  ASSERT_TRUE(IsOk(ranks.At(0).Send(1, "never read either", LongDeadline())));
  ranks.LeaveAll();
  ranks.EnterAll("x");
  ranks.ExpectConnected("second");
}

TEST(Channel, ARankWhoseConnectionBrokeConnectsAgainWithItsNextCall) {
  Ranks ranks(2);
  ranks.EnterAll("x");
  ranks.ExpectConnected("first");
  ranks.LeaveAll();
  const int looks = ranks.rendezvous.looks();
  ranks.At(0).Close();
  EXPECT_FALSE(ranks.At(1).IsReady());
  ranks.EnterAll("x");
  ranks.ExpectConnected("here");
  EXPECT_EQ(ranks.rendezvous.looks(), looks + 1);
}

TEST(Channel, ARankThatDiesIsNamedToTheOthersAtOnce) {
  Ranks ranks(3);
  ranks.EnterAll("save x");
  ranks.channels[2].reset();
  EXPECT_TRUE(FailsWith(ranks.At(0).Receive(1, LongDeadline()), StatusCode::kUnavailable,
                        {"was not waited for: rank 2 is lost"}));
  EXPECT_EQ(ranks.At(0).Receive(1, LongDeadline()).status().details().rank, 2);
  ranks.At(0).Leave("save x: rank 2: is lost", 2);
  EXPECT_TRUE(FailsWith(ranks.At(1).Receive(0, LongDeadline()), StatusCode::kUnavailable,
                        {"save x: rank 2: is lost"}));
  EXPECT_EQ(ranks.At(1).cause(), 2);
  EXPECT_TRUE(ranks.At(1).lost());
}

TEST(Channel, ReachesRank0AgainThroughAnAddressOfARankThatHasEnded) {
  Ranks ranks(2);
  ASSERT_TRUE(IsOk(ranks.Enter(0, "x")));
  ranks.channels[0] = std::make_shared<Channel>(ChannelOptions{.rank = 0, .size = 2});
  Status entered;
  std::jthread other([&] { entered = ranks.Enter(1, "x"); });
  while (ranks.rendezvous.looks() < 3) {
    std::this_thread::yield();  // It is refused, and looks again.
  }
  ASSERT_TRUE(IsOk(ranks.Enter(0, "x")));
  other.join();
  ASSERT_TRUE(IsOk(entered));
  ranks.ExpectConnected("here");
}

TEST(Channel, NamesRank0SomeSecondsAfterItHasEndedBetweenTwoCalls) {
  Ranks ranks(2);
  ranks.EnterAll("x");
  for (const int rank : {1, 0}) {
    ranks.At(rank).Leave("", -1);
  }
  ranks.channels[0].reset();
  EXPECT_TRUE(FailsWith(ranks.Enter(1, "save y", 600), StatusCode::kUnavailable,
                        {"save y: rank 0: is lost", "its process has ended"}));
}

TEST(Channel, ReachesARank0ThatComesAgainInPlaceOfOneThatHasEnded) {
  Ranks ranks(2);
  ranks.EnterAll("x");
  ranks.At(1).Leave("", -1);
  ranks.channels[0] = std::make_shared<Channel>(ChannelOptions{.rank = 0, .size = 2});
  Status entered;
  const int looks = ranks.rendezvous.looks();
  std::jthread other([&] { entered = ranks.Enter(1, "x"); });
  while (ranks.rendezvous.looks() < looks + 3) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(IsOk(ranks.Enter(0, "x")));
  other.join();
  EXPECT_TRUE(IsOk(entered));
}

TEST(Channel, NamesRank0WhereItCannotBeReachedInTime) {
  Ranks ranks(2);
  EXPECT_TRUE(FailsWith(ranks.Enter(1, "save x", 0.02), StatusCode::kUnavailable,
                        {"save x: rank 0: did not come before the deadline of 0.02 s"}));
  ASSERT_TRUE(IsOk(ranks.Enter(0, "x")));
  ranks.channels[0].reset();
  EXPECT_TRUE(FailsWith(ranks.Enter(1, "save x", 0.02), StatusCode::kUnavailable,
                        {"save x: rank 0: cannot be reached at", "GLOO_SOCKET_IFNAME"}));
}

TEST(Channel, ARankThatLooksForRank0LogsWhyItWaits) {
  Ranks ranks(2);
  std::vector<std::string> lines;
  ranks.channels[1] = std::make_shared<Channel>(
      ChannelOptions{.rank = 1,
                     .size = 2,
                     .log = [&](const std::string& line) { lines.push_back(line); },
                     .first_notice = std::chrono::milliseconds(5)});
  const auto logged = [&](const std::string& text) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  };
  EXPECT_FALSE(ranks.Enter(1, "save x", 0.1).ok());
  EXPECT_TRUE(
      logged("save x: rank 1 has waited 0 s for rank 0 (not there yet); the time limit is"));
  EXPECT_LT(lines.size(), 6U);  // Each comes after twice the time.
  ASSERT_TRUE(IsOk(ranks.Enter(0, "x")));
  ranks.channels[0].reset();
  EXPECT_FALSE(ranks.Enter(1, "save y", 0.1).ok());
  EXPECT_TRUE(
      logged("save y: rank 1 has waited 0 s for a connection: rank 0: cannot be reached at"));
}

TEST(Channel, RefusesARank0OfAnotherVersionAtOnce) {
  Ranks ranks(2);
  ASSERT_TRUE(IsOk(ranks.Enter(0, "x")));
  Address address = *DecodeFields<Address>(**ranks.rendezvous.Get("key"));
  address.version += "1";
  for (const std::string& text :
       {EncodeFields(address), std::string("[\"host\", [\"10.0.0.1\"], 1, \"t\"]")}) {
    ASSERT_TRUE(IsOk(ranks.rendezvous.Set("key", text)));
    EXPECT_TRUE(FailsWith(ranks.Enter(1, "save x"), StatusCode::kFailedPrecondition,
                          {"save x: rank 0 runs", "all ranks need the same version"}));
  }
}

TEST(Channel, HasNoMessagesBetweenOtherRanks) {
  Ranks ranks(3);
  ranks.EnterAll("x");
  for (const auto& [from, to] : {std::pair{1, 2}, {0, 0}, {0, 3}, {0, -1}}) {
    EXPECT_TRUE(FailsWith(ranks.At(from).Send(to, "x", LongDeadline()), StatusCode::kInternal,
                          {"only rank 0"}));
    EXPECT_TRUE(FailsWith(ranks.At(from).Receive(to, LongDeadline()), StatusCode::kInternal));
  }
}

TEST(Channel, InterruptEndsAWaitOfAnotherThreadAndReachesTheOthers) {
  Ranks ranks(2);
  ranks.EnterAll("x");
  std::jthread interrupting([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.At(1).Interrupt();
  });
  EXPECT_TRUE(FailsWith(ranks.At(1).Receive(0, LongDeadline()), StatusCode::kUnavailable,
                        {"rank 1 was interrupted (Ctrl-C)"}));
  interrupting.join();
  ranks.At(1).Leave(kInterruptedReason, -1);
  EXPECT_TRUE(FailsWith(ranks.At(0).Receive(1, LongDeadline()), StatusCode::kUnavailable,
                        {"was interrupted (Ctrl-C)"}));
  ranks.LeaveAll();
  ranks.EnterAll("y");
  ranks.ExpectConnected("in step");
  // A rank that looks for rank 0 can be interrupted too.
  Ranks others(2);
  std::jthread again([&] {
    while (others.rendezvous.looks() == 0) {
      std::this_thread::yield();
    }
    others.At(1).Interrupt();
  });
  EXPECT_TRUE(FailsWith(others.Enter(1, "x"), StatusCode::kUnavailable, {"interrupted"}));
}

TEST(Channel, AForkedChildKeepsNoConnectionOpen) {
  Ranks ranks(2);
  ranks.EnterAll("x");
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const FileDescriptor held(ends[1]);
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    char byte = 0;
    (void)!::read(ends[0], &byte, 1);  // Until the parent says so.
    ::_exit(0);
  }
  ::close(ends[0]);
  ranks.channels[1].reset();
  EXPECT_TRUE(FailsWith(ranks.At(0).Receive(1, LongDeadline()), StatusCode::kUnavailable,
                        {"its connection is closed"}));
  EXPECT_EQ(::write(ends[1], "!", 1), 1);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

TEST(Channel, ABackgroundHasMessagesOfItsOwnAndIsMadeOnAllRanksOrNone) {
  Ranks ranks(3);
  ranks.EnterAll("make a stager");
  std::vector<std::shared_ptr<Channel>> made(3);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto background = ranks.channels[rank]->MakeBackground(kLimit, "save in the background");
        ASSERT_TRUE(IsOk(background));
        made[rank] = *background;
      });
    }
  }
  ranks.LeaveAll();
  ranks.channels.clear();
  ASSERT_TRUE(IsOk(made[2]->Send(0, "later", LongDeadline())));
  made[2].reset();
  EXPECT_EQ(made[0]->Receive(2, LongDeadline()).value(), "later");
}

TEST(Channel, Rank0WithoutDescriptorsSaysSoAndTakesTheRankWithTheNextCall) {
  Ranks ranks(2);
  ASSERT_TRUE(IsOk(ranks.Enter(0, "x")));
  ASSERT_TRUE(IsOk(ranks.Enter(1, "x")));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const FileDescriptor next(::dup(0));
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto refused = ranks.At(0).Receive(1, LongDeadline());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(FailsWith(refused, StatusCode::kUnavailable, {"raise ulimit -n"}));
  ranks.At(0).Leave("no descriptors", -1);
  ranks.At(1).Leave("", -1);
  ranks.EnterAll("x");
  ranks.ExpectConnected("here");
}

TEST(Channel, OfMoreRanksThanThereMayBeDescriptorsRaisesTheLimit) {
  Ranks ranks(40);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const FileDescriptor next(::dup(0));
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next.get()) + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  ranks.EnterAll("x");
  ranks.ExpectConnected("here");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(SocketCoordinator, ConnectsRanksThatShareADirectory) {
  const TempDir dir;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto rendezvous = MakeDirectoryRendezvous(dir.path());
      auto ranks = MakeSocketCoordinator(*rendezvous, {.rank = rank, .size = 3, .key = "job/7"});
      ASSERT_TRUE(IsOk(ranks));
      const auto all = Gather(**ranks, "meet", std::to_string(rank), LongDeadline());
      ASSERT_TRUE(IsOk(all));
      EXPECT_EQ(*all, (std::vector<std::string>{"0", "1", "2"}));
    });
  }
}

}  // namespace
}  // namespace varve::channel_test
