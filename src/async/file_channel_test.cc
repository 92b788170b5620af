#include "async/file_channel.h"

#include <string>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::file_channel_test {
namespace {

using test::FailsWith;
using test::LongDeadline;
using test::TempDir;

TEST(FileChannel, AWithdrawalEndsAWaitAlsoWhereTheFolderWasNotThereYet) {
  const TempDir dir;
  const std::string path = dir / "new" + "/run/step-1";
  const FileIdentity waits{.rank = 0, .world_size = 2};
  const FileIdentity withdraws{.rank = 1, .world_size = 2};
  Withdraw({PosixStorage(), withdraws, path}, Unavailable("there is no copy"));
  const auto channel = MakeFileChannel({PosixStorage(), waits, path});
  EXPECT_TRUE(FailsWith(channel->Receive(1, LongDeadline()), StatusCode::kUnavailable,
                        {"rank 1", "there is no copy"}));
}

}  // namespace
}  // namespace varve::file_channel_test
