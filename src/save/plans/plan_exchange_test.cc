#include "save/plans/plan_exchange.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "save/plans/terms.h"
#include "support/counting_ranks.h"
#include "support/plans.h"
#include "support/status_matchers.h"

namespace varve::plan_exchange_test {
namespace {

using test::CountingRank;
using test::FailsWith;
using test::IsOk;
using test::MakeCountingRanks;
using test::Slice;
using test::Whole;

/// The outcome of an exchange of plans, on all ranks.
struct Outcome {
  std::vector<LocalPlan> others;  ///< As the coordinator got them.
  std::vector<Result<std::string>> replies;
  std::vector<int> messages;  ///< That each rank has sent.
  std::vector<std::size_t> bytes;
};

/// A rank's side without `settle`.
PlanExchange OfPlan(LocalPlan* plan, std::size_t ranks) {
  PlanExchange mine;
  mine.what = "save x";
  mine.terms = EncodeTerms(TermsOf({}, "x", static_cast<int>(ranks), false), {});
  mine.plan = plan;
  mine.timeout = std::chrono::seconds(30);
  mine.complete = [](bool /*all*/) { return Status::Ok(); };
  return mine;
}

/// Exchanges plans between threads, a thread for each of `ranks`.
Outcome Exchanged(const std::vector<LocalPlan>& plans,
                  const std::vector<std::unique_ptr<CountingRank>>& ranks) {
  Outcome outcome;
  for (const auto& rank : ranks) {
    rank->Forget();
    outcome.replies.emplace_back(std::string());
  }
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    threads.emplace_back([&, rank] {
      LocalPlan own = plans[rank];
      PlanExchange mine = OfPlan(&own, plans.size());
      mine.settle = [&](const GatheredPlans::Taken& others,
                        bool /*missed*/) -> Result<std::vector<std::string>> {
        EXPECT_EQ(others.plans.world_size(), plans.size());
        for (std::size_t i = 1; i < plans.size(); ++i) {
          VARVE_ASSIGN_OR_RETURN(LocalPlan plan, others.plans.PlanOf(i));
          plan.structure = others.structures[i];
          outcome.others.push_back(std::move(plan));
        }
        std::vector<std::string> replies;
        for (std::size_t i = 0; i < plans.size(); ++i) {
          replies.push_back("share of rank " + std::to_string(i));
        }
        return replies;
      };
      const auto in_step = MakeInStep({std::shared_ptr<void>(), ranks[rank].get()});
      outcome.replies[rank] = ExchangePlans(*in_step, mine);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& rank : ranks) {
    outcome.messages.push_back(rank->messages());
    outcome.bytes.push_back(rank->bytes());
  }
  return outcome;
}

/// The same, by new ranks.
Outcome Exchanged(const std::vector<LocalPlan>& plans) {
  return Exchanged(plans, MakeCountingRanks(plans.size()));
}

/// Rank `rank` of `ranks` that hold slices of the same tensors.
LocalPlan OfSlices(std::uint64_t rank, std::uint64_t ranks) {
  LocalPlan plan;
  for (int i = 0; i < 100; ++i) {
    plan.tensors.push_back(
        Slice("model.layers." + std::to_string(i) + ".weight", {64, 8}, rank, ranks));
  }
  plan.objects = {{"rng of rank " + std::to_string(rank), 7, {}}};
  plan.structure = std::string(5'000, 's');
  return plan;
}

TEST(PlanExchange, OfTheSameTensorsIsOneMessageThatNamesNoneOfThem) {
  const std::vector<LocalPlan> plans{OfSlices(0, 3), OfSlices(1, 3), OfSlices(2, 3)};
  const Outcome outcome = Exchanged(plans);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(IsOk(outcome.replies[rank]));
    EXPECT_EQ(*outcome.replies[rank], "share of rank " + std::to_string(rank));
  }
  ASSERT_EQ(outcome.others.size(), 2U);
  EXPECT_EQ(outcome.others[1].tensors, plans[2].tensors);
  EXPECT_EQ(outcome.others[1].objects, plans[2].objects);
  EXPECT_EQ(outcome.others[0].tensors[7].of, outcome.others[1].tensors[7].of);
  EXPECT_EQ(outcome.messages[2], 1);
  EXPECT_LT(outcome.bytes[2], 1'200U);
}

TEST(PlanExchange, AsksTheLowestRankForWhatTheCoordinatorDoesNotKnow) {
  std::vector<LocalPlan> plans(4);
  plans[0].tensors = {Whole("a", {4})};
  plans[1] = OfSlices(0, 2);
  plans[2] = OfSlices(1, 2);
  plans[3].tensors = {Whole("a", {4})};
  plans[3].structure = "of rank 3";
  const Outcome outcome = Exchanged(plans);
  for (const auto& reply : outcome.replies) {
    ASSERT_TRUE(IsOk(reply));
  }
  ASSERT_EQ(outcome.others.size(), 3U);
  EXPECT_EQ(outcome.others[0], plans[1]);
  EXPECT_EQ(outcome.others[1].tensors, plans[2].tensors);
  EXPECT_EQ(outcome.others[1].structure, "") << "rank 1 has the same";
  EXPECT_EQ(outcome.others[2], plans[3]);
  EXPECT_EQ(outcome.messages[3], 2) << "all ranks make the second exchange";
  EXPECT_GT(outcome.bytes[1], outcome.bytes[2] + 5'000);
}

TEST(PlanExchange, DoesNotAskAgainForWhatAnEarlierOneBrought) {
  std::vector<LocalPlan> plans{{}, OfSlices(0, 2), OfSlices(1, 2)};
  plans[2].structure = "of rank 2";
  const auto ranks = MakeCountingRanks(plans.size());
  EXPECT_EQ(Exchanged(plans, ranks).messages, (std::vector<int>{4, 2, 2}));
  const Outcome later = Exchanged(plans, ranks);
  EXPECT_EQ(later.messages, (std::vector<int>{2, 1, 1}));
  EXPECT_EQ(later.others, std::vector<LocalPlan>(plans.begin() + 1, plans.end()));
  plans[2].tensors.push_back(Whole("grown", {4}));
  const Outcome grown = Exchanged(plans, ranks);
  EXPECT_EQ(grown.messages, (std::vector<int>{4, 2, 2}));
  EXPECT_EQ(grown.others.at(1), plans[2]);
}

TEST(PlanExchange, OfARankWithoutTensorsIsOneExchange) {
  const std::vector<LocalPlan> plans{OfSlices(0, 1), {}};
  const Outcome outcome = Exchanged(plans);
  ASSERT_TRUE(IsOk(outcome.replies[1]));
  EXPECT_EQ(outcome.messages[1], 1);
  EXPECT_EQ(outcome.others, std::vector<LocalPlan>(1));
}

/// Rank 2 has given its save up, and makes the next one while rank 1 is asked for its tensors.
TEST(PlanExchange, NoticesARankThatIsInItsNextSave) {
  const std::vector<LocalPlan> plans{{}, OfSlices(0, 1), {}};
  auto ranks = MakeInProcessCoordinators(3);
  std::vector<Result<std::string>> replies;
  for (int i = 0; i < 3; ++i) {
    replies.emplace_back(std::string());
  }
  const auto exchange = [&](std::size_t rank) {
    LocalPlan own = plans[rank];
    PlanExchange mine = OfPlan(&own, 3);
    mine.settle = [](const GatheredPlans::Taken&, bool /*missed*/) {
      return Result<std::vector<std::string>>(std::vector<std::string>(3, "share"));
    };
    replies[rank] = ExchangePlans(*ranks[rank], mine);
  };
  {
    const std::jthread zero([&] { exchange(0); });
    const std::jthread one([&] { exchange(1); });
    const std::jthread two([&] {
      const Bytes first = EncodeTerms(TermsOf({}, "x", 3, false), EncodePlanHead(plans[2]));
      // As Exchange sends it; the reply is lost.
      EXPECT_TRUE(IsOk(ranks[2]->Send(0, std::string(1, '\0') + first, Deadline::max())));
      EXPECT_TRUE(IsOk(ranks[2]->Receive(0, Deadline::max())));
      exchange(2);
    });
  }
  for (const auto& reply : replies) {
    EXPECT_TRUE(
        FailsWith(reply, StatusCode::kFailedPrecondition, {"rank 2", "makes another call"}));
  }
}

TEST(PlanExchange, RefusesAPartThatIsNotWhatItsDigestSays) {
  for (const bool has_structure : {true, false}) {
    std::vector<LocalPlan> plans{{}, OfSlices(0, 1)};
    plans[1].structure = has_structure ? "structure" : "";
    const auto ranks = MakeCountingRanks(2);
    ranks[1]->Damage(2, has_structure ? 1 : 2);  // The structure, or the shape of the last tensor.
    const Outcome outcome = Exchanged(plans, ranks);
    for (const auto& reply : outcome.replies) {
      EXPECT_TRUE(FailsWith(reply, StatusCode::kDataLoss, {"plan of rank 1", "another part"}));
    }
  }
}

TEST(PlanExchange, RefusesAMalformedPlanAndNamesItsRank) {
  std::vector<LocalPlan> plans{OfSlices(0, 3), OfSlices(1, 3), OfSlices(2, 3)};
  plans[2].tensors[5].tied_to = 100;
  const Outcome outcome = Exchanged(plans);
  for (const auto& reply : outcome.replies) {
    EXPECT_TRUE(FailsWith(reply, StatusCode::kDataLoss, {"plan of rank 2", "tied"}));
  }
}

}  // namespace
}  // namespace varve::plan_exchange_test
