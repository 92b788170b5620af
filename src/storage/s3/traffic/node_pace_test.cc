#include "storage/s3/traffic/node_pace.h"

#include <chrono>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time_source.h"
#include "storage/s3/traffic/concurrency.h"
#include "storage/s3/traffic/traffic.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::s3::node_pace_test {
namespace {

using std::chrono::milliseconds;
using test::FailsWith;

class NodePaceTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kRate = 1'000'000;

  /// Returns how long after `now_` a transfer of so many bytes may begin.
  milliseconds Wait(NodePace& pace, std::uint64_t bytes) {
    const auto start = pace.Reserve(bytes, now_);
    EXPECT_TRUE(start.ok()) << start.status().ToString();
    return start.ok() ? std::chrono::duration_cast<milliseconds>(*start - now_) : milliseconds(-1);
  }

  test::TempDir dir_;
  const std::string file_ = dir_.path() + "/pace";
  TimePoint now_ = TimePoint() + std::chrono::hours(50);
};

TEST_F(NodePaceTest, TransfersOfSeveralHoldersFollowEachOther) {
  NodePace a(file_, kRate);
  NodePace b(file_, kRate);
  EXPECT_EQ(Wait(a, 500'000), milliseconds(0));
  EXPECT_EQ(Wait(b, 250'000), milliseconds(500));
  EXPECT_EQ(Wait(a, 1), milliseconds(750));
}

TEST_F(NodePaceTest, TimeThatPassedUnusedIsNotSaved) {
  NodePace pace(file_, kRate);
  EXPECT_EQ(Wait(pace, 1'000'000), milliseconds(0));
  now_ += std::chrono::seconds(60);
  EXPECT_EQ(Wait(pace, 1'000'000), milliseconds(0));
  EXPECT_EQ(Wait(pace, 1), milliseconds(1000));
}

TEST_F(NodePaceTest, WhatAProcessHasReservedOutlastsItAndPasses) {
  const pid_t child = ::fork();
  if (child == 0) {
    NodePace pace(file_, kRate);
    ::_exit(Wait(pace, 2'000'000).count() == 0 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  NodePace pace(file_, kRate);
  EXPECT_EQ(Wait(pace, 1), milliseconds(2000));
  now_ += std::chrono::seconds(3);
  EXPECT_EQ(Wait(pace, 1), milliseconds(0));
}

TEST_F(NodePaceTest, AForkedChildSharesTheMomentWithItsParent) {
  NodePace pace(file_, kRate);
  EXPECT_EQ(Wait(pace, 1'000'000), milliseconds(0));
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(Wait(pace, 1'000'000).count() == 1000 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Wait(pace, 1), milliseconds(2000));
}

TEST_F(NodePaceTest, AMomentOfAnotherBootIsNotHeard) {
  {
    NodePace pace(file_, kRate);
    now_ += std::chrono::hours(9000);
    EXPECT_EQ(Wait(pace, 1'000'000), milliseconds(0));
  }
  now_ -= std::chrono::hours(9000);
  NodePace pace(file_, kRate);
  EXPECT_EQ(Wait(pace, 1'000'000), milliseconds(0));
  EXPECT_EQ(Wait(pace, 1), milliseconds(1000));
}

TEST_F(NodePaceTest, AFileOfAnyContentIsUsedAndNeverMadeShorter) {
  std::ofstream(file_) << std::string(100, '\x7f');
  NodePace pace(file_, kRate);
  EXPECT_EQ(Wait(pace, 1'000'000), milliseconds(0));
  EXPECT_EQ(Wait(pace, 1), milliseconds(1000));
  EXPECT_EQ(std::ifstream(file_, std::ios::ate).tellg(), 100);
}

TEST_F(NodePaceTest, AFileThatCannotBeUsedIsNamedWithWhatToDo) {
  NodePace nowhere(dir_.path() + "/no/such/folder", kRate);
  EXPECT_TRUE(FailsWith(nowhere.Reserve(1, now_), StatusCode::kFailedPrecondition,
                        {"no/such/folder", "VARVE_S3_MAX_BANDWIDTH_PER_NODE"}));
  ASSERT_EQ(::symlink("/dev/null", file_.c_str()), 0);
  NodePace link(file_, kRate);
  EXPECT_TRUE(FailsWith(link.Reserve(1, now_), StatusCode::kFailedPrecondition, {file_}));
}

TEST_F(NodePaceTest, ARequestOfOneProcessWaitsForTheTransferOfAnother) {
  TrafficLimits limits;
  limits.node_bytes_per_second = kRate;
  Traffic one(limits, dir_.path() + "/slots", file_);
  Traffic other(limits, dir_.path() + "/slots", file_);
  Load server{Unloaded(4)};
  const TimePoint begin = Now();
  ASSERT_TRUE(one.Begin(&server, 50'000).ok());
  ASSERT_TRUE(other.Begin(&server, 1).ok());
  EXPECT_GE(Now() - begin, milliseconds(50));
}

}  // namespace
}  // namespace varve::s3::node_pace_test
