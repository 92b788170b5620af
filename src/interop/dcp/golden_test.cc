// The indexes of real checkpoints (tests/golden/dcp, README.md there) against what PyTorch itself
// says of them.

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <simdjson.h>

#include "interop/dcp/encode.h"
#include "interop/dcp/metadata.h"
#include "support/status_matchers.h"
#include "support/test_data.h"

namespace varve::golden_test {
namespace {

namespace fs = std::filesystem;
using simdjson::dom::element;
using test::IsOk;

std::string Content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> Cases() {
  std::vector<fs::path> cases;
  for (const auto& entry : fs::recursive_directory_iterator(test::TestData() / "golden" / "dcp")) {
    if (entry.path().filename() == ".metadata") {
      cases.push_back(entry.path().parent_path());
    }
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

std::string_view Text(element object, std::string_view key) {
  std::string_view text;
  EXPECT_FALSE(object[key].get(text)) << key;
  return text;
}

std::uint64_t Number(element object, std::string_view key) {
  std::uint64_t number = 0;
  EXPECT_FALSE(object[key].get(number)) << key;
  return number;
}

Dims Sizes(element object, std::string_view key) {
  Dims dims;
  simdjson::dom::array sizes;
  EXPECT_FALSE(object[key].get(sizes)) << key;
  for (const element size : sizes) {
    dims.push_back(size.get_uint64().value());
  }
  return dims;
}

/// Returns a stored range as text, with its box where it is a chunk's.
std::string Shown(const Metadata& metadata, const Extent& extent) {
  return metadata.files[extent.file].name + " " + std::to_string(extent.begin) + "+" +
         std::to_string(extent.end - extent.begin) +
         (extent.encoding == Encoding::kZstdTorchItem ? " zstd" : "");
}

std::vector<std::string> ShownChunks(const Metadata& metadata, const TensorMetadata& tensor) {
  std::vector<std::string> shown;
  for (const Chunk& chunk : tensor.chunks) {
    shown.push_back(ToString(chunk.box.offsets) + ToString(chunk.box.sizes) + " " +
                    Shown(metadata, chunk.extent));
  }
  return shown;
}

std::vector<std::string> ExpectedChunks(element entry) {
  std::vector<std::pair<Box, std::string>> chunks;
  simdjson::dom::array array;
  EXPECT_FALSE(entry["chunks"].get(array));
  for (const element chunk : array) {
    element transforms;
    const bool is_zstd = chunk["transforms"].get(transforms) == simdjson::SUCCESS;
    Box box{Sizes(chunk, "offsets"), Sizes(chunk, "sizes")};
    std::string shown = ToString(box.offsets) + ToString(box.sizes) + " " +
                        std::string(Text(chunk, "file")) + " " +
                        std::to_string(Number(chunk, "at")) + "+" +
                        std::to_string(Number(chunk, "length")) + (is_zstd ? " zstd" : "");
    chunks.emplace_back(std::move(box), std::move(shown));
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const auto& a, const auto& b) { return a.first.offsets < b.first.offsets; });
  std::vector<std::string> shown;
  for (auto& [box, text] : chunks) {
    if (shown.empty() || shown.back() != text) {
      shown.push_back(std::move(text));
    }
  }
  return shown;
}

/// Returns the value at a path of strs and list positions; null where there is none.
const Value* At(const Value& structure, element path) {
  const Value* at = &structure;
  for (const element part : simdjson::dom::array(path)) {
    std::uint64_t position = 0;
    const Value* next = nullptr;
    if (part.get(position) == simdjson::SUCCESS) {
      if (at->kind == ValueKind::kList && position < at->items.size()) {
        next = &at->items[position];
      }
    } else {
      for (std::size_t i = 0; at->kind == ValueKind::kDict && i + 1 < at->items.size(); i += 2) {
        if (at->items[i].text == part.get_string().value()) {
          next = &at->items[i + 1];
        }
      }
    }
    if (next == nullptr) {
      return nullptr;
    }
    at = next;
  }
  return at;
}

void CheckEntry(const Decoded& decoded, std::string_view fqn, element entry) {
  const Metadata& metadata = decoded.metadata;
  const Value* leaf = At(*decoded.structure, entry["path"].value());
  ASSERT_NE(leaf, nullptr);
  if (Text(entry, "kind") == "value") {
    const ObjectMetadata* object = metadata.FindObject(fqn);
    ASSERT_NE(object, nullptr);
    const element stored = entry["stored"].value();
    EXPECT_EQ(Shown(metadata, object->extent), std::string(Text(stored, "file")) + " " +
                                                   std::to_string(Number(stored, "at")) + "+" +
                                                   std::to_string(Number(stored, "length")));
    EXPECT_EQ(leaf->kind, ValueKind::kObjectLeaf);
    return;
  }
  const TensorMetadata* tensor = metadata.FindTensor(fqn);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(DTypeName(tensor->dtype), Text(entry, "dtype"));
  EXPECT_EQ(tensor->shape, Sizes(entry, "shape"));
  EXPECT_EQ(ShownChunks(metadata, *tensor), ExpectedChunks(entry));
  EXPECT_EQ(leaf->kind, ValueKind::kTensorLeaf);
  EXPECT_EQ(leaf->text, "torch");
}

TEST(DcpGolden, EveryIndexDecodesToWhatTorchSays) {
  const std::vector<fs::path> cases = Cases();
  ASSERT_EQ(cases.size(), 17U);
  for (const fs::path& folder : cases) {
    SCOPED_TRACE(folder);
    const auto decoded = DecodeDcpMetadata(Content(folder / ".metadata"));
    ASSERT_TRUE(IsOk(decoded));
    ASSERT_TRUE(decoded->structure);
    const Metadata& metadata = decoded->metadata;
    simdjson::dom::parser parser;
    const element expected = parser.load(folder / "expected.json").value();
    std::set<std::string> files;
    std::size_t count = 0;
    for (const auto [fqn, entry] : simdjson::dom::object(expected["entries"])) {
      SCOPED_TRACE(fqn);
      CheckEntry(*decoded, fqn, entry);
      ++count;
    }
    EXPECT_EQ(metadata.tensors.size() + metadata.objects.size(), count);
    EXPECT_EQ(metadata.world_size, Number(expected, "world_size"));
    EXPECT_EQ(metadata.format, Format::kDcp);
    for (const DataFile& file : metadata.files) {
      EXPECT_TRUE(fs::is_regular_file(folder / file.name)) << file.name;
      EXPECT_EQ(file.name, "__" + std::to_string(file.rank) + "_0.distcp");
    }
    EXPECT_TRUE(IsOk(EncodeDcpMetadata(metadata)));
  }
}

TEST(DcpGolden, PositionsOfEmptyDictsAreFilled) {
  for (const std::string version : {"2.6.0", "2.14.1"}) {
    const fs::path folder = test::TestData() / "golden" / "dcp" / version / "holes";
    const auto decoded = DecodeDcpMetadata(Content(folder / ".metadata"));
    ASSERT_TRUE(IsOk(decoded));
    EXPECT_EQ(ToString(*decoded->structure),
              "{'values': [{}, <object>, {}, <object>, <object>], "
              "'tensors': [<tensor>, {}, <tensor>], 't': <tensor>}");
  }
}

TEST(DcpGolden, EncodingAndDecodingGivesTheSameAgain) {
  for (const fs::path& folder : Cases()) {
    SCOPED_TRACE(folder);
    const auto decoded = DecodeDcpMetadata(Content(folder / ".metadata"));
    ASSERT_TRUE(IsOk(decoded));
    const std::string bytes("\0\x7F\x80\xFF\xC3\xA9 and text", 16);
    const DcpEncodeOptions options{.structure = &*decoded->structure,
                                   .attributes = {{"varve", bytes}}};
    const auto encoded = EncodeDcpMetadata(decoded->metadata, options);
    ASSERT_TRUE(IsOk(encoded));
    DcpAttributeList attributes;
    const auto again = DecodeDcpMetadata(*encoded, &attributes);
    ASSERT_TRUE(IsOk(again));
    EXPECT_EQ(again->metadata, decoded->metadata);
    EXPECT_EQ(ToString(*again->structure, 100000), ToString(*decoded->structure, 100000));
    EXPECT_EQ(attributes, options.attributes);
  }
}

}  // namespace
}  // namespace varve::golden_test
