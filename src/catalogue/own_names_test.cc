#include "catalogue/own_names.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/formats.h"
#include "storages/memory.h"
#include "support/small_state.h"
#include "support/status_matchers.h"

namespace varve::test::own_names_test {
namespace {

constexpr const char* kPath = "ck";

/// A storage with the directory kPath, and in it files of these names, folders included.
class Directory {
 public:
  explicit Directory(const std::vector<std::string>& names) {
    EXPECT_TRUE(IsOk(storage_.MakeDirectory(kPath)));
    for (const std::string& name : names) {
      if (const std::size_t end = name.find('/'); end != std::string::npos) {
        (void)storage_.MakeDirectory(JoinPath(kPath, name.substr(0, end)));
      }
      EXPECT_TRUE(IsOk(Rewrite(storage_, JoinPath(kPath, name), "x")));
    }
    entries_ = *storage_.List(kPath);
  }

  [[nodiscard]] std::optional<Format> Shown() { return ShownFormat(storage_, kPath, entries_); }
  [[nodiscard]] std::optional<Format> Opened() { return FormatOf(storage_, kPath, entries_); }
  [[nodiscard]] OwnNames Names() { return {storage_, path_, entries_}; }

 private:
  MemoryStorage storage_;
  const std::string path_ = kPath;
  std::vector<DirectoryEntry> entries_;
};

std::optional<Format> Shown(const std::vector<std::string>& names) {
  return Directory(names).Shown();
}
std::optional<Format> Opened(const std::vector<std::string>& names) {
  return Directory(names).Opened();
}

/// Returns those of `names` that are part of the checkpoint shown by `shown`.
std::vector<std::string> Own(const std::vector<std::string>& shown,
                             const std::vector<std::string>& names) {
  Directory directory(shown);
  OwnNames own = directory.Names();
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [&](const std::string& name) { return own.Contains(name); });
  return found;
}

const std::vector<std::string> kNames{"varve.json",
                                      "manifest.bin",
                                      "data-00000-of-00002.safetensors",
                                      "data-00001-of-00002-0123456789ab.safetensors",
                                      ".data-00001-of-00002-0123456789ab.safetensors.varve-part",
                                      ".rank-00001.varve-lock",
                                      ".varve.json.varve-part",
                                      ".varve-staging",
                                      ".metadata",
                                      ".metadata.tmp",
                                      "__3.metadata",
                                      "__0_0.distcp",
                                      "model.safetensors.index.json",
                                      "model.safetensors",
                                      "model-00001-of-00002.safetensors",
                                      "config.json",
                                      "data-train.safetensors",
                                      "data-00000-of-00002.safetensors.bak",
                                      "adapter_model.safetensors",
                                      "__x.metadata",
                                      "rank7.pt",
                                      "tokenizer/vocab.json",
                                      "backup/varve.json",
                                      "backup/__0_0.distcp",
                                      "backup/model.safetensors"};

std::vector<std::string> Slice(std::size_t begin, std::size_t end) {
  return {kNames.begin() + static_cast<std::ptrdiff_t>(begin),
          kNames.begin() + static_cast<std::ptrdiff_t>(end)};
}

TEST(OwnNames, OfNativeCheckpointAreIndexAndDataFilesWhateverTheSave) {
  EXPECT_EQ(Own({"varve.json"}, kNames), Slice(0, 8));
  EXPECT_EQ(Own({"data-00000-of-00002-0123456789ab.safetensors"}, kNames), Slice(0, 8));
}

TEST(OwnNames, OfDcpCheckpointAreIndexesAndDistcpFiles) {
  std::vector<std::string> expected = Slice(4, 8);  // Hidden names are ours everywhere.
  for (const std::string& name : Slice(8, 12)) {
    expected.push_back(name);
  }
  EXPECT_EQ(Own({".metadata", "__0_0.distcp"}, kNames), expected);
}

TEST(OwnNames, OfHuggingFaceFolderAreTheModelsFiles) {
  std::vector<std::string> expected = Slice(4, 8);
  for (const std::string& name : Slice(12, 15)) {
    expected.push_back(name);
  }
  EXPECT_EQ(Own({"model.safetensors.index.json"}, kNames), expected);
}

TEST(OwnNames, OfUnknownDirectoryAreTheNamesOfEveryFormat) {
  EXPECT_EQ(Own({"__0_0.distcp"}, kNames), Slice(0, 15));
}

struct Sample {
  Format format;
  std::vector<std::string> names;
  bool is_replaceable = true;
};

/// A checkpoint of each format, by its names, in the order of the table.
const std::vector<Sample> kSamples{
    {Format::kVarve, {"varve.json"}},
    {Format::kHfai, {"PART_000.pt"}},
    {Format::kDcp, {".metadata", "__0_0.distcp"}},
    {Format::kDcp, {"__0.metadata", "__0_0.distcp"}},
    {Format::kOlmoTorchNew, {"config.yaml", "model_and_optim/.metadata", "train/rank0.pt"}},
    {Format::kOlmoLocal, {"config.yaml", "metadata.yaml", "model/rank0.pt"}},
    {Format::kOlmoCore,
     {"config.yaml", "model/rank_0.safetensors", "optim/rank_0.safetensors", "train/rank0.pt"}},
    {Format::kSafetensors, {"model.safetensors.index.json", "model-00001-of-00001.safetensors"}},
    {Format::kOlmoLegacy, {"config.yaml", "rank0.pt"}},
    {Format::kOlmoFull, {"config.yaml", "model.pt", "optim.pt"}},
    {Format::kSafetensors, {"model.safetensors"}, false},
    {Format::kTorchSave, {"pytorch_model.bin"}, false}};

TEST(Formats, OfTwoInOneDirectoryReadersAndRemovalsTakeTheSameOne) {
  for (std::size_t i = 0; i < kSamples.size(); ++i) {
    for (std::size_t j = i; j < kSamples.size(); ++j) {
      std::set<std::string> names(kSamples[i].names.begin(), kSamples[i].names.end());
      names.insert(kSamples[j].names.begin(), kSamples[j].names.end());
      Directory both({names.begin(), names.end()});
      const std::string_view other = FormatName(kSamples[j].format);
      EXPECT_EQ(both.Opened(), kSamples[i].format) << other;
      EXPECT_EQ(both.Shown(),
                kSamples[i].is_replaceable ? std::optional(kSamples[i].format) : std::nullopt)
          << FormatName(kSamples[i].format) << ", " << other;
    }
  }
}

TEST(Formats, AnIndexOfDcpBesideAFolderOfOlmosNameIsDcps) {
  EXPECT_EQ(Opened({".metadata", "model_and_optim/plot.png"}), Format::kDcp)
      << "OLMo writes nothing of that name: the folder is the user's";
  EXPECT_EQ(Shown({".metadata", "model_and_optim/plot.png"}), Format::kDcp);
}

TEST(Formats, AModelExportedBesideOlmosStateIsNotTheCheckpoint) {
  const std::string hf = "model.safetensors.index.json";
  EXPECT_EQ(Shown({"config.yaml", "model_and_optim/.metadata", hf}), Format::kOlmoTorchNew);
  EXPECT_EQ(Shown({"config.yaml", "model_and_optim/.metadata", "model.pt"}), Format::kOlmoTorchNew);
  EXPECT_EQ(Shown({"config.yaml", "rank0.pt", "model.pt"}), Format::kOlmoLegacy);
}

TEST(Formats, OlmosMetadataWithoutItsFoldersDoesNotHideTheFilesOfRanks) {
  EXPECT_EQ(Shown({"config.yaml", "metadata.yaml", "rank0.pt"}), Format::kOlmoLegacy);
}

TEST(Formats, AFileOfARankHasANumberAndNothingElseInItsName) {
  EXPECT_EQ(Opened({"rank0_backup.pt"}), std::nullopt);
  EXPECT_EQ(Opened({"model/rank_best.pt"}), std::nullopt);
  EXPECT_EQ(Opened({"rank4294967295.pt"}), Format::kOlmoLegacy) << "rank 0 is missing";
}

TEST(Formats, ADataFileOfVarvesHasTwoNumbersInItsName) {
  EXPECT_EQ(Opened({"data-train.safetensors", "data-test.safetensors"}), Format::kSafetensors);
  EXPECT_EQ(Opened({"data-00000-of-00002-0123456789ab.safetensors"}), Format::kVarve);
}

TEST(Formats, WhatMayBeAnyonesIsOpenedAndNeverReplaced) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"config.yaml", "model.safetensors"},
        {"config.yaml", "model/rank0.pt"},
        {"config.yaml", "model/rank_0.safetensors"},
        {"model_and_optim/.metadata"},
        {"rank0.pt"},
        {"model.pt", "optim.pt"}}) {
    EXPECT_TRUE(Opened(names).has_value()) << names.front();
    EXPECT_EQ(Shown(names), std::nullopt) << names.front();
  }
}

