// Folders of safetensors files, among them those that PyTorch 2.14.1 wrote (tests/golden/dcp).

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <simdjson.h>

#include "interop/safetensors/decode.h"
#include "support/safetensors_files.h"
#include "support/sha256.h"
#include "support/status_matchers.h"
#include "support/test_data.h"
#include "tensor/box.h"

namespace varve::folder_test {
namespace {

using test::Entry;
using test::FailsWith;
using test::IsOk;
using test::Named;
using test::SafetensorsOf;
using test::Sha256;
using test::ShardMetadata;

/// Files in memory, by name.
using Folder = std::map<std::string, std::string>;

std::vector<NamedFile> FilesOf(const Folder& folder) {
  std::vector<NamedFile> files;
  for (auto at = folder.rbegin(); at != folder.rend(); ++at) {  // The order given must not matter.
    files.push_back(Named(at->first, at->second));
  }
  return files;
}

Folder GoldenFolder(const std::string& name) {
  Folder folder;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::TestData() / "golden" / name)) {
    if (entry.path().extension() == ".safetensors") {
      const std::string file = entry.path().filename();
      folder[file] = test::Golden(name + "/" + file);
    }
  }
  return folder;
}

Dims DimsOf(simdjson::dom::element element) {
  Dims dims;
  for (const simdjson::dom::element value : element.get_array()) {
    dims.push_back(value.get_uint64());
  }
  return dims;
}

std::string Content(const Folder& folder, const Metadata& metadata, const Extent& extent) {
  return folder.at(metadata.files.at(extent.file).name)
      .substr(extent.begin, extent.end - extent.begin);
}

/// Compares with `entries` of an expected.json: names, dtypes, shapes, chunks and their content.
void ExpectEntries(const Metadata& metadata, const Folder& folder, simdjson::dom::object entries) {
  EXPECT_EQ(metadata.tensors.size(), entries.size());
  for (const auto& [fqn, entry] : entries) {
    const TensorMetadata* tensor = metadata.FindTensor(fqn);
    ASSERT_NE(tensor, nullptr) << fqn;
    EXPECT_EQ(DTypeName(tensor->dtype), entry["dtype"].get_string().value()) << fqn;
    EXPECT_EQ(tensor->shape, DimsOf(entry["shape"])) << fqn;
    std::map<std::pair<Dims, Dims>, simdjson::dom::element> expected;
    for (const simdjson::dom::element chunk : entry["chunks"].get_array()) {
      expected[{DimsOf(chunk["offsets"]), DimsOf(chunk["sizes"])}] = chunk;
    }
    ASSERT_EQ(tensor->chunks.size(), expected.size()) << fqn;
    std::size_t i = 0;
    for (const auto& [box, chunk] : expected) {
      const Chunk& got = tensor->chunks[i++];
      EXPECT_EQ(got.box, (Box{box.first, box.second})) << fqn;
      EXPECT_EQ(metadata.files.at(got.extent.file).name, chunk["file"].get_string().value());
      EXPECT_EQ(Sha256(Content(folder, metadata, got.extent)), chunk["sha256"].get_string().value())
          << fqn;
    }
  }
}

TEST(SafetensorsFolder, WhatTheTestsHashWithIsSha256) {
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256(std::string(56, 'a')),
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
}

TEST(SafetensorsFolder, GoldenShardsDecodeToWhatPyTorchSaved) {
  for (const std::string name : {"hf_ws2", "hf_indexed_ws2", "hf_consolidated"}) {
    const std::string path = "dcp/2.14.1/" + name;
    const Folder folder = GoldenFolder(path + (name == "hf_consolidated" ? "/sharded" : ""));
    const auto decoded = DecodeSafetensors(FilesOf(folder));
    ASSERT_TRUE(IsOk(decoded)) << name;
    const Metadata& metadata = decoded->metadata;
    EXPECT_EQ(metadata.format, Format::kSafetensors);
    EXPECT_EQ(metadata.world_size, folder.size());
    EXPECT_EQ(metadata.block_bytes, 0U);
    EXPECT_FALSE(decoded->structure);
    ASSERT_EQ(metadata.files.size(), folder.size());
    auto at = folder.begin();
    for (const DataFile& file : metadata.files) {
      EXPECT_EQ(file.name, at->first);
      EXPECT_EQ(file.size, at->second.size());
      ++at;
    }
    simdjson::dom::parser parser;
    const std::string expected = test::Golden(path + "/expected.json");
    ExpectEntries(metadata, folder, parser.parse(expected)["entries"].get_object());
  }
}

