#include "varve/protocol/plan.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/random.h"
#include "support/status_matchers.h"
#include "varve/protocol/metadata.h"

namespace varve::protocol::plan_test {
namespace {

using varve::test::FailsWith;
using varve::test::IsOk;

WriteItem Shard() {
  WriteItem item;
  item.index = {"layer.weight", Dims{2, 0}, 1};
  item.type = WriteItemType::kShard;
  item.tensor_data = TensorWriteData{{{2, 0}, {4, 300}}, {DType::kBFloat16}, {6, 300}};
  return item;
}

WriteItem ByteItem() {
  WriteItem item;
  item.index.fqn = "step";
  item.bytes_io_data = BytesIOWriteData{12};
  return item;
}

SavePlan SampleSavePlan() {
  return {{Shard(), ByteItem()}, std::string("sto\0rage", 8), "planner"};
}

LoadPlan SampleLoadPlan() {
  ReadItem piece;
  piece.type = LoadItemType::kTensor;
  piece.dest_index = {"layer.weight", Dims{0, 4}, 0};
  piece.dest_offsets = {1, 0};
  piece.storage_index = {"layer.weight", Dims{2, 0}, 1};
  piece.storage_offsets = {0, 4};
  piece.lengths = {3, 200};
  ReadItem value;
  value.dest_index.fqn = "step";
  value.storage_index.fqn = "step";
  return {{piece, value}, "storage", ""};
}

std::vector<WriteResult> SampleResults() {
  return {{{"layer.weight", Dims{2, 0}, 1}, 2400, "at 7"}, {{"step", {}, {}}, 12, ""}};
}

StateMetadata SampleMetadata() {
  StateMetadata metadata;
  metadata.state_dict_metadata["layer.weight"] =
      TensorStorageMetadata{{DType::kFloat32}, {6, 8}, {{{0, 0}, {2, 8}}, {{2, 0}, {4, 8}}}};
  metadata.state_dict_metadata["scalar"] = TensorStorageMetadata{{DType::kInt64}, {}, {Box()}};
  metadata.state_dict_metadata["step"] = BytesStorageMetadata();
  metadata.planner_data = "planner";
  metadata.storage_data = "storage";
  metadata.storage_meta = StorageMeta{"id", "save", ""};
  return metadata;
}

TEST(PlanCodec, EverythingComesBack) {
  EXPECT_EQ(*DecodeSavePlan(EncodeSavePlan(SampleSavePlan())), SampleSavePlan());
  EXPECT_EQ(DecodeSavePlan(EncodeSavePlan(SampleSavePlan()))->items[0].index.index, 1U);
  EXPECT_EQ(*DecodeLoadPlan(EncodeLoadPlan(SampleLoadPlan())), SampleLoadPlan());
  EXPECT_EQ(*DecodeWriteResults(EncodeWriteResults(SampleResults())), SampleResults());
  EXPECT_EQ(*DecodeMetadata(EncodeMetadata(SampleMetadata())), SampleMetadata());
  EXPECT_TRUE(IsOk(DecodeSavePlan(EncodeSavePlan({}))));
  EXPECT_TRUE(IsOk(DecodeMetadata(EncodeMetadata({}))));
}

/// Calls `decode` with every truncation and with every byte changed in a few ways. Every accepted
/// input must encode again; the sanitizers find crashes.
template <class Decode, class Encode>
void Torment(const std::string& good, const Decode& decode, const Encode& encode) {
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_TRUE(FailsWith(decode(good.substr(0, size)), StatusCode::kDataLoss)) << size;
  }
  EXPECT_TRUE(FailsWith(decode(good + "x"), StatusCode::kDataLoss, {"trailing"}));
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int change : {0x01, 0x80, 0xFF}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      if (const auto decoded = decode(bad); decoded.ok()) {
        EXPECT_TRUE(IsOk(decode(encode(*decoded))));
      }
    }
  }
  varve::test::Random random(17);
  for (int i = 0; i < 2000; ++i) {
    (void)decode(random.Bytes(static_cast<std::uint64_t>(i % 60)));
  }
}

TEST(PlanCodec, HostileBytesAreRefusedAndNeverCrash) {
  Torment(EncodeSavePlan(SampleSavePlan()), DecodeSavePlan, EncodeSavePlan);
  Torment(EncodeLoadPlan(SampleLoadPlan()), DecodeLoadPlan, EncodeLoadPlan);
  Torment(EncodeWriteResults(SampleResults()), DecodeWriteResults, EncodeWriteResults);
  Torment(EncodeMetadata(SampleMetadata()), DecodeMetadata, EncodeMetadata);
}

TEST(PlanCodec, AHugeCountIsRefusedBeforeAnythingIsMade) {
  const std::string count = "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F";
  EXPECT_TRUE(FailsWith(DecodeSavePlan(count), StatusCode::kDataLoss, {"count"}));
  EXPECT_TRUE(FailsWith(DecodeLoadPlan(count), StatusCode::kDataLoss, {"count"}));
  EXPECT_TRUE(FailsWith(DecodeWriteResults(count), StatusCode::kDataLoss, {"count"}));
  EXPECT_TRUE(FailsWith(DecodeMetadata("\x01" + count), StatusCode::kDataLoss, {"count"}));
}

TEST(PlanCodec, ABoxOutsideOfItsTensorIsRefused) {
  SavePlan plan = SampleSavePlan();
  plan.items[0].tensor_data->chunk.sizes = {5, 300};
  EXPECT_TRUE(FailsWith(DecodeSavePlan(EncodeSavePlan(plan)), StatusCode::kDataLoss, {"outside"}));
  plan.items[0].tensor_data->size = {~std::uint64_t{0}, 300};
  plan.items[0].tensor_data->chunk.sizes = {~std::uint64_t{0} - 2, 300};
  EXPECT_TRUE(FailsWith(DecodeSavePlan(EncodeSavePlan(plan)), StatusCode::kDataLoss));

  StateMetadata metadata = SampleMetadata();
  std::get<TensorStorageMetadata>(metadata.state_dict_metadata["layer.weight"]).size = {5, 8};
  EXPECT_TRUE(FailsWith(DecodeMetadata(EncodeMetadata(metadata)), StatusCode::kDataLoss,
                        {"layer.weight", "outside"}));
}

TEST(PlanCodec, ANewerVersionOfMetadataIsSaidToBeOne) {
  std::string bytes = EncodeMetadata(SampleMetadata());
  bytes[0] = 2;
  EXPECT_TRUE(FailsWith(DecodeMetadata(bytes), StatusCode::kUnimplemented, {"version 2"}));
}

TEST(ProtocolMetadata, AWrongHintStillFindsTheChunk) {
  const StateMetadata metadata = SampleMetadata();
  const Box lower{{2, 0}, {4, 8}};
  for (const std::optional<std::uint64_t> hint :
       {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(0),
        std::optional<std::uint64_t>(1), std::optional<std::uint64_t>(99)}) {
    const auto* chunk = metadata.FindChunk({"layer.weight", Dims{2, 0}, hint});
    ASSERT_NE(chunk, nullptr);
    EXPECT_EQ(*chunk, lower);
  }
  EXPECT_EQ(metadata.FindChunk({"layer.weight", Dims{1, 0}, {}}), nullptr);
  EXPECT_EQ(metadata.FindChunk({"step", {}, {}}), nullptr);
  EXPECT_EQ(metadata.FindTensor("step"), nullptr);
  EXPECT_TRUE(metadata.HasBytes("step"));
}

}  // namespace
}  // namespace varve::protocol::plan_test
