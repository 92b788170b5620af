#include "interop/dcp/encode.h"

#include <string>

#include <gtest/gtest.h>

#include "interop/pickle/tree.h"
#include "support/pickle_render.h"
#include "support/status_matchers.h"

namespace varve::encode_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::RenderPickle;

/// Returns a tensor of two chunks and a value, in two files.
Metadata Sample() {
  Metadata metadata;
  metadata.format = Format::kDcp;
  metadata.world_size = 2;
  metadata.files = {{.name = "__0_0.distcp"}, {.name = "__1_0.distcp", .rank = 1}};
  metadata.tensors = {{"a.w",
                       DType::kBFloat16,
                       {300, 5},
                       {{.box = {{0, 0}, {200, 5}}, .extent = {0, 0, 70000, Encoding::kTorchItem}},
                        {.box = {{200, 0}, {100, 5}},
                         .extent = {1, std::uint64_t{1} << 40, (std::uint64_t{1} << 40) + 9,
                                    Encoding::kZstdTorchItem}}}}};
  metadata.objects = {{"step", {0, 70000, 71000, Encoding::kTorchItem}}};
  return metadata;
}

std::string Encoded(const Metadata& metadata, const DcpEncodeOptions& options = {}) {
  const auto encoded = EncodeDcpMetadata(metadata, options);
  EXPECT_TRUE(IsOk(encoded));
  const auto tree = ReadPickle(*encoded);
  EXPECT_TRUE(IsOk(tree));
  return RenderPickle(*tree);
}

const std::string kModule = "torch.distributed.checkpoint.metadata:";
std::string Size(const std::string& items) { return "R(torch:Size, ((" + items + ")))"; }
std::string New(const std::string& name, const std::string& attributes) {
  return "N(" + name + ", (), state={" + attributes + "})";
}

TEST(DcpEncode, WritesTheObjectsThatTorchWrites) {
  const std::string properties = "N(" + kModule +
                                 "TensorProperties, (), state=(torch:bfloat16, "
                                 "R(torch.serialization:_get_layout, ('torch.strided')), False, "
                                 "R(" +
                                 kModule + "_MEM_FORMAT_ENCODING, (0)), False))";
  const std::string chunk = kModule + "ChunkStorageMetadata";
  const std::string key = kModule + "MetadataIndex";
  const std::string stored = "torch.distributed.checkpoint.filesystem:_StorageInfo";
  EXPECT_EQ(
      Encoded(Sample()),
      New(kModule + "Metadata",
          "'state_dict_metadata': {'a.w': " +
              New(kModule + "TensorStorageMetadata",
                  "'properties': " + properties + ", 'size': " + Size("300, 5") + ", 'chunks': [" +
                      New(chunk, "'offsets': " + Size("0, 0") + ", 'sizes': " + Size("200, 5")) +
                      ", " +
                      New(chunk, "'offsets': " + Size("200, 0") + ", 'sizes': " + Size("100, 5")) +
                      "]") +
              ", 'step': N(" + kModule +
              "BytesStorageMetadata, ())}, 'planner_data': {'a.w': ('a.w'), 'step': ('step')}, "
              "'storage_data': {" +
              New(key, "'fqn': 'a.w', 'index': 0, 'offset': " + Size("0, 0")) + ": " +
              New(stored, "'relative_path': '__0_0.distcp', 'offset': 0, 'length': 70000") + ", " +
              New(key, "'fqn': 'a.w', 'index': 1, 'offset': " + Size("200, 0")) + ": " +
              New(stored,
                  "'relative_path': '__1_0.distcp', 'offset': 1099511627776, 'length': 9, "
                  "'transform_descriptors': ['stream.zstd/1']") +
              ", " + New(key, "'fqn': 'step', 'index': None") + ": " +
              New(stored, "'relative_path': '__0_0.distcp', 'offset': 70000, 'length': 1000") +
              "}, 'storage_meta': None, 'version': '1.0.0'"));
}

TEST(DcpEncode, EntriesStandInTheOrderOfTheStateAndThenTheOthers) {
  Metadata metadata = Sample();
  metadata.tensors.push_back(metadata.tensors[0]);
  metadata.tensors[1].fqn = "b";
  Value structure{.kind = ValueKind::kDict};
  structure.items = {Value::Str("step"), Value{.kind = ValueKind::kObjectLeaf},  //
                     Value::Str("b"),    Value{.kind = ValueKind::kTensorLeaf},  //
                     Value::Str("none"), Value{.kind = ValueKind::kTensorLeaf}};
  const std::string text = Encoded(metadata, {.structure = &structure});
  const std::string entries = text.substr(0, text.find("'planner_data'"));
  EXPECT_LT(entries.find("'step': "), entries.find("'b': "));
  EXPECT_LT(entries.find("'b': "), entries.find("'a.w': "));
  EXPECT_NE(entries.find("'a.w': "), std::string::npos);
  EXPECT_EQ(entries.find("'none'"), std::string::npos);
}

