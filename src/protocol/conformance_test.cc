// The suite on our own backend, on one that a user might write, and on backends with one flaw each:
// a suite that no backend fails proves nothing.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/memory_backend.h"
#include "support/temp_dir.h"
#include "varve/protocol/file_system.h"
#include "varve/protocol/storage_layer.h"

namespace varve::protocol::conformance_test {
namespace {

using test::Flaw;
using test::MemoryReader;
using test::MemoryWriter;
using test::Store;

TEST(StorageConformance, OurFileSystemBackendMeetsEveryClaim) {
  const varve::test::TempDir dir;
  int number = 0;
  const auto claims = RunStorageConformance({
      .make_writer = [] { return std::make_unique<FileSystemWriter>("unset"); },
      .make_reader = [] { return std::make_unique<FileSystemReader>("unset"); },
      .new_checkpoint_id = [&] { return dir / ("step-" + std::to_string(++number)); },
  });
  EXPECT_EQ(DescribeFailures(claims), "");
  EXPECT_GE(claims.size(), 15U);
}

TEST(StorageConformance, OurBackendMeetsItWithoutOverwriting) {
  const varve::test::TempDir dir;
  int number = 0;
  const auto claims = RunStorageConformance({
      .make_writer =
          [] {
            FileSystemWriterOptions options;
            options.overwrite = false;
            options.direct = false;
            options.block_bytes = 4096;
            return std::make_unique<FileSystemWriter>("unset", options);
          },
      .make_reader = [] { return std::make_unique<FileSystemReader>("unset"); },
      .new_checkpoint_id = [&] { return dir / ("step-" + std::to_string(++number)); },
  });
  EXPECT_EQ(DescribeFailures(claims), "");
}

std::vector<ConformanceClaim> ClaimsOf(Flaw flaw) {
  Store store;
  int number = 0;
  return RunStorageConformance({
      .make_writer = [&] { return std::make_unique<MemoryWriter>(store, flaw); },
      .make_reader = [&] { return std::make_unique<MemoryReader>(store, flaw); },
      .new_checkpoint_id = [&] { return std::to_string(++number); },
      .break_storage =
          [&](bool broken) {
            const std::lock_guard lock(store.mutex);
            store.broken = broken;
          },
  });
}

TEST(StorageConformance, ABackendOfOneClassEachMeetsEveryClaim) {
  EXPECT_EQ(DescribeFailures(ClaimsOf(Flaw::kNone)), "");
}

struct FlawCase {
  Flaw flaw;
  std::string claim;   // That must fail,
  std::string phrase;  // and say this.
};

class FlawedBackend : public testing::TestWithParam<FlawCase> {};

TEST_P(FlawedBackend, IsFound) {
  const auto claims = ClaimsOf(GetParam().flaw);
  const auto claim = std::find_if(claims.begin(), claims.end(), [](const ConformanceClaim& one) {
    return one.name == GetParam().claim;
  });
  ASSERT_NE(claim, claims.end());
  EXPECT_FALSE(claim->passed);
  EXPECT_NE(claim->message.find(GetParam().phrase), std::string::npos) << claim->message;
}

INSTANTIATE_TEST_SUITE_P(
    All, FlawedBackend,
    testing::Values(
        FlawCase{Flaw::kLosesValues, "WholeTensorsAndValuesComeBack", "is gone"},
        FlawCase{Flaw::kLosesAResult, "ManySmallThingsComeBack", "gave no result for"},
        FlawCase{Flaw::kIgnoresPlanner, "AFailedSaveShowsNothing", "reported as a success"},
        FlawCase{Flaw::kIgnoresStorage, "AWriteThatFailsIsReported", "reported as a success"},
        FlawCase{Flaw::kShowsEarly, "NothingShowsBeforeFinish", "never finished"},
        FlawCase{Flaw::kWritesInPlace, "AFailedSaveLeavesThePreviousCheckpointWhole", "not what"},
        FlawCase{Flaw::kKeepsTheOld, "AReplacedCheckpointIsTheNewOneAlone", "still there"},
        FlawCase{Flaw::kForgetsOffsets, "ShardsLoadIntoAnotherLayout", "tensor \"matrix\""},
        FlawCase{Flaw::kForgetsPlannerData, "MetadataComesBack", "planner_data"},
        FlawCase{Flaw::kIgnoresReadPlanner, "WhatThePlannerRefusesFailsTheLoad", "LoadBytes"},
        FlawCase{Flaw::kCommitsTwice, "EachItemIsDeliveredOnce", "delivered 2 times"},
        FlawCase{Flaw::kLetsGoTooEarly, "ContentIsHeldWhileItIsWritten", "is not what"},
        FlawCase{Flaw::kMissingIsEmpty, "AMissingCheckpointIsNotFound", "never finished"}));

}  // namespace
}  // namespace varve::protocol::conformance_test
