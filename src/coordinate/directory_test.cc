#include "coordinate/directory.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/directory_ranks.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::directory_test {
namespace {

using test::Answer;
using test::ExchangeRank;
using test::FailsWith;
using test::IsOk;
using test::LongDeadline;
using test::OnEveryRank;
using test::Place;
using test::ShortDeadline;
using test::SoonDeadline;
using test::TempDir;
using test::World;

class DirectoryCoordinator : public test::DirectoryRanks {};
INSTANTIATE_TEST_SUITE_P(On, DirectoryCoordinator,
                         testing::Values(Place::kPosix, Place::kMemory, Place::kObjects),
                         test::PlaceName);

/// What needs a directory that is there, or not, by itself.
class DirectoryCoordinatorOfFiles : public test::DirectoryRanks {};
INSTANTIATE_TEST_SUITE_P(On, DirectoryCoordinatorOfFiles,
                         testing::Values(Place::kPosix, Place::kMemory), test::PlaceName);

// ---- the good case ----

TEST_P(DirectoryCoordinator, GivesEachRankItsOwnReply) {
  for (const int size : {1, 2, 5}) {
    const World world = Ranks(size);
    std::string all;
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(world[static_cast<std::size_t>(rank)]->rank(), rank);
      EXPECT_EQ(world[static_cast<std::size_t>(rank)]->size(), size);
      all += std::to_string(rank);
    }
    const auto results =
        OnEveryRank(world, [](Coordinator& rank) { return ExchangeRank(rank, LongDeadline()); });
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
      ASSERT_TRUE(IsOk(*results[rank]));
      EXPECT_EQ(**results[rank], std::to_string(rank) + ":" + all);
    }
  }
}

TEST_P(DirectoryCoordinator, CanBeUsedForManyExchanges) {
  const World world = Ranks(3);
  const auto results = OnEveryRank(world, [](Coordinator& rank) -> Status {
    for (int i = 0; i < 30; ++i) {
      const std::string mine = std::to_string(i) + "/";
      VARVE_ASSIGN_OR_RETURN(const std::string reply,
                             Exchange(rank, "x", mine, LongDeadline(), Answer));
      std::string want = mine;
      want += ":" + mine + mine + mine;
      if (reply != want) {
        return Internal("reply of another round: " + reply);
      }
    }
    return Status::Ok();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(IsOk(*result));
  }
}

TEST_P(DirectoryCoordinator, CarriesAnyBytesAndNone) {
  const auto zero = Rank(0, 2);
  const auto one = Rank(1, 2);
  std::string large(3'000'001, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) {
    large[i] = static_cast<char>(i * 31 >> 3);
  }
  for (const std::string& message : {std::string(), std::string("\0\xFF\n", 3), large}) {
    ASSERT_TRUE(IsOk(one->Send(0, message, LongDeadline())));
    const auto received = zero->Receive(1, LongDeadline());
    ASSERT_TRUE(IsOk(received));
    EXPECT_TRUE(*received == message) << received->size() << " bytes";
  }
}

TEST_P(DirectoryCoordinator, MessagesOfOneSenderArriveInOrderAndApartFromOthers) {
  const World world = Ranks(3);
  ASSERT_TRUE(IsOk(world[1]->Send(0, "1a", LongDeadline())));
  ASSERT_TRUE(IsOk(world[2]->Send(0, "2a", LongDeadline())));
  ASSERT_TRUE(IsOk(world[1]->Send(0, "1b", LongDeadline())));
  EXPECT_EQ(*world[0]->Receive(2, LongDeadline()), "2a");
  EXPECT_EQ(*world[0]->Receive(1, LongDeadline()), "1a");
  EXPECT_EQ(*world[0]->Receive(1, LongDeadline()), "1b");
}

TEST_P(DirectoryCoordinator, TwoDirectoriesDoNotMix) {
  const World ours = Ranks(2, "ours");
  const World theirs = Ranks(2, "theirs");
  ASSERT_TRUE(IsOk(ours[1]->Send(0, "ours", LongDeadline())));
  EXPECT_TRUE(FailsWith(theirs[0]->Receive(1, ShortDeadline()), StatusCode::kUnavailable));
  ASSERT_TRUE(IsOk(theirs[1]->Send(0, "theirs", LongDeadline())));
  EXPECT_EQ(*theirs[0]->Receive(1, LongDeadline()), "theirs");
  EXPECT_EQ(*ours[0]->Receive(1, LongDeadline()), "ours");
}

TEST(DirectoryCoordinatorOnDisk, RanksInProcessesOfTheirOwnAgree) {
  const TempDir temporary;
  constexpr int kSize = 4;
  const auto run = [&](int rank) {
    const auto coordinator =
        MakeDirectoryCoordinator(PosixStorage(), temporary / "channel", {rank, kSize, {}});
    for (int round = 0; round < 5; ++round) {
      const auto reply = ExchangeRank(*coordinator, LongDeadline());
      if (!reply.ok() || *reply != std::to_string(rank) + ":0123") {
        return false;
      }
    }
    return true;
  };
  std::vector<pid_t> children;
  for (int rank = 1; rank < kSize; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::_exit(run(rank) ? 0 : 1);
    }
    children.push_back(child);
  }
  EXPECT_TRUE(run(0));
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_EQ(PosixStorage().List(temporary / "channel").status().code(), StatusCode::kNotFound);
}