TEST(SafetensorsFolder, AConsolidatedGoldenFolderDecodesByItsIndex) {
  const std::string path = "dcp/2.14.1/hf_consolidated";
  const Folder folder = GoldenFolder(path);
  const auto index = DecodeHfIndex(test::Golden(path + "/model.safetensors.index.json"));
  ASSERT_TRUE(IsOk(index));
  const auto decoded = DecodeHfFolder(*index, FilesOf(folder));
  ASSERT_TRUE(IsOk(decoded));
  const Metadata& metadata = decoded->metadata;
  simdjson::dom::parser parser;
  const std::string text = test::Golden(path + "/expected.json");
  const simdjson::dom::element expected = parser.parse(text);
  EXPECT_EQ(metadata.tensors.size(), expected["entries"].get_object().value().size());
  for (const TensorMetadata& tensor : metadata.tensors) {
    const simdjson::dom::element entry = expected["entries"][tensor.fqn];
    EXPECT_EQ(tensor.shape, DimsOf(entry["shape"]));
    ASSERT_EQ(tensor.chunks.size(), 1U);
    EXPECT_EQ(tensor.chunks[0].box, WholeBox(tensor.shape));
    EXPECT_EQ(metadata.files.at(tensor.chunks[0].extent.file).name,
              expected["consolidated"][tensor.fqn].get_string().value());
    EXPECT_EQ(Sha256(Content(folder, metadata, tensor.chunks[0].extent)),
              entry["sha256"].get_string().value())
        << tensor.fqn;
  }
}

