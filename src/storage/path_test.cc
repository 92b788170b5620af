#include <filesystem>

#include <gtest/gtest.h>

#include "storages/memory.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/storage.h"

namespace varve::path_test {
namespace {

using test::FailsWith;
using test::TempDir;

std::string Here() { return std::filesystem::current_path().string(); }

TEST(ResolvePath, JoinsRelativePathsWithTheWorkingDirectory) {
  EXPECT_EQ(ResolvePath("run/step-1").value(), Here() + "/run/step-1");
  EXPECT_EQ(ResolvePath("./s3:/odd").value(), Here() + "/./s3:/odd");
  EXPECT_TRUE(FailsWith(ResolvePath("s3:/odd"), StatusCode::kInvalidArgument, {"pathlib"}));
  EXPECT_EQ(ResolvePath("/run/step-1").value(), "/run/step-1");
}

TEST(ResolvePath, RefusesWhatWasMeantAsAUrl) {
  for (const char* path : {"s3:bucket/run", " s3://bucket/run", "\ts3://bucket/run",
                           "arn:aws:s3:::bucket/run", "https:host/run"}) {
    EXPECT_TRUE(FailsWith(ResolvePath(path), StatusCode::kInvalidArgument, {"a directory of"}))
        << path;
  }
  EXPECT_EQ(ResolvePath(" run").value(), Here() + "/ run");
}

TEST(ResolvePath, RefusesAHomeThatNoShellHasReplaced) {
  for (const char* path : {"~", "~/run"}) {
    EXPECT_TRUE(FailsWith(ResolvePath(path), StatusCode::kInvalidArgument,
                          {"os.path.expanduser", std::string("./") + path}))
        << path;
  }
  EXPECT_EQ(ResolvePath("~run").value(), Here() + "/~run");
  EXPECT_EQ(ResolvePath("./~/run").value(), Here() + "/./~/run");
}

TEST(ResolvePath, NeverCollapsesDotDot) {
  EXPECT_EQ(ResolvePath("link/../x").value(), Here() + "/link/../x");
  EXPECT_EQ(ResolvePath("/a/../b/./c//d/").value(), "/a/../b/./c//d/");
}

TEST(ResolvePath, LeavesNamesOfOtherStoragesAlone) {
  const MemoryStorage memory;
  EXPECT_EQ(ResolvePath("run/step-1", memory).value(), "run/step-1");
  EXPECT_TRUE(FailsWith(ResolvePath("s3://b/x", memory), StatusCode::kInvalidArgument, {"s3://"}));
}

TEST(ResolvePath, TakesNamesOfObjects) {
  EXPECT_EQ(ResolvePath("s3://bucket/run/step-1").value(), "s3://bucket/run/step-1");
  EXPECT_EQ(ResolvePath("s3://bucket/run//").value(), "s3://bucket/run");
  EXPECT_EQ(ResolvePath("s3://bucket//run///step-1").value(), "s3://bucket/run/step-1");
  EXPECT_EQ(ResolvePath("s3://bucket").value(), "s3://bucket");
  EXPECT_TRUE(FailsWith(ResolvePath("s3://b/run/../x"), StatusCode::kInvalidArgument, {"\"..\""}));
  EXPECT_TRUE(FailsWith(ResolvePath("s3://b/./x"), StatusCode::kInvalidArgument, {"\".\""}));
  EXPECT_EQ(ResolvePath("weka://bucket/run/").value(), "weka://bucket/run");
  EXPECT_TRUE(FailsWith(ResolvePath("r2:///run"), StatusCode::kInvalidArgument, {"bucket"}));
  EXPECT_TRUE(FailsWith(ResolvePath("s3:///run"), StatusCode::kInvalidArgument, {"bucket"}));
  EXPECT_TRUE(FailsWith(ResolvePath("s3://b/x", PosixStorage()), StatusCode::kInvalidArgument,
                        {"s3://", "mounted file system"}));
}

TEST(ResolvePath, TakesFileUrlsOfThisHost) {
  EXPECT_EQ(ResolvePath("file:///run/a b%20c").value(), "/run/a b%20c");
  EXPECT_EQ(ResolvePath("file://localhost/run").value(), "/run");
  for (const char* url : {"file://run/x", "file://", "file://host/run", "file://localhost"}) {
    EXPECT_TRUE(FailsWith(ResolvePath(url), StatusCode::kInvalidArgument, {url, "absolute path"}));
  }
}

TEST(ResolvePath, RefusesOtherSchemesAndNamesTheOneThereIs) {
  for (const char* url : {"gs://bucket/x", "r3://b", "hf+ssh://b/c", "memory://"}) {
    EXPECT_TRUE(FailsWith(ResolvePath(url), StatusCode::kInvalidArgument, {url, "file://"}));
  }
  EXPECT_EQ(ResolvePath("./s3://bucket").value(), Here() + "/./s3://bucket");
  EXPECT_EQ(ResolvePath("/run/s3://bucket").value(), "/run/s3://bucket");
}

TEST(ResolvePath, RefusesWhatCannotBeAPath) {
  EXPECT_TRUE(FailsWith(ResolvePath(""), StatusCode::kInvalidArgument, {"empty"}));
  EXPECT_TRUE(FailsWith(ResolvePath(std::string_view("a\0b", 3)), StatusCode::kInvalidArgument,
                        {"\"a\"", "NUL"}));
}

TEST(ResolvePath, SaysThatTheWorkingDirectoryWasRemoved) {
  const std::string before = Here();
  std::string removed;
  {
    const TempDir dir;
    removed = dir.path();
    std::filesystem::current_path(removed);
  }
  const auto resolved = ResolvePath("x");
  std::filesystem::current_path(before);
  EXPECT_TRUE(FailsWith(resolved, StatusCode::kUnavailable, {"\"x\"", "working directory"}));
}

}  // namespace
}  // namespace varve::path_test
