#include "storage/s3/traffic/node_slots.h"

#include <csignal>
#include <set>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::s3::node_slots_test {
namespace {

using test::FailsWith;

class NodeSlotsTest : public testing::Test {
 protected:
  /// Takes all slots that are free. Returns how many.
  static int TakeAll(NodeSlots& slots) {
    int count = 0;
    while (true) {
      const auto slot = slots.TryTake();
      EXPECT_TRUE(slot.ok()) << slot.status().ToString();
      if (!slot.ok() || !*slot) {
        return count;
      }
      ++count;
    }
  }

  test::TempDir dir_;
  const std::string file_ = dir_.path() + "/slots";
};

TEST_F(NodeSlotsTest, HoldersThatDoNotKnowEachOtherShareTheLimit) {
  NodeSlots a(file_, 5);
  NodeSlots b(file_, 5);
  const auto one = a.TryTake();
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(TakeAll(b), 4);
  EXPECT_EQ(TakeAll(a), 0);
  a.GiveBack(**one);
  EXPECT_EQ(TakeAll(b), 1);
}

TEST_F(NodeSlotsTest, AKilledProcessGivesItsSlotsBack) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    NodeSlots slots(file_, 4);
    const char count = static_cast<char>(TakeAll(slots));
    (void)!::write(ready[1], &count, 1);
    ::pause();
    ::_exit(0);
  }
  char count = 0;
  ASSERT_EQ(::read(ready[0], &count, 1), 1);
  EXPECT_EQ(count, 4);
  NodeSlots slots(file_, 4);
  EXPECT_EQ(TakeAll(slots), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(TakeAll(slots), 4);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(NodeSlotsTest, AForkedChildDoesNotHoldItsParentsSlots) {
  NodeSlots slots(file_, 4);
  const auto one = slots.TryTake();
  ASSERT_TRUE(one.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(TakeAll(slots));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  slots.GiveBack(**one);
  EXPECT_EQ(TakeAll(slots), 4);
}

TEST_F(NodeSlotsTest, AFileThatCannotBeUsedIsAnErrorThatSaysSo) {
  NodeSlots slots(dir_.path() + "/no/such/folder", 4);
  EXPECT_TRUE(FailsWith(slots.TryTake().status(), StatusCode::kFailedPrecondition,
                        {"no/such/folder", "VARVE_S3_MAX_CONNECTIONS_PER_NODE"}));
}

}  // namespace
}  // namespace varve::s3::node_slots_test
