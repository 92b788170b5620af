#include "storage/http/retry.h"

#include <gtest/gtest.h>

namespace varve::http::retry_test {
namespace {

using std::chrono::milliseconds;
constexpr Answer kTransient{AnswerKind::kTransient};

TEST(Retry, AnAnswerOfAServerWithTooMuchToDoMayPass) {
  for (const int status : {0, 408, 409, 429, 500, 502, 503, 504, 520, 524, 599}) {
    EXPECT_EQ(Classify(status, ""), AnswerKind::kTransient) << status;
  }
  EXPECT_EQ(Classify(400, "RequestTimeout"), AnswerKind::kTransient);
}

TEST(Retry, ARefusalStays) {
  for (const int status : {301, 400, 401, 403, 404, 405, 411, 412, 416, 501, 505, 507}) {
    EXPECT_EQ(Classify(status, "AccessDenied"), AnswerKind::kFinal) << status;
  }
}

TEST(Retry, AnErrorBehindAStatus200IsNoSuccess) {
  EXPECT_EQ(Classify(200, ""), AnswerKind::kGood);
  EXPECT_EQ(Classify(200, "InternalError"), AnswerKind::kTransient);
  EXPECT_EQ(Classify(200, "SomethingNew"), AnswerKind::kTransient);
}

TEST(Retry, WaitsAreARandomPartOfALimitThatDoubles) {
  const RetryPolicy policy;
  RequestState state;
  milliseconds limit = policy.first;
  for (int i = 0; i < 12; ++i) {
    const auto most =
        Step(state, kTransient, policy, static_cast<std::uint64_t>(limit.count()), {});
    EXPECT_EQ(most.wait, limit);
    EXPECT_EQ(
        Step(state, kTransient, policy, static_cast<std::uint64_t>(limit.count()) + 1, {}).wait,
        milliseconds(0));
    EXPECT_EQ(most.is, RequestAction::kWait);
    state = TimePassed(most);
    EXPECT_EQ(state.is, RequestAction::kSend);
    limit = std::min(2 * limit, policy.longest);
  }
}

TEST(Retry, AServersWishIsHeardUpToTheLongestWait) {
  const RetryPolicy policy;
  EXPECT_EQ(Step({}, {AnswerKind::kTransient, milliseconds(5'000)}, policy, 0, {}).wait,
            milliseconds(5'000));
  EXPECT_EQ(Step({}, {AnswerKind::kTransient, milliseconds(3'600'000)}, policy, 0, {}).wait,
            policy.longest);
}

TEST(Retry, EndsAtItsDeadline) {
  const RetryPolicy policy;
  EXPECT_EQ(Step({}, kTransient, policy, 0, policy.time_limit).is, RequestAction::kWait);
  EXPECT_EQ(Step({}, kTransient, policy, 0, policy.time_limit + milliseconds(1)).is,
            RequestAction::kFailed);
}

TEST(Retry, AServerThatCorrectsForEverIsGivenUp) {
  const RetryPolicy policy;
  RequestState state;
  for (int i = 0; i < policy.most_corrections; ++i) {
    state = Step(state, {AnswerKind::kCorrected}, policy, 0, {});
    EXPECT_EQ(state.is, RequestAction::kSend);
  }
  EXPECT_EQ(Step(state, {AnswerKind::kCorrected}, policy, 0, {}).is, RequestAction::kFailed);
}

}  // namespace
}  // namespace varve::http::retry_test
