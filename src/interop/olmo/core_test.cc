// metadata.json and rank files put together by hand.

#include "interop/olmo/core.h"

#include <gtest/gtest.h>

#include "support/archives.h"
#include "support/status_matchers.h"

namespace varve::core_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Watched;

constexpr auto kDataLoss = StatusCode::kDataLoss;

std::string Metadata(const std::string& entry) { return R"({"tensors":{"w":)" + entry + "}}"; }

/// Returns metadata of a tensor of shape [4, 6] with these specs, by file.
std::string Specs(const std::string& specs) {
  return Metadata(R"({"shape":[4,6],"is_sharded":true,"dtype":"F32","shard_spec_per_file":{)" +
                  specs + "}}");
}

std::string File(const std::string& header, std::size_t data_bytes) {
  return test::Le(header.size(), 8) + header + std::string(data_bytes, 'x');
}

NamedFile Named(const std::string& file) {
  return {"rank_0.safetensors", file.size(), Watched(file)};
}

TEST(CoreMetadata, ReadsAllThreeForms) {
  for (const std::string files :
       {R"("flattened_offsets_per_file":{"rank_1.safetensors":[2,9]})",
        R"("flattened_offsets_per_file":{"rank_1.safetensors":[[2,9]]})",
        R"("shard_spec_per_file":{"rank_1.safetensors":{"flattened_offsets":[[2,9]]}})"}) {
    const auto layout = DecodeCoreMetadata(Metadata(R"({"shape":[4,6],)" + files + "}"));
    ASSERT_TRUE(IsOk(layout)) << files;
    ASSERT_EQ(layout->tensors.size(), 1U);
    EXPECT_EQ(layout->ranks, 2U);
    EXPECT_FALSE(layout->tensors[0].dtype);
    ASSERT_EQ(layout->tensors[0].parts.size(), 1U);
    const CorePart& part = layout->tensors[0].parts[0];
    EXPECT_EQ(part.rank, 1U);
    EXPECT_EQ(part.box, CorePart::kRun);
    EXPECT_EQ(part.begin, 2U);
    EXPECT_EQ(part.end, 9U);
  }
}

TEST(CoreMetadata, TakesABoxOfRowsForARunAndKeepsAnyOther) {
  const auto layout = DecodeCoreMetadata(
      Specs(R"("rank_0.safetensors":{"local_shape":[2,6],"global_offset":[1,0]},)"
            R"("rank_1.safetensors":{"local_shape":[1,3],"global_offset":[3,2]},)"
            R"("rank_2.safetensors":{"local_shape":[2,3],"global_offset":[0,1]},)"
            R"("rank_3.safetensors":{"local_shape":[0,3],"global_offset":[4,3]})"));
  ASSERT_TRUE(IsOk(layout));
  const CoreTensor& tensor = layout->tensors[0];
  EXPECT_EQ(tensor.dtype, DType::kFloat32);
  ASSERT_EQ(tensor.parts.size(), 3U);
  EXPECT_EQ(tensor.parts[0].begin, 6U);
  EXPECT_EQ(tensor.parts[0].end, 18U);
  EXPECT_EQ(tensor.parts[1].begin, 20U);
  EXPECT_EQ(tensor.parts[1].end, 23U);
  ASSERT_EQ(tensor.parts[2].box, 0U);
  EXPECT_EQ(tensor.boxes[0], (Box{{0, 1}, {2, 3}}));
}

TEST(CoreMetadata, RefusesEveryTruncation) {
  const std::string whole =
      Specs(R"("rank_0.safetensors":{"flattened_offsets":[[0,5],[7,9]],"local_shape":null})");
  ASSERT_TRUE(IsOk(DecodeCoreMetadata(whole)));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(FailsWith(DecodeCoreMetadata(whole.substr(0, size)), kDataLoss)) << size;
  }
}

TEST(CoreMetadata, RefusesFilesByAnyOtherName) {
  for (const char* const name :
       {"../rank_0.safetensors", "/rank_0.safetensors", "rank_00.safetensors", "rank_.safetensors",
        "rank_-1.safetensors", "rank_0.safetensors/x", "rank_4294967296.safetensors"}) {
    EXPECT_TRUE(FailsWith(
        DecodeCoreMetadata(Specs("\"" + std::string(name) + R"(":{"flattened_offsets":[]})")),
        kDataLoss, {"expected rank_{R}.safetensors"}))
        << name;
  }
}

TEST(CoreMetadata, RefusesTwoSpecsOfOneFile) {
  const std::string spec = R"("rank_7.safetensors":{"flattened_offsets":[]})";
  EXPECT_TRUE(FailsWith(DecodeCoreMetadata(Specs(spec + "," + spec)), kDataLoss,
                        {"the file of rank 7 twice"}));
}

TEST(CoreMetadata, RefusesHostileSizes) {
  const std::string files = R"("flattened_offsets_per_file":{})";
  for (const char* const shape :
       {"[4611686018427387904]", "[4294967296,4294967296]", "[-1]", "[1e30]", "[1.5]", "7"}) {
    EXPECT_TRUE(FailsWith(
        DecodeCoreMetadata(Metadata("{\"shape\":" + std::string(shape) + "," + files + "}")),
        kDataLoss, {"tensor \"w\""}))
        << shape;
  }
  std::string many = "[1";
  for (int i = 0; i < 64; ++i) {
    many += ",1";
  }
  EXPECT_TRUE(FailsWith(DecodeCoreMetadata(Metadata("{\"shape\":" + many + "]," + files + "}")),
                        kDataLoss, {"65 dimensions"}));
}

TEST(CoreFile, NeedsASliceForEveryPartAndNoOther) {
  const auto layout =
      DecodeCoreMetadata(Specs(R"("rank_0.safetensors":{"flattened_offsets":[[0,2],[5,6]]})"));
  ASSERT_TRUE(IsOk(layout));
  const std::string whole = File(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", 12);
  const auto slices = ReadCoreFile(Named(whole), 0, *layout);
  ASSERT_TRUE(IsOk(slices));
  ASSERT_EQ(slices->size(), 1U);
  EXPECT_EQ((*slices)[0].end - (*slices)[0].begin, 12U);
  EXPECT_TRUE(FailsWith(ReadCoreFile(Named(File("{}", 0)), 0, *layout), kDataLoss,
                        {"3 elements by metadata.json"}));
  EXPECT_TRUE(FailsWith(ReadCoreFile(Named(whole), 1, *layout), kDataLoss, {"another save"}));
  EXPECT_TRUE(IsOk(ReadCoreFile(Named(File("{}", 0)), 1, *layout)));
}

}  // namespace
}  // namespace varve::core_test