// docs/format.md, section 2: a reader of safetensors gets the tensors of Varve's own files, by the
// names of their entries.
TEST(SafetensorsFolder, VarvesOwnDataFilesDecodeAsShards) {
  const auto decoded = DecodeSafetensors(FilesOf(GoldenFolder("native-v1")));
  ASSERT_TRUE(IsOk(decoded));
  const TensorMetadata* weight = decoded->metadata.FindTensor("weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->shape, (Dims{64, 40}));
  EXPECT_TRUE(SubtractAll(WholeBox(weight->shape),
                          std::vector<Box>{weight->chunks[0].box, weight->chunks[1].box})
                  .empty());
  EXPECT_NE(decoded->metadata.FindTensor("__varve__.values.rank00000"), nullptr);
}

std::string Shard(std::string_view info, std::string_view dtype, std::string_view shape,
                  std::uint64_t bytes) {
  return SafetensorsOf("{" + ShardMetadata(info) + "," +
                           Entry("w", dtype, shape, "[0," + std::to_string(bytes) + "]") + "}",
                       bytes);
}

TEST(SafetensorsFolder, ATensorIsTheBoxAroundItsParts) {
  const Folder folder{{"1", Shard(R"({"w":{"saved_offsets":[2,0]}})", "I16", "[1,3]", 6)},
                      {"2", Shard(R"({"w":{"saved_offsets":[0,0]}})", "I16", "[2,3]", 12)},
                      {"3", Shard(R"({"w":{"saved_offsets":[3,0]}})", "I16", "[0,3]", 0)}};
  const auto decoded = DecodeSafetensors(FilesOf(folder));
  ASSERT_TRUE(IsOk(decoded));
  const TensorMetadata& tensor = decoded->metadata.tensors.at(0);
  EXPECT_EQ(tensor.shape, (Dims{3, 3}));
  ASSERT_EQ(tensor.chunks.size(), 3U);
  EXPECT_EQ(tensor.chunks[0].extent.file, 1U);
  EXPECT_EQ(tensor.chunks[1].box, (Box{{2, 0}, {1, 3}}));
  EXPECT_EQ(tensor.chunks[2].box, (Box{{3, 0}, {0, 3}}));
}

TEST(SafetensorsFolder, OfEqualPartsInShardsTheFirstFileCounts) {
  const std::string shard = Shard("{}", "U8", "[4]", 4);
  const auto decoded = DecodeSafetensors(FilesOf({{"a", shard}, {"b", shard}, {"c", shard}}));
  ASSERT_TRUE(IsOk(decoded));
  ASSERT_EQ(decoded->metadata.tensors.at(0).chunks.size(), 1U);
  EXPECT_EQ(decoded->metadata.tensors[0].chunks[0].extent.file, 0U);
  EXPECT_EQ(decoded->metadata.files.size(), 3U);
}

TEST(SafetensorsFolder, EqualTensorsInFilesThatAreNoShardsAreRefused) {
  const std::string plain = SafetensorsOf("{" + Entry("w", "U8", "[4]", "[0,4]") + "}", 4);
  const std::string shard = Shard("{}", "U8", "[4]", 4);
  EXPECT_TRUE(FailsWith(DecodeSafetensors(FilesOf({{"a", plain}, {"b", plain}})),
                        StatusCode::kDataLoss, {"tensor \"w\"", "what a holds", "overlaps"}));
  EXPECT_TRUE(FailsWith(DecodeSafetensors(FilesOf({{"a", plain}, {"b", shard}})),
                        StatusCode::kDataLoss, {"tensor \"w\"", "overlaps"}));
}

TEST(SafetensorsFolder, PartsThatDoNotFitTogetherAreRefused) {
  const std::string first = Shard("{}", "U8", "[4]", 4);
  for (const std::string& second : {Shard(R"({"w":{"saved_offsets":[3]}})", "U8", "[4]", 4),
                                    Shard(R"({"w":{"saved_offsets":[4]}})", "I8", "[4]", 4),
                                    Shard(R"({"w":{"saved_offsets":[4,0]}})", "U8", "[4,1]", 4)}) {
    EXPECT_TRUE(FailsWith(DecodeSafetensors(FilesOf({{"one", first}, {"two", second}})),
                          StatusCode::kDataLoss, {"tensor \"w\"", "one", "two"}));
  }
}

TEST(SafetensorsFolder, OffsetsNearTheEndOfNumbersAreRefused) {
  for (const std::string_view offset :
       {"18446744073709551615", "9223372036854775808", "4611686018427387904"}) {
    const std::string info = R"({"w":{"saved_offsets":[)" + std::string(offset) + "]}}";
    EXPECT_TRUE(FailsWith(DecodeSafetensors(FilesOf({{"a", Shard(info, "U8", "[4]", 4)}})),
                          StatusCode::kDataLoss, {"tensor \"w\"", "2^6"}));
  }
}

TEST(SafetensorsFolder, ADamagedFileIsNamed) {
  const std::string good = Shard("{}", "U8", "[4]", 4);
  EXPECT_TRUE(FailsWith(DecodeSafetensors(FilesOf({{"a", good}, {"b", good.substr(0, 60)}})),
                        StatusCode::kDataLoss, {"b: "}));
}

TEST(SafetensorsFolder, AFileThatGoesOnBehindItsLastTensorIsRefused) {
  const std::string good = SafetensorsOf("{" + Entry("w", "U8", "[4]", "[0,4]") + "}", 4);
  const std::string size = std::to_string(good.size());
  EXPECT_TRUE(FailsWith(DecodeSafetensors(FilesOf({{"a", good + "x"}})), StatusCode::kDataLoss,
                        {"a: its tensors end at byte " + size, "bytes were inserted or appended"}));
  EXPECT_TRUE(IsOk(DecodeSafetensors(FilesOf({{"a", good}}))));
}

TEST(SafetensorsFolder, NoFilesAndAFileTwiceAreRefused) {
  EXPECT_TRUE(FailsWith(DecodeSafetensors({}), StatusCode::kDataLoss));
  const std::string file = SafetensorsOf("{}", 0);
  EXPECT_TRUE(FailsWith(DecodeSafetensors({Named("a", file), Named("a", file)}),
                        StatusCode::kInvalidArgument, {"a is given twice"}));
}

TEST(HfFolder, OnlyTheTensorsOfTheIndexCount) {
  const std::string both = SafetensorsOf(
      "{" + Entry("v", "U8", "[1]", "[0,1]") + "," + Entry("w", "U8", "[4]", "[1,5]") + "}", 5);
  const Folder folder{{"a", both}, {"b", both}, {"not.in.the.index", "no safetensors"}};
  const auto decoded = DecodeHfFolder({{{"v", "b"}, {"w", "a"}}}, FilesOf(folder));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(decoded->metadata.files.size(), 2U);
  EXPECT_EQ(decoded->metadata.FindTensor("v")->chunks[0].extent.file, 1U);
  EXPECT_EQ(decoded->metadata.FindTensor("w")->chunks[0].extent.file, 0U);
}

TEST(HfFolder, ATensorThatTheIndexDoesNotNameIsRefusedWhereAllAreNamed) {
  const std::string both = SafetensorsOf(
      "{" + Entry("v", "U8", "[1]", "[0,1]") + "," + Entry("w", "U8", "[4]", "[1,5]") + "}", 5);
  const Folder folder{{"a", both}};
  const HfIndex all{{{"v", "a"}, {"w", "a"}}};
  EXPECT_TRUE(IsOk(DecodeHfFolder(all, FilesOf(folder), NotInIndex::kRefused)));
  EXPECT_TRUE(FailsWith(DecodeHfFolder({{{"w", "a"}}}, FilesOf(folder), NotInIndex::kRefused),
                        StatusCode::kDataLoss, {"tensor \"v\"", "a holds it"}));
}

TEST(HfFolder, ATensorOrFileThatIsNotThereIsNamed) {
  const std::string file = SafetensorsOf("{" + Entry("w", "U8", "[4]", "[0,4]") + "}", 4);
  const Folder folder{{"a", file}};
  EXPECT_TRUE(FailsWith(DecodeHfFolder({{{"v", "a"}}}, FilesOf(folder)), StatusCode::kDataLoss,
                        {"tensor \"v\"", "a does not hold it"}));
  EXPECT_TRUE(FailsWith(DecodeHfFolder({{{"w", "b"}}}, FilesOf(folder)), StatusCode::kDataLoss,
                        {"the file b"}));
  EXPECT_TRUE(FailsWith(DecodeHfFolder({}, FilesOf(folder)), StatusCode::kDataLoss));
  const Folder shard{{"a", Shard("{}", "U8", "[4]", 4)}};
  EXPECT_TRUE(FailsWith(DecodeHfFolder({{{"w", "a"}, {"w", "a"}}}, FilesOf(shard)),
                        StatusCode::kDataLoss, {"overlaps"}));
}

}  // namespace
}  // namespace varve::folder_test