TEST(DcpEncode, TwoEntriesOfOneNameAreRefused) {
  Value structure{.kind = ValueKind::kDict};
  structure.items = {Value::Int(1), Value{.kind = ValueKind::kObjectLeaf},  //
                     Value::Str("1"), Value{.kind = ValueKind::kObjectLeaf}};
  EXPECT_TRUE(FailsWith(EncodeDcpMetadata(Sample(), {.structure = &structure}),
                        StatusCode::kInvalidArgument, {"two entries with the name \"1\""}));
}

TEST(DcpEncode, TheIdOfTheSaveIsTextAsTorchHasIt) {
  Metadata metadata = Sample();
  for (std::uint8_t i = 0; i < 16; ++i) {
    metadata.save_id.bytes.at(i) = i;
  }
  EXPECT_NE(Encoded(metadata).find(
                "'storage_meta': " +
                New(kModule + "StorageMeta",
                    "'checkpoint_id': None, 'save_id': '00010203-0405-0607-0809-0a0b0c0d0e0f', "
                    "'load_id': None, 'modules': []")),
            std::string::npos);
}

TEST(DcpEncode, WritesPathsAndAttributes) {
  Value list{.kind = ValueKind::kList, .items = {Value{.kind = ValueKind::kDict}}};
  list.items.push_back({.kind = ValueKind::kObjectLeaf});
  Value structure{.kind = ValueKind::kOrderedDict};
  structure.items = {Value::Int(-7), Value{.kind = ValueKind::kTensorLeaf}, Value::Str("a"), list};
  const std::string text =
      Encoded(Sample(), {.structure = &structure, .attributes = {{"x", "\x80!"}}});
  EXPECT_NE(text.find("'planner_data': {'-7': ('-7'), 'a.1': ('a', 1)}"), std::string::npos);
  EXPECT_NE(text.find("'x': R(_codecs:encode, ('\\xc2\\x80!', 'latin1'))"), std::string::npos);
}

TEST(DcpEncode, LargeListsAreWrittenInPortionsAndReadBack) {
  Metadata metadata = Sample();
  metadata.tensors[0].shape = {2500, 1};
  std::vector<Chunk> chunks;
  for (std::uint64_t i = 0; i < 2500; ++i) {
    chunks.push_back({.box = {{i, 0}, {1, 1}},
                      .extent = {static_cast<std::uint32_t>(i % 2), i * 100000, i * 100000 + 70,
                                 Encoding::kTorchItem}});
  }
  metadata.tensors[0].chunks = std::move(chunks);
  for (std::uint64_t i = 0; i < 300; ++i) {
    const std::string fqn = "t" + std::to_string(1000 + i);
    metadata.tensors.push_back(
        {fqn, DType::kInt8, {}, {{.box = {}, .extent = {0, i, i, Encoding::kTorchItem}}}});
  }
  const auto encoded = EncodeDcpMetadata(metadata);
  ASSERT_TRUE(IsOk(encoded));
  const auto decoded = DecodeDcpMetadata(*encoded);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(decoded->metadata, metadata);
}

TEST(DcpEncode, WhatDcpCannotReadIsRefused) {
  Metadata metadata = Sample();
  metadata.tensors[0].chunks.Listed()[1].extent.encoding = Encoding::kPlain;
  EXPECT_TRUE(FailsWith(EncodeDcpMetadata(metadata), StatusCode::kInvalidArgument,
                        {"tensor \"a.w\"", "torch.save"}));
  metadata = Sample();
  metadata.objects[0].extent.file = 2;
  EXPECT_TRUE(FailsWith(EncodeDcpMetadata(metadata), StatusCode::kInvalidArgument,
                        {"value \"step\"", "no file"}));
  metadata = Sample();
  metadata.objects[0].extent.end = std::uint64_t{1} << 63;
  EXPECT_TRUE(FailsWith(EncodeDcpMetadata(metadata), StatusCode::kInvalidArgument));
}

TEST(DcpEncode, OptionsThatCannotBeWrittenAreRefused) {
  EXPECT_TRUE(FailsWith(EncodeDcpMetadata(Sample(), {.attributes = {{"version", "2"}}}),
                        StatusCode::kInvalidArgument, {"attribute \"version\""}));
  EXPECT_TRUE(FailsWith(EncodeDcpMetadata(Sample(), {.attributes = {{"b", ""}, {"a", ""}}}),
                        StatusCode::kInvalidArgument, {"attribute \"a\""}));
  const Value text = Value::Str("x");
  EXPECT_TRUE(FailsWith(EncodeDcpMetadata(Sample(), {.structure = &text}),
                        StatusCode::kInvalidArgument, {"neither container nor leaf"}));
  Value deep{.kind = ValueKind::kObjectLeaf};
  for (int i = 0; i < 300; ++i) {
    deep = Value{.kind = ValueKind::kList, .items = {deep}};
  }
  EXPECT_TRUE(FailsWith(EncodeDcpMetadata(Sample(), {.structure = &deep}),
                        StatusCode::kInvalidArgument, {"deeper"}));
}

}  // namespace
}  // namespace varve::encode_test
