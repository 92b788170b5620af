// Checkpoints that hfai.checkpoint 2.0.0 writes, compared with the account of their content beside
// them (tests/golden/hfai/README.md).

#include <filesystem>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <simdjson.h>

#include "interop/hfai/merge.h"
#include "interop/hfai/names.h"
#include "support/archives.h"
#include "support/boxes.h"
#include "support/sha256.h"
#include "support/status_matchers.h"
#include "support/typed_json.h"
#include "tensor/box.h"

namespace varve::golden_test {
namespace {

using simdjson::dom::element;
using test::Elements;
using test::Golden;
using test::IsOk;
using test::Sha256;
using test::StringAt;
using test::Watched;

class HfaiCase {
 public:
  explicit HfaiCase(const std::string& name) : folder_("hfai/" + name + "/") {
    EXPECT_FALSE(parser_.parse(Golden(folder_ + "expected.json")).get(root_));
    for (const auto [file, size] : root_["files"].get_object()) {
      files_[std::string(file)] = Golden(folder_ + std::string(file));
    }
  }

  [[nodiscard]] element root() const { return root_; }

  [[nodiscard]] Result<Decoded> Decode() const {
    std::vector<HfaiPart> parts;
    for (const auto& [name, content] : files_) {
      VARVE_ASSIGN_OR_RETURN(HfaiPart part,
                             DecodeHfaiPart(content.size(), Watched(content), *HfaiPartNumber(name),
                                            static_cast<std::uint32_t>(parts.size())));
      parts.push_back(std::move(part));
    }
    VARVE_RETURN_IF_ERROR(CheckHfaiParts(parts, {}));
    return MergeHfaiParts(std::move(parts));
  }

  /// Returns the bytes of the whole tensor, row-major.
  [[nodiscard]] std::string Content(const Metadata& metadata, const TensorMetadata& tensor) const {
    const std::uint64_t item = ItemSize(tensor.dtype);
    std::string whole(Volume(tensor.shape) * item, '?');
    const Strides to = RowMajorStrides(tensor.shape);
    for (const Chunk& chunk : tensor.chunks) {
      const std::string& file = files_.at(metadata.files[chunk.extent.file].name);
      const Strides from = chunk.strides.empty() ? RowMajorStrides(chunk.box.sizes) : chunk.strides;
      for (const Dims& at : Elements(chunk.box)) {
        std::uint64_t source = chunk.extent.begin;
        std::uint64_t target = 0;
        for (std::size_t d = 0; d < at.size(); ++d) {
          source += (at[d] - chunk.box.offsets[d]) * static_cast<std::uint64_t>(from[d]) * item;
          target += at[d] * static_cast<std::uint64_t>(to[d]) * item;
        }
        EXPECT_LE(source + item, chunk.extent.end);
        whole.replace(target, item, file, source, item);
      }
    }
    return whole;
  }

 private:
  std::string folder_;
  simdjson::dom::parser parser_;
  element root_;
  std::map<std::string, std::string> files_;
};

class HfaiGolden : public testing::TestWithParam<std::string> {
 protected:
  HfaiGolden() : golden_(GetParam()) {}

  void ExpectTensor(element expected, const std::string& name) {
    SCOPED_TRACE(name);
    const TensorMetadata* const tensor = decoded_.metadata.FindTensor(name);
    ASSERT_NE(tensor, nullptr);
    names_.insert(name);
    EXPECT_EQ(DTypeName(tensor->dtype), StringAt(expected, "dtype"));
    Dims shape;
    for (const element size : expected["shape"].get_array()) {
      shape.push_back(size.get_uint64());
    }
    ASSERT_EQ(tensor->shape, shape);
    EXPECT_EQ(Sha256(golden_.Content(decoded_.metadata, *tensor)), StringAt(expected, "sha256"));
  }

  void ExpectValue(const std::string& name) {
    EXPECT_NE(decoded_.metadata.FindObject(name), nullptr) << name;
    names_.insert(name);
  }

  void ExpectModels() {
    int index = 0;
    for (const element model : golden_.root()["model"].get_array()) {
      for (const auto [name, tensor] : model.get_object()) {
        ExpectTensor(tensor, "model." + std::to_string(index) + "." + std::string(name));
      }
      ++index;
    }
  }

  void ExpectOptimizers() {
    int index = 0;
    for (const element optimizer : golden_.root()["optimizer"].get_array()) {
      const std::string prefix = "optimizer." + std::to_string(index++) + ".";
      for (const auto [id, entries] : optimizer["state"].get_object()) {
        for (const auto [key, entry] : entries.get_object()) {
          const std::string name = prefix + "state." + std::string(id) + "." + std::string(key);
          StringAt(entry, "type") == "tensor" ? ExpectTensor(entry, name) : ExpectValue(name);
        }
      }
      int group = 0;
      for (const element entries : optimizer["param_groups"].get_array()) {
        for (const auto [key, entry] : entries.get_object()) {
          ExpectValue(prefix + "param_groups." + std::to_string(group) + "." + std::string(key));
        }
        ++group;
      }
    }
  }

  HfaiCase golden_;
  Decoded decoded_;
  std::set<std::string> names_;
};

TEST_P(HfaiGolden, DecodesToTheWholeState) {
  auto decoded = golden_.Decode();
  ASSERT_TRUE(IsOk(decoded));
  decoded_ = *std::move(decoded);
  const Metadata& metadata = decoded_.metadata;
  EXPECT_EQ(metadata.format, Format::kHfai);
  EXPECT_EQ(metadata.world_size, golden_.root()["world_size"].get_uint64().value());
  EXPECT_FALSE(decoded_.records.empty());
  ExpectModels();
  ExpectOptimizers();
  for (const auto [key, value] : golden_.root()["others"].get_object()) {
    ExpectValue(std::string(key));
  }
  EXPECT_EQ(metadata.tensors.size() + metadata.objects.size(), names_.size());
}

INSTANTIATE_TEST_SUITE_P(Sets, HfaiGolden,
                         testing::Values("world1", "world4", "world4-two-models"));

TEST(HfaiGoldenSets, KeepTheEmptyEntryOfAParameterWhoseTensorsAreAllLarge) {
  const auto decoded = HfaiCase("world4-two-models").Decode();
  ASSERT_TRUE(IsOk(decoded));
  const TensorMetadata* const momentum =
      decoded->metadata.FindTensor("optimizer.1.state.0.momentum_buffer");
  ASSERT_NE(momentum, nullptr);
  EXPECT_EQ(momentum->shape, (Dims{30, 40}));
}

class BrokenHfai : public testing::TestWithParam<std::string> {};

TEST_P(BrokenHfai, IsRefusedWithTheNamesThatMatter) {
  const HfaiCase golden(GetParam());
  const auto decoded = golden.Decode();
  ASSERT_FALSE(decoded.ok());
  for (const element name : golden.root()["must_name"].get_array()) {
    EXPECT_NE(decoded.status().message().find(std::string(name.get_string().value())),
              std::string::npos)
        << decoded.status().message() << " does not name " << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, BrokenHfai,
                         testing::Values("broken-large-piece-missing", "broken-missing-first",
                                         "broken-missing-last", "broken-missing-middle",
                                         "broken-missing-version", "broken-nshards-disagree",
                                         "broken-small-and-large", "broken-stale-parts",
                                         "broken-wrong-version"));

}  // namespace
}  // namespace varve::golden_test
