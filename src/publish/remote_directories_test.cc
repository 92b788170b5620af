// Directories of remote names, which a save makes before it writes.

#include <filesystem>
#include <memory>

#include <gtest/gtest.h>

#include "publish/claim.h"
#include "storage/any.h"
#include "support/object_store.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/storage_plugins.h"

namespace varve::test::remote_directories_test {
namespace {

// While a store could not be reached, the parents of "s3://bucket" were made on the disk: "s3:" in
// the working directory.
TEST(RemoteDirectories, SendNothingAndMakeNothingOnTheDisk) {
  const TempDir directory;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const auto store = std::make_shared<StoreInMemory>();
  ASSERT_TRUE(IsOk(RegisterObjectStore("mem", store, {})));
  EXPECT_TRUE(IsOk(MakeDirectories(AnyStorage(), "mem://bucket/run/step-1")));
  EXPECT_TRUE(IsOk(MakeDirectories(AnyStorage(), "mem://bucket")));
  EXPECT_TRUE(FailsWith(MakeDirectories(AnyStorage(), "https://host/run"),
                        StatusCode::kInvalidArgument, {"https://host/run", "only read"}));
  EXPECT_EQ(store->calls, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_TRUE(IsOk(UnregisterObjectStore("mem")));
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace varve::test::remote_directories_test
