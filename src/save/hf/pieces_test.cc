#include "save/hf/pieces.h"

#include <gtest/gtest.h>

#include "support/many_ranks.h"

namespace varve::test::pieces_test {
namespace {

using Pieces = ManyRanks;

TEST_F(Pieces, OfManyRanksAreFetchedOnceAlthoughEachIsSmall) {
  CountFetched("/varve-pieces/data-");
  SaveOptions options;
  options.format = Format::kSafetensors;
  options.shard_size = kBytes / kTensors;
  SaveAll("s3://bucket/model", options);
  EXPECT_GE(fetched_, kBytes);
  EXPECT_LE(fetched_, kBytes + kBytes / 10);
}

}  // namespace
}  // namespace varve::test::pieces_test
