#include "catalogue/own_names.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "storage/memory.h"

namespace varve::test::own_names_test {
namespace {

std::vector<DirectoryEntry> Entries(const std::vector<std::string>& names) {
  std::vector<DirectoryEntry> entries;
  for (const std::string& name : names) {
    entries.push_back({.name = name});
  }
  return entries;
}

/// Returns those of `names` that are part of the checkpoint shown by `shown`.
std::vector<std::string> Own(const std::vector<std::string>& shown,
                             const std::vector<std::string>& names) {
  MemoryStorage storage;
  const std::string directory = "ck";
  const auto entries = Entries(shown);
  OwnNames own(storage, directory, entries);
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (own.Contains(name)) {
      found.push_back(name);
    }
  }
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

TEST(OwnNames, ShownFormatIsTheOneThatReadersOpen) {
  EXPECT_EQ(ShownFormat(Entries({"varve.json", ".metadata"})), Format::kVarve);
  EXPECT_EQ(ShownFormat(Entries({".metadata", "model.safetensors.index.json"})), Format::kDcp);
  EXPECT_EQ(ShownFormat(Entries({"model.safetensors.index.json"})), Format::kSafetensors);
  EXPECT_EQ(ShownFormat(Entries({"model.safetensors", "rank7.pt", "x.distcp"})), std::nullopt);
  EXPECT_EQ(ShownFormat(Entries({"model.pt", "config.yaml"})), Format::kOlmoFull);
  EXPECT_EQ(ShownFormat(Entries({"model.pt", ".varve-uploaded"})), Format::kOlmoFull);
  EXPECT_EQ(ShownFormat(Entries({"model.safetensors", ".varve-uploaded"})), std::nullopt);
  EXPECT_EQ(ShownFormat(Entries({"model.pt", "notes.txt"})), std::nullopt);
  EXPECT_EQ(ShownFormat({{.name = ".metadata", .is_directory = true}}), std::nullopt);
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
  EXPECT_EQ(Own({"config.yaml", "metadata.yaml"}, kOlmoNames),
            (Names{"config.yaml", "metadata.yaml", "model/rank0.pt", "optim/rank12.pt",
                   "train/rank0.pt"}));
  EXPECT_EQ(Own({"config.yaml", "rank3.pt"}, kOlmoNames), (Names{"config.yaml", "rank0.pt"}));
  EXPECT_EQ(Own({"rank3.pt"}, kOlmoNames), Names{}) << "the mark is missing";
}

TEST(OwnNames, OfOlmoCoresLayoutAreTheSlicesInItsThreeFolders) {
  MemoryStorage storage;
  std::vector<DirectoryEntry> entries = Entries({"config.yaml"});
  for (const char* const folder : {"model", "optim", "train"}) {
    EXPECT_EQ(ShownFormat(entries), std::nullopt) << "these folders may be the user's";
    entries.push_back({.name = folder, .is_directory = true});
  }
  EXPECT_EQ(ShownFormat(entries), Format::kOlmoCore);
  OwnNames own(storage, "ck", entries);
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

}  // namespace
}  // namespace varve::test::own_names_test
