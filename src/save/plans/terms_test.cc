#include "save/plans/terms.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "storages/memory.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve::terms_test {
namespace {

using test::FailsWith;
using test::IsOk;

std::string MessageOf(const SaveOptions& options, std::string_view path = "/a/step-1") {
  return EncodeTerms(TermsOf(options, path, 4, false), "plan");
}

TEST(SaveTerms, OfRanksThatAgreeLeaveTheirPlans) {
  std::vector<std::string> messages{MessageOf({}), MessageOf({}, "/b/step-1")};
  EXPECT_TRUE(IsOk(AgreeOnTerms(&messages)));
  EXPECT_EQ(messages, (std::vector<std::string>{"plan", "plan"}));
}

TEST(SaveTerms, ThatDifferAreNamedWithTheirValuesAndRanks) {
  const std::string other = MessageOf({.overwrite = Overwrite::kAlways, .format = Format::kDcp});
  std::vector<std::string> messages{MessageOf({}), other, MessageOf({}), other};
  EXPECT_TRUE(FailsWith(AgreeOnTerms(&messages), StatusCode::kInvalidArgument,
                        {"format (dcp on ranks 1, 3, varve on ranks 0, 2)",
                         "overwrite (false on ranks 0, 2, true on ranks 1, 3)", "same arguments"}));
}

TEST(SaveTerms, OfAnotherCheckpointAreAnErrorAndNotAMix) {
  std::vector<std::string> messages{MessageOf({}), MessageOf({}, "/a/step-2")};
  EXPECT_TRUE(FailsWith(AgreeOnTerms(&messages), StatusCode::kInvalidArgument,
                        {"\"step-1\" on rank 0", "\"step-2\" on rank 1"}));
}

TEST(SaveTerms, OfARankInAnotherCallAreMissing) {
  for (const std::string& odd : {std::string(), std::string("\x03xyz"), std::string("save plan")}) {
    std::vector<std::string> messages{MessageOf({}), odd};
    EXPECT_TRUE(FailsWith(AgreeOnTerms(&messages), StatusCode::kFailedPrecondition,
                          {"rank 1", "another call"}));
  }
}

TEST(SaveTerms, SurviveEveryTruncation) {
  const std::string whole = EncodeTerms(TermsOf({}, "/a/step-1", 4, false), "");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::vector<std::string> messages{whole, whole.substr(0, size)};
    EXPECT_FALSE(AgreeOnTerms(&messages).ok()) << size;
  }
}

TEST(SaveTerms, ThatDifferFailTheSaveOnAllRanksAndLeaveNothing) {
  const test::TempDir dir;
  auto ranks = MakeInProcessCoordinators(3);
  {
    std::vector<std::jthread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&] {
        const SaveOptions options{.overwrite =
                                      rank->rank() == 2 ? Overwrite::kAlways : Overwrite::kNever};
        EXPECT_TRUE(FailsWith(Save({}, dir / "step-1", options, *rank),
                              StatusCode::kInvalidArgument,
                              {"overwrite (false on ranks 0, 1, true on rank 2)"}));
      });
    }
  }
  const auto names = PosixStorage().List(dir.path());
  ASSERT_TRUE(IsOk(names));
  EXPECT_TRUE(names->empty());
}

TEST(SaveHeader, ThatWouldBeTooLargeFailsTheSaveOnAllRanksAndLeavesNothing) {
  MemoryStorage memory;
  const std::vector<float> values(16);
  auto ranks = MakeInProcessCoordinators(2);
  {
    std::vector<std::jthread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&] {
        const std::size_t name_bytes = rank->rank() == 1 ? 9'000'000 : 10;
        State state;
        for (const char* name : {"a", "b"}) {
          state.tensors.push_back({.fqn = name + std::string(name_bytes, '\x01'),
                                   .dtype = DType::kFloat32,
                                   .shape = {16},
                                   .box = WholeBox({16}),
                                   .source = HostMemory{values.data()}});
        }
        EXPECT_TRUE(FailsWith(Save(state, "runs/step-1", {}, *rank, memory),
                              StatusCode::kInvalidArgument, {"data file of rank 1", "100 MB"}));
      });
    }
  }
  const auto left = memory.List("runs");
  EXPECT_TRUE(!left.ok() || left->empty());
}

}  // namespace
}  // namespace varve::terms_test