// ---- errors ----

TEST_P(DirectoryCoordinator, AnErrorOnOneRankArrivesAtAllWithItsNumberAndCause) {
  for (const int failing : {0, 2}) {
    const World world = Ranks(3);
    const auto results = OnEveryRank(world, [&](Coordinator& rank) {
      return Agree(
          rank, "writing",
          rank.rank() == failing ? Status(StatusCode::kOutOfSpace, "disk is full") : Status::Ok(),
          LongDeadline());
    });
    for (const auto& result : results) {
      EXPECT_TRUE(FailsWith(*result, StatusCode::kOutOfSpace,
                            {"writing: rank " + std::to_string(failing) + ": disk is full"}));
    }
  }
}

TEST_P(DirectoryCoordinator, ARankThatNeverComesIsNamedAtTheDeadline) {
  World world = Ranks(4);
  world[2].reset();
  const Deadline deadline = SoonDeadline();
  const auto results =
      OnEveryRank(world, [&](Coordinator& rank) { return ExchangeRank(rank, deadline); });
  for (const std::size_t rank : {0, 1, 3}) {
    EXPECT_TRUE(FailsWith(*results[rank], StatusCode::kUnavailable,
                          {"counting: rank 2: no answer before the deadline"}));
  }
  Hurry();
}

TEST_P(DirectoryCoordinator, ARankThatComesTooLateLearnsThatTheExchangeFailed) {
  auto zero = Rank(0, 2);
  const auto one = Rank(1, 2);
  EXPECT_FALSE(ExchangeRank(*zero, ShortDeadline()).ok());
  Hurry();
  zero.reset();
  EXPECT_TRUE(FailsWith(ExchangeRank(*one, LongDeadline()), StatusCode::kUnavailable,
                        {"counting: rank 1: no answer before the deadline"}));
}

TEST_P(DirectoryCoordinator, AFailingCheckEndsTheWaitWithItsError) {
  int asked = 0;
  const auto zero = MakeDirectoryCoordinator(
      storage(), Path("channel"),
      {0, 2, [&] {
         return ++asked < 3 ? Status::Ok() : Status(StatusCode::kCancelled, "trainer died");
       }});
  EXPECT_TRUE(
      FailsWith(zero->Receive(1, LongDeadline()), StatusCode::kCancelled, {"trainer died"}));
  EXPECT_EQ(asked, 3);
}

TEST_P(DirectoryCoordinator, AMessageThatIsThereIsDeliveredWhateverCheckSays) {
  const auto zero = Rank(0, 2);
  ASSERT_TRUE(IsOk(Rank(1, 2)->Send(0, "last words", LongDeadline())));
  Hurry();
  EXPECT_EQ(*zero->Receive(1, LongDeadline()), "last words");
}