TEST(Formats, AMarkShowsThatOlmosCheckpointIsFinished) {
  EXPECT_EQ(Shown({".metadata.json", "model_and_optim/.metadata"}), Format::kOlmoTorchNew)
      << "OLMo-core writes this one";
  EXPECT_EQ(Shown({"config.yaml", "model_and_optim/notes.txt"}), std::nullopt);
  EXPECT_EQ(Shown({"model.pt", "config.yaml"}), Format::kOlmoFull);
  EXPECT_EQ(Shown({"model.pt", ".varve-uploaded"}), Format::kOlmoFull);
  EXPECT_EQ(Shown({"model.safetensors", ".varve-uploaded"}), std::nullopt);
}

TEST(Formats, AFolderOfAnIndexsNameIsNoIndex) {
  EXPECT_EQ(Opened({".metadata/x"}), std::nullopt);
  EXPECT_EQ(Opened({"model.safetensors.index.json/x"}), std::nullopt);
}

const std::vector<std::string> kOlmoNames{"config.yaml",
                                          "metadata.yaml",
                                          "model/rank0.pt",
                                          "optim/rank12.pt",
                                          "train/rank0.pt",
                                          "rank0.pt",
                                          "model_and_optim/.metadata",
                                          "model_and_optim/__0_0.distcp",
                                          "model/rankx.pt",
                                          "model/notes.txt",
                                          "train/deep/rank0.pt",
                                          "backup/rank0.pt",
                                          "plot.png"};

