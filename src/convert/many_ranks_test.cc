#include "support/many_ranks.h"

#include <gtest/gtest.h>

#include "varve/convert.h"

namespace varve::test::many_ranks_test {
namespace {

using ConversionOfManyRanks = ManyRanks;

TEST_F(ConversionOfManyRanks, FetchesEachBlockOnceAlthoughABatchHasLessOfIt) {
  SaveAll("s3://bucket/step-1", {});
  CountFetched("/step-1/");
  ConvertOptions options;
  options.to = ConvertTarget::kVarve;
  ASSERT_TRUE(IsOk(Convert("s3://bucket/step-1", "s3://bucket/one", options, storage_).status()));
  server_.SetScript({});
  EXPECT_GE(fetched_, kBytes);
  EXPECT_LE(fetched_, kBytes + kBytes / 10);
  const auto difference = Diff("s3://bucket/step-1", "s3://bucket/one", storage_);
  ASSERT_TRUE(IsOk(difference.status()));
  EXPECT_TRUE(difference->differences.empty());
}

}  // namespace
}  // namespace varve::test::many_ranks_test
