// Saves as hfai's parts by two ranks to an S3 server: what they replace, other writers and lost
// ranks. Objects have fixed names there; see publish/fixed_names.cc.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "crash/s3_faults.h"
#include "crash/ways.h"
#include "varve/catalogue.h"

namespace varve::test::s3_hfai_fault_test {
namespace {

constexpr const char* kMark = "bucket/run/step-1/.varve-uploaded";
constexpr const char* kClaim = "bucket/run/step-1/.varve-uploading";

class S3FaultsOfHfai : public S3Faults {
 protected:
  S3FaultsOfHfai() : S3Faults(Format::kHfai) {}

  static Status SaveParts(int number, Storage& storage, Overwrite overwrite, int ranks = kS3Ranks) {
    HfaiWay way("Hfai", ranks, /*objects=*/false);
    return way.Save(OrderFor(way, storage, kS3Path, number, overwrite));
  }

  /// Returns how many objects the checkpoint's directory has.
  static std::size_t ObjectsIn(const S3Server& server) {
    const auto objects = server.objects();
    return static_cast<std::size_t>(std::count_if(
        objects.begin(), objects.end(),
        [](const auto& object) { return object.first.starts_with("bucket/run/step-1/"); }));
  }

  /// Returns 0 for no checkpoint.
  static int SeenNumber(Storage& storage) {
    const auto number = NumberIn(storage, kS3Path);
    EXPECT_NE(number.status().code(), StatusCode::kInternal) << "a mix";
    return number.ok() ? *number : 0;
  }
};

TEST_F(S3FaultsOfHfai, ACheckpointStaysUntilItsReplacementInPlaceIsAskedFor) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveParts(1, *storage, Overwrite::kAlways)));
  const auto objects = server.objects();
  for (const Overwrite overwrite : {Overwrite::kNever, Overwrite::kAlways}) {
    EXPECT_TRUE(FailsWith(SaveParts(2, *storage, overwrite), StatusCode::kAlreadyExists,
                          {"PART_000.pt is there", "in place"}));
    EXPECT_EQ(server.objects(), objects);
  }
  // A part that no rank of the new save has goes too.
  ASSERT_TRUE(IsOk(SaveParts(1, *storage, Overwrite::kInPlace, 3)));
  EXPECT_EQ(server.objects().size(), 4U);
  ASSERT_TRUE(IsOk(SaveParts(2, *storage, Overwrite::kInPlace)));
  EXPECT_EQ(SeenNumber(*storage), 2);
  EXPECT_EQ(server.objects().size(), 3U);
}

TEST_F(S3FaultsOfHfai, ARunAndAUsersFilesAreNotTakenForItsDirectory) {
  S3Server server;
  const auto storage = Open(server);
  for (const char* const there : {"bucket/run/step-1/sub/varve.json", "bucket/run/step-1/mine.txt",
                                  "bucket/run/step-1/.metadata"}) {
    server.Put(there, "of somebody");
    for (const Overwrite overwrite : {Overwrite::kAlways, Overwrite::kInPlace}) {
      EXPECT_TRUE(FailsWith(SaveParts(1, *storage, overwrite), StatusCode::kFailedPrecondition));
    }
    EXPECT_EQ(ObjectsIn(server), 1U) << there;
    ASSERT_TRUE(IsOk(storage->Remove("s3://" + std::string(there))));
  }
}

TEST_F(S3FaultsOfHfai, KeysThatMayNotListUploadsReplaceInPlaceToo) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveParts(1, *storage, Overwrite::kNever)));
  server.SetScript([](const S3Request& request, int) {
    return request.method == "GET" && request.Parameter("uploads") ? S3Fault::kRefused
                                                                   : S3Fault::kNone;
  });
  EXPECT_TRUE(IsOk(SaveParts(2, *storage, Overwrite::kInPlace)));
  EXPECT_EQ(SeenNumber(*storage), 2);
}

TEST_F(S3FaultsOfHfai, OfTwoFirstSavesOneWins) {
  S3Server server;
  for (std::uint64_t round = 0; round < 20; round += kEvery) {
    const auto a = Open(server);
    const auto b = Open(server);
    Status first;
    Status second;
    {
      const std::jthread one([&] { first = SaveParts(1, *a, Overwrite::kNever); });
      const std::jthread other([&] { second = SaveParts(2, *b, Overwrite::kNever); });
    }
    EXPECT_TRUE(first.ok() != second.ok()) << first.ToString() << " / " << second.ToString();
    EXPECT_EQ(SeenNumber(*a), first.ok() ? 1 : 2);
    EXPECT_EQ(server.objects().size(), 3U);
    ASSERT_TRUE(IsOk(RemoveCheckpoint(kS3Path, DryRun::kNo, *a).status()));
    EXPECT_TRUE(server.objects().empty());
  }
}