TEST_P(DirectoryCoordinatorOfFiles, PeersNoticeThatRankZeroHasEnded) {
  auto zero = Rank(0, 3);
  const auto one = Rank(1, 3);
  const auto two = Rank(2, 3);
  ASSERT_TRUE(IsOk(one->Send(0, "a", LongDeadline())));
  ASSERT_TRUE(IsOk(two->Send(0, "a", LongDeadline())));
  zero.reset();
  EXPECT_TRUE(FailsWith(one->Receive(0, LongDeadline()), StatusCode::kUnavailable, {"is lost"}));
  EXPECT_TRUE(
      FailsWith(two->Send(0, "b", LongDeadline()), StatusCode::kUnavailable, {"rank 0 is lost"}));
  EXPECT_TRUE(IsRemoved());
}

TEST_P(DirectoryCoordinator, OnlyRankZeroExchangesMessagesWithOthers) {
  const World world = Ranks(3);
  for (const auto& [from, to] : {std::pair(1, 2), {1, 1}, {0, 0}, {0, 3}, {1, -1}}) {
    Coordinator& rank = *world[static_cast<std::size_t>(from)];
    EXPECT_TRUE(FailsWith(rank.Send(to, "x", LongDeadline()), StatusCode::kInternal));
    EXPECT_TRUE(FailsWith(rank.Receive(to, LongDeadline()), StatusCode::kInternal));
  }
}

TEST_P(DirectoryCoordinatorOfFiles, ADirectoryThatCannotBeMadeIsAnError) {
  const auto one = Rank(1, 2, "missing/channel");
  EXPECT_TRUE(FailsWith(one->Send(0, "x", LongDeadline()), StatusCode::kNotFound, {"missing"}));
}

// ---- what stands under a message's name is not a message ----

TEST_P(DirectoryCoordinator, ADamagedMessageIsNamedAndNeverDelivered) {
  const auto zero = Rank(0, 2);
  const std::string file = Path("channel/0-from-1-to-0");
  ASSERT_TRUE(IsOk(Rank(1, 2)->Send(0, "message", LongDeadline())));
  const std::string good = *ReadWholeFile(storage(), file, 1000);
  std::vector<std::string> damaged = {good + "x", std::string(good.size(), '\0'), "garbage"};
  for (std::size_t i = 0; i < good.size(); ++i) {
    damaged.push_back(good.substr(0, i));
    damaged.push_back(good);
    damaged.back()[i] = static_cast<char>(damaged.back()[i] ^ 4);
  }
  for (const std::string& content : damaged) {
    ASSERT_TRUE(IsOk(WriteWholeFile(storage(), file, content, /*exclusive=*/false)));
    EXPECT_TRUE(FailsWith(zero->Receive(1, LongDeadline()), StatusCode::kDataLoss, {file}));
  }
  ASSERT_TRUE(IsOk(WriteWholeFile(storage(), file, good, /*exclusive=*/false)));
  EXPECT_EQ(*zero->Receive(1, LongDeadline()), "message");
}

TEST(DirectoryCoordinatorOnDisk, AFileBeyondAnyMessageIsRefusedUnread) {
  const TempDir temporary;
  const auto zero = MakeDirectoryCoordinator(PosixStorage(), temporary / "channel", {0, 2, {}});
  const std::string file = temporary / "channel/0-from-1-to-0";
  ASSERT_TRUE(IsOk(PosixStorage().MakeDirectory(temporary / "channel")));
  {
    const auto sparse = PosixStorage().OpenForWrite(file, {});
    ASSERT_TRUE(IsOk(sparse));
    ASSERT_TRUE(
        IsOk((*sparse)->WriteAt(kMaxDirectoryMessageBytes + 100, std::vector<std::byte>(1))));
  }
  EXPECT_TRUE(
      FailsWith(zero->Receive(1, LongDeadline()), StatusCode::kDataLoss, {file, "at most"}));
}

}  // namespace
}  // namespace varve::directory_test
