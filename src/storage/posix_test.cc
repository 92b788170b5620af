// Files that a client of NFS keeps for processes that have them open.

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/storage.h"

namespace varve {
namespace {

using test::FailsWith;
using test::IsOk;

class FilesKeptByNfs : public testing::Test {
 protected:
  FilesKeptByNfs() {
    EXPECT_TRUE(IsOk(PosixStorage().MakeDirectory(directory_)));
    Write(".nfs00000000000200160000001f");
    Write("data");
  }

  void Write(const std::string& name) {
    EXPECT_TRUE(IsOk(WriteWholeFile(PosixStorage(), JoinPath(directory_, name), "x")));
  }

  test::TempDir temporary_;
  std::string directory_ = temporary_ / "directory";
};

TEST_F(FilesKeptByNfs, AreNotListed) {
  Write(".nfs-notes");
  const auto entries = PosixStorage().List(directory_);
  ASSERT_TRUE(IsOk(entries));
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_EQ(entries->at(0).name, ".nfs-notes");
  EXPECT_EQ(entries->at(1).name, "data");
}

TEST_F(FilesKeptByNfs, DoNotHinderARemovalOfWhatIsBesideThem) {
  EXPECT_TRUE(IsOk(PosixStorage().Remove(directory_)));
  EXPECT_FALSE(std::filesystem::exists(JoinPath(directory_, "data")));
  EXPECT_TRUE(std::filesystem::exists(directory_));
  EXPECT_TRUE(IsOk(PosixStorage().extras().empty_directories->RemoveEmpty(directory_)));
  Write("another");
  EXPECT_TRUE(FailsWith(PosixStorage().extras().empty_directories->RemoveEmpty(directory_),
                        StatusCode::kAlreadyExists));
}

}  // namespace
}  // namespace varve
