// Every file of tests/fuzz_corpus/NAME is given to the fuzz target NAME. What a fuzzer once found
// is added there, and stays found. A crash here does not say which file it was; this does:
// fuzz/run 1 NAME, then build/fuzz/bin/NAME_fuzzer tests/fuzz_corpus/NAME/*

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fuzz_target.h"
#include "support/test_data.h"

namespace varve::replay_test {
namespace {

namespace fs = std::filesystem;

const fs::path& Corpus() {
  static const fs::path corpus = test::TestData() / "fuzz_corpus";
  return corpus;
}

std::vector<fs::path> FilesUnder(const fs::path& folder) {
  std::vector<fs::path> files;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string Content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(FuzzCorpus, EveryTargetTakesEveryFileOfItsCorpus) {
  ASSERT_FALSE(fuzz::Targets().empty());
  for (const auto& [name, target] : fuzz::Targets()) {
    const std::vector<fs::path> files = FilesUnder(Corpus() / name);
    EXPECT_FALSE(files.empty()) << "no seeds for the target " << name;
    for (const fs::path& file : files) {
      // A copy of its own, so that a sanitizer sees where the input ends.
      const std::string content = Content(file);
      const std::vector<char> input(content.begin(), content.end());
      target({input.data(), input.size()});
    }
  }
}

TEST(FuzzCorpus, EveryTargetTakesTheInputsOfAllOthers) {
  for (const auto& [name, target] : fuzz::Targets()) {
    for (const auto& entry : fs::recursive_directory_iterator(Corpus())) {
      if (entry.is_regular_file()) {
        target(Content(entry.path()));
      }
    }
    target({});
  }
}

TEST(FuzzCorpus, EveryFolderOfItHasATarget) {
  for (const fs::path& path : FilesUnder(Corpus())) {
    if (fs::is_directory(path)) {
      EXPECT_TRUE(fuzz::Targets().contains(path.filename().string()))
          << "fuzz/" << path.filename().string() << "_fuzzer.cc is not there";
    }
  }
}

}  // namespace
}  // namespace varve::replay_test