TEST(OwnNames, OfOlmosLayoutsAreTheFilesOfTheirFolders) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(Own({"config.yaml", "metadata.yaml", "model/rank0.pt"}, kOlmoNames),
            (Names{"config.yaml", "metadata.yaml", "model/rank0.pt", "optim/rank12.pt",
                   "train/rank0.pt"}));
  EXPECT_EQ(Own({"config.yaml", "rank3.pt"}, kOlmoNames), (Names{"config.yaml", "rank0.pt"}));
  EXPECT_EQ(Own({"rank3.pt"}, kOlmoNames), Names{}) << "the mark is missing";
}

TEST(OwnNames, OfAWholeStateOfOlmoIsTheTrainersUnderItsOlderNameToo) {
  const std::vector<std::string> names{"config.yaml", "model.pt", "optim.pt", "other.pt"};
  EXPECT_EQ(Own(names, names), names);
}

TEST(OwnNames, OfOlmoCoresLayoutAreTheSlicesInItsThreeFolders) {
  Directory directory({"config.yaml", "model/rank_0.safetensors", "optim/x", "train/x"});
  OwnNames own = directory.Names();
  for (const char* const name :
       {"config.yaml", "model/metadata.json", "optim/metadata.json", "model/rank_0.safetensors",
        "optim/rank_12.safetensors", "train/rank0.pt"}) {
    EXPECT_TRUE(own.Contains(name)) << name;
  }
  for (const char* const name :
       {"metadata.json", "train/metadata.json", "model/rank0.pt", "model/rank_.safetensors",
        "model/notes.txt", "model/deep/rank_0.safetensors", "rank_0.safetensors"}) {
    EXPECT_FALSE(own.Contains(name)) << name;
  }
  EXPECT_TRUE(own.OwnsFolder("optim"));
  EXPECT_FALSE(own.OwnsFolder("plots"));
}

TEST(OwnNames, TheNoteOfARemovalTellsTheFormatOfWhatIsLeft) {
  EXPECT_EQ(Own({".varve-replaced.olmo-local"}, {"model/rank0.pt", "rank0.pt"}),
            std::vector<std::string>{"model/rank0.pt"});
  EXPECT_EQ(Shown({".varve-replaced.dcp"}), std::nullopt) << "no removal notes that";
}

}  // namespace
}  // namespace varve::test::own_names_test