/// A rank's coordinator with a hook before each message that it sends and after each that it gets.
class HookedCoordinator final : public Coordinator {
 public:
  HookedCoordinator(std::unique_ptr<Coordinator> inner, std::function<Status()> before_send,
                    std::function<void()> after_receive)
      : inner_(std::move(inner)),
        before_send_(std::move(before_send)),
        after_receive_(std::move(after_receive)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  Status Send(int to, std::string_view message, Deadline deadline) override {
    VARVE_RETURN_IF_ERROR(before_send_());
    return inner_->Send(to, message, deadline);
  }
  Result<std::string> Receive(int from, Deadline deadline) override {
    auto message = inner_->Receive(from, deadline);
    after_receive_();
    return message;
  }

 private:
  const std::unique_ptr<Coordinator> inner_;
  const std::function<Status()> before_send_;
  const std::function<void()> after_receive_;
};

TEST_F(S3FaultsOfHfai, ARankThatStoodStillDoesNotWriteWhereAnotherSaveHasTheName) {
  S3Server server;
  const auto storage = Open(server);
  auto coordinators = MakeInProcessCoordinators(kS3Ranks);
  Status outcome;
  {
    const auto save = [&](Coordinator& coordinator) {
      return HfaiWay::SaveRank(1, kS3Path, SmallSave(false, Format::kHfai), coordinator, *storage);
    };
    const std::jthread one([&] { outcome = save(*coordinators[0]); });
    const std::jthread other([&, inner = std::move(coordinators[1])]() mutable {
      int received = 0;
      HookedCoordinator coordinator(
          std::move(inner), [] { return Status::Ok(); },
          [&] {
            if (++received == 1) {
              return;  // It is asked for the names of its tensors.
            }
            // It stands still when it has its share, until rank 0 has written its own.
            while (!server.objects().contains("bucket/run/step-1/PART_000.pt")) {
              std::this_thread::yield();
            }
            server.Put(kClaim, "of another save");
          });
      EXPECT_FALSE(save(coordinator).ok());
    });
  }
  EXPECT_TRUE(
      FailsWith(outcome, StatusCode::kFailedPrecondition, {"this rank has written nothing"}));
  EXPECT_FALSE(server.objects().contains("bucket/run/step-1/PART_001.pt"));
  EXPECT_EQ(SeenNumber(*storage), 0);
}

TEST_F(S3FaultsOfHfai, WhereARankIsLostItsFilesStayClaimed) {
  S3Server server;
  const auto storage = Open(server);
  auto coordinators = MakeInProcessCoordinators(kS3Ranks);
  Status outcome;
  {
    const auto save = [&](Coordinator& coordinator) {
      SaveOptions options = SmallSave(false, Format::kHfai);
      options.timeout = std::chrono::seconds(2);
      return HfaiWay::SaveRank(1, kS3Path, options, coordinator, *storage);
    };
    const std::jthread one([&] { outcome = save(*coordinators[0]); });
    const std::jthread other([&, inner = std::move(coordinators[1])]() mutable {
      int sent = 0;
      HookedCoordinator coordinator(
          std::move(inner),
          // Its plan takes two messages.
          [&] { return sent++ < 2 ? Status::Ok() : Unavailable("it is lost"); }, [] {});
      EXPECT_FALSE(save(coordinator).ok());
    });
  }
  EXPECT_TRUE(FailsWith(outcome, StatusCode::kUnavailable, {"rank 1"}));
  EXPECT_TRUE(server.objects().contains(kClaim)) << "rank 1 may write its part yet";
  EXPECT_FALSE(server.objects().contains(kMark));
  EXPECT_EQ(SeenNumber(*storage), 0);
  EXPECT_TRUE(FailsWith(SaveParts(2, *storage, Overwrite::kAlways), StatusCode::kFailedPrecondition,
                        {"is under way, or has died"}));
  ASSERT_TRUE(IsOk(SaveParts(2, *storage, Overwrite::kInPlace)));
  EXPECT_EQ(SeenNumber(*storage), 2);
}

}  // namespace
}  // namespace varve::test::s3_hfai_fault_test
