// Overwrites of a directory of ranks' files by one of another layout or world, stopped at each
// operation: the name always holds one whole set of files, and after the next save no file of the
// old set is left, but the user's are.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "crash/saves.h"
#include "publish/claim.h"
#include "publish/files_commit.h"

namespace varve::test::files_commit_crash_test {
namespace {

constexpr const char* kName = "runs/step-1";
constexpr const char* kNotes = "runs/step-1/notes.txt";

/// Names of the files of a checkpoint, without the mark.
using Layout = std::vector<std::string>;

const Layout& Local(std::size_t world) {
  static std::map<std::size_t, Layout> layouts;
  Layout& files = layouts[world];
  if (files.empty()) {
    files = {"metadata.yaml"};
    for (std::size_t rank = 0; rank < world; ++rank) {
      for (const char* part : {"model", "optim", "train"}) {
        files.push_back(std::string(part) + "/rank" + std::to_string(rank) + ".pt");
      }
    }
  }
  return files;
}

const Layout kLegacy{"rank0.pt", "rank1.pt"};
const Layout kTorchNew{"model_and_optim/.metadata", "model_and_optim/__0_0.distcp",
                       "train/rank0.pt"};

Status Save(Storage& storage, const Layout& files, const std::string& content) {
  VARVE_ASSIGN_OR_RETURN(
      const auto commit,
      FilesCommit::Begin(kName, {.overwrite = Overwrite::kAlways, .mark = "config.yaml"}, storage));
  std::vector<std::pair<std::string, std::uint64_t>> sizes;
  for (const std::string& name : files) {
    const std::string path = JoinPath(commit->staging(), name);
    VARVE_RETURN_IF_ERROR(MakeDirectories(storage, ParentPath(path)));
    VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, path, content));
    sizes.emplace_back(name, content.size());
  }
  return commit->Publish(sizes, content);
}

/// Returns true where the name holds each of these files with this content, the mark too.
bool Holds(Storage& storage, const Layout& files, const std::string& content) {
  Layout all = files;
  all.emplace_back("config.yaml");
  for (const std::string& name : all) {
    const auto found = ReadWholeFile(storage, JoinPath(kName, name), 1 << 20);
    if (!found.ok() || *found != content) {
      return false;
    }
  }
  return true;
}

/// Adds the paths of all files below a directory.
void AddFiles(Storage& storage, const std::string& directory, std::set<std::string>* files) {
  const auto entries = storage.List(directory);
  for (std::size_t i = 0; entries.ok() && i < entries->size(); ++i) {
    const std::string path = JoinPath(directory, (*entries)[i].name);
    if ((*entries)[i].is_directory) {
      AddFiles(storage, path, files);
    } else {
      files->insert(path);
    }
  }
}

struct Case {
  const char* name;
  Layout from;
  Layout to;
};

class FilesCommitCrash : public testing::TestWithParam<Case> {};

TEST_P(FilesCommitCrash, LeavesOneWholeSetUnderTheNameAndTheNextSaveLeavesNoOther) {
  const Case& tried = GetParam();
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(Save(memory, tried.from, "old")));
  ASSERT_TRUE(IsOk(WriteWholeFile(memory, kNotes, "mine")));
  ASSERT_TRUE(IsOk(memory.SyncDirectory(kName)));
  const auto base = memory.AfterPowerCut(PowerCut::kKeepAll);
  for (std::uint64_t k = 0;; k += kEvery) {
    const testing::ScopedTrace trace("", 0, "stopped after " + std::to_string(k) + " changes");
    const auto under_test = base->AfterKill();
    FaultyStorage faulty(*under_test);
    faulty.StopAt(k);
    const Status outcome = Save(faulty, tried.to, "new");
    for (const Survivor& survivor : Survivors(*under_test, 4)) {
      const testing::ScopedTrace how("", 0, survivor.how);
      const bool is_new = Holds(*survivor.storage, tried.to, "new");
      ASSERT_NE(is_new, Holds(*survivor.storage, tried.from, "old"));
      ASSERT_TRUE(is_new || !outcome.ok()) << "the save has returned";
      ASSERT_TRUE(IsOk(Save(*survivor.storage, tried.to, "newer")));
      ASSERT_TRUE(Holds(*survivor.storage, tried.to, "newer"));
      std::set<std::string> wanted{kNotes, JoinPath(kName, "config.yaml")};
      for (const std::string& name : tried.to) {
        wanted.insert(JoinPath(kName, name));
      }
      std::set<std::string> found;
      AddFiles(*survivor.storage, "runs", &found);
      ASSERT_EQ(found, wanted);
    }
    if (!faulty.stopped()) {
      EXPECT_TRUE(IsOk(outcome));
      EXPECT_GE(k, 15U);
      return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, FilesCommitCrash,
                         testing::Values(Case{"ASmallerWorld", Local(3), Local(2)},
                                         Case{"LegacyOverLocal", Local(2), kLegacy},
                                         Case{"LocalOverTorchNew", kTorchNew, Local(1)},
                                         Case{"TorchNewOverLegacy", kLegacy, kTorchNew}),
                         [](const auto& tried) { return tried.param.name; });

}  // namespace
}  // namespace varve::test::files_commit_crash_test
