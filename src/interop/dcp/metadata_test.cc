#include "interop/dcp/metadata.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/dcp_pickles.h"
#include "support/status_matchers.h"

namespace varve::metadata_test {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): paths with NULs
namespace p = test::pickled;
namespace dcp = test::dcp;

using test::FailsWith;
using test::IsOk;

Result<Decoded> Decode(const dcp::Index& index) { return DecodeDcpMetadata(index.Pickle()); }

TEST(DcpMetadata, TensorsValuesAndFilesAreThere) {
  dcp::Index index;
  index.Add("w", {3, 2}).AddValue("step").Add("a", {1});
  const auto decoded = Decode(index);
  ASSERT_TRUE(IsOk(decoded));
  const Metadata& metadata = decoded->metadata;
  EXPECT_EQ(metadata.format, Format::kDcp);
  EXPECT_EQ(metadata.world_size, 2U);
  EXPECT_EQ(metadata.block_bytes, 0U);
  EXPECT_EQ(metadata.save_id, SaveId{});
  ASSERT_EQ(metadata.files.size(), 2U);
  EXPECT_EQ(metadata.files[1].name, "__1_0.distcp");
  EXPECT_EQ(metadata.files[1].rank, 1U);
  EXPECT_EQ(metadata.files[1].size, 0U) << "storage tells";
  ASSERT_EQ(metadata.tensors.size(), 2U);
  EXPECT_EQ(metadata.tensors[0].fqn, "a");
  const TensorMetadata& w = metadata.tensors[1];
  EXPECT_EQ(w.dtype, DType::kFloat32);
  EXPECT_EQ(w.shape, Dims{5});
  ASSERT_EQ(w.chunks.size(), 2U);
  EXPECT_EQ(w.chunks[1].box, (Box{{3}, {2}}));
  EXPECT_EQ(w.chunks[1].extent, (Extent{1, 300, 1300, Encoding::kTorchItem}));
  ASSERT_EQ(metadata.objects.size(), 1U);
  EXPECT_EQ(metadata.objects[0].extent, (Extent{0, 7, 77, Encoding::kTorchItem}));
  EXPECT_EQ(ToString(*decoded->structure), "{'w': <tensor>, 'step': <object>, 'a': <tensor>}");
}

TEST(DcpMetadata, AnEmptyCheckpointIsOne) {
  const auto decoded = Decode({});
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_TRUE(decoded->metadata.tensors.empty());
  EXPECT_EQ(decoded->metadata.world_size, 1U);
  EXPECT_EQ(ToString(*decoded->structure), "{}");
}

TEST(DcpMetadata, ClassesOfOldVersionsAreKnown) {
  const std::string old = "torch.distributed._shard.sharded_tensor.metadata";
  dcp::Index index;
  index.Add("w", {4});
  index.state[1] =
      dcp::Tensor({4}, {dcp::Chunk({0}, {4})},
                  dcp::Properties("float32", dcp::Layout(), old, "MEM_FORMAT_ENCODING"));
  EXPECT_TRUE(IsOk(Decode(index)));
  std::string pickle = index.Pickle();
  for (std::size_t at = 0;
       (at = pickle.find("torch.distributed.checkpoint.", at)) != std::string::npos;) {
    pickle.replace(at, 29, "torch.distributed._shard.checkpoint.");
  }
  EXPECT_TRUE(IsOk(DecodeDcpMetadata(pickle)));
}

std::string Replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
  return text;
}

TEST(DcpMetadata, ClassesOfOtherSoftwareAreKnownByTheirFields) {
  dcp::Index index;
  index.Add("w", {3, 2}).AddValue("step");
  const std::string pickle = index.Pickle();
  const auto expected = DecodeDcpMetadata(pickle);
  ASSERT_TRUE(IsOk(expected));
  const auto expect_same = [&](const std::string& other) {
    ASSERT_NE(other, pickle);
    const auto decoded = DecodeDcpMetadata(other);
    ASSERT_TRUE(IsOk(decoded));
    EXPECT_EQ(decoded->metadata, expected->metadata);
  };
  expect_same(Replaced(pickle, dcp::kFilesystem, "olmo_core.distributed.checkpoint.filesystem"));
  expect_same(Replaced(pickle, "torch.distributed.checkpoint.", "nemo.backports."));
  expect_same(Replaced(pickle, "metadata\nMetadata\n", "metadata\nMCoreMetadata\n"));
  for (const std::string name : {"ChunkStorageMetadata", "MetadataIndex", "_StorageInfo",
                                 "BytesStorageMetadata", "TensorStorageMetadata"}) {
    SCOPED_TRACE(name);
    expect_same(Replaced(pickle, "\n" + name + "\n", "\nMy" + name + "\n"));
  }
}

TEST(DcpMetadata, FieldsMayBeInSlots) {
  dcp::Index index;
  index.Add("w", {4});
  index.storage[1] = p::Build(
      p::Global("mine", "_StorageInfo") + ")\x81",
      p::Tuple({p::kNone,
                p::Dict({p::Str("relative_path"), p::Str("data/a.bin"), p::Str("offset"), p::Int(5),
                         p::Str("length"), p::Int(600), p::Str("extension"), p::Str("none")})}));
  const auto decoded = Decode(index);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(decoded->metadata.files[0].name, "data/a.bin");
  EXPECT_EQ(decoded->metadata.tensors[0].chunks[0].extent,
            (Extent{0, 5, 605, Encoding::kTorchItem}));
}

TEST(DcpMetadata, ElementsWithoutArchivesArePlain) {
  dcp::Index index;
  index.Add("w", {4}).Add("v", {2}).AddValue("n");
  index.storage[1] = dcp::Stored("a", 0, 16);
  index.storage[3] = dcp::Stored("a", 16, 8);
  const auto plain = Decode(index);
  ASSERT_TRUE(IsOk(plain));
  for (const TensorMetadata& tensor : plain->metadata.tensors) {
    EXPECT_EQ(tensor.chunks[0].extent.encoding, Encoding::kPlain);
  }
  EXPECT_EQ(plain->metadata.objects[0].extent.encoding, Encoding::kTorchItem);
  index.storage[3] = dcp::Stored("a", 16, 1000);
  const auto archives = Decode(index);
  ASSERT_TRUE(IsOk(archives));
  EXPECT_EQ(archives->metadata.tensors[1].chunks[0].extent.encoding, Encoding::kTorchItem)
      << "one archive shows that the other is a damaged one";
}

TEST(DcpMetadata, IndexesOfByteCheckpointAreRefusedByName) {
  dcp::Index index;
  index.Add("w", {4});
  index.more = {p::Str("all_tensor_metadata"), p::Dict({})};
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kUnimplemented, {"ByteCheckpoint"}));
}

TEST(DcpMetadata, WhatOthersAddIsLeftAlone) {
  dcp::Index index;
  index.Add("w", {4});
  index.storage[1] = dcp::Stored("__0_0.distcp", 0, 10, {p::Str("crc"), p::List({p::Int(1)})});
  index.more = {p::Str("storage_meta"),
                dcp::New(dcp::kMetadata, "StorageMeta",
                         {p::Str("checkpoint_id"),
                          p::Call(p::Global("pathlib._local", "PosixPath"), {p::Str("x")})}),
                p::Str("mcore_data"),
                p::Dict({p::Str("a"), p::Dict({p::Str("b"), p::Int(1)})}),
                p::Str("sums"),
                p::Bytes("\x00\xFF"s)};
  DcpAttributeList attributes;
  EXPECT_TRUE(IsOk(DecodeDcpMetadata(index.Pickle(), &attributes)));
  EXPECT_EQ(attributes, (DcpAttributeList{{"sums", "\x00\xFF"s}}));
}

TEST(DcpMetadata, ShapesOfTensorsThatMegatronStoresInBlocksAreRead) {
  const auto with = [](const std::string& shape) {
    dcp::Index index;
    index.Add("w", {24, 24});
    index.more = {
        p::Str("mcore_data"),
        p::Dict({p::Str("w"), p::Dict({p::Str("nd_reformulated_orig_global_shape"), shape}),
                 p::Str("v"), p::Dict({})})};
    return Decode(index);
  };
  const auto decoded = with(p::Tuple({p::Int(6), p::Int(8)}));
  ASSERT_TRUE(IsOk(decoded));
  const std::vector<std::pair<std::string, Dims>> expected{{"w", {6, 8}}};
  EXPECT_EQ(decoded->in_blocks, expected);
  EXPECT_TRUE(FailsWith(with(p::Str("6x8")), StatusCode::kDataLoss, {"mcore_data", "\"w\""}));

  dcp::Index index;
  index.Add("w", {24, 24});
  const std::string said = p::Dict({p::Str("nd_reformulated_orig_global_shape"), p::Tuple({})});
  index.more = {p::Str("mcore_data"), p::Dict({p::Str("w"), said, p::Str("w"), said})};
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"mcore_data", "\"w\"", "twice"}));
}

TEST(DcpMetadata, TransformsAreKnownOrNamed) {
  const auto with = [](const std::vector<std::string>& names) {
    dcp::Index index;
    index.Add("layer.w", {4});
    std::vector<std::string> items;
    for (const std::string& name : names) {
      items.push_back(p::Str(name));
    }
    index.storage[1] =
        dcp::Stored("__0_0.distcp", 0, 10, {p::Str("transform_descriptors"), p::List(items)});
    return Decode(index);
  };
  const auto zstd = with({"stream.zstd/1"});
  ASSERT_TRUE(IsOk(zstd));
  EXPECT_EQ(zstd->metadata.tensors[0].chunks[0].extent.encoding, Encoding::kZstdTorchItem);
  const auto none = with({});
  ASSERT_TRUE(IsOk(none));
  EXPECT_EQ(none->metadata.tensors[0].chunks[0].extent.encoding, Encoding::kTorchItem);
  EXPECT_TRUE(FailsWith(with({"stream.zstd/1", "stream.aes/1"}), StatusCode::kUnimplemented,
                        {"tensor \"layer.w\"", "stream.zstd/1, stream.aes/1"}));
}

TEST(DcpMetadata, UnknownTypesAndLayoutsAreNamed) {
  const auto with = [](const std::string& properties) {
    dcp::Index index;
    index.Add("layer.w", {4});
    index.state[1] = dcp::Tensor({4}, {dcp::Chunk({0}, {4})}, properties);
    return Decode(index);
  };
  EXPECT_TRUE(IsOk(with(dcp::Properties("bfloat16"))));
  EXPECT_TRUE(FailsWith(with(dcp::Properties("qint8")), StatusCode::kUnimplemented,
                        {"tensor \"layer.w\"", "\"qint8\""}));
  EXPECT_TRUE(FailsWith(with(dcp::Properties("float32", dcp::Layout("torch.sparse_coo"))),
                        StatusCode::kUnimplemented, {"tensor \"layer.w\"", "torch.sparse_coo"}));
  EXPECT_TRUE(FailsWith(with(dcp::Properties("float32", p::kNone)), StatusCode::kDataLoss,
                        {"TensorProperties"}));
}

TEST(DcpMetadata, ChunksComeInOrderAndMeetTheirEntries) {
  // Strided shards list their chunks in the order of ranks.
  dcp::Index index;
  std::vector<std::string> chunks;
  for (const std::int64_t at : {8, 0, 12, 4}) {
    chunks.push_back(dcp::Chunk({at, 0}, {4, 5}));
    index.storage.insert(index.storage.begin(), dcp::Stored("f" + std::to_string(at), at, 1));
    index.storage.insert(index.storage.begin(), dcp::Key("w", {at, 0}));
  }
  index.state = {p::Str("w"), dcp::Tensor({16, 5}, chunks)};
  const auto decoded = Decode(index);
  ASSERT_TRUE(IsOk(decoded));
  const auto& found = decoded->metadata.tensors[0].chunks;
  ASSERT_EQ(found.size(), 4U);
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found[i].box, (Box{{4 * i, 0}, {4, 5}}));
    EXPECT_EQ(found[i].extent.begin, 4 * i);
    EXPECT_EQ(decoded->metadata.files[found[i].extent.file].name, "f" + std::to_string(4 * i));
  }
  EXPECT_EQ(decoded->metadata.world_size, 1U) << "names that tell no rank";
}

TEST(DcpMetadata, EmptyChunksOfOnePlaceAreKeptOnce) {
  dcp::Index index;
  index.Add("w", {9});
  index.state[1] = dcp::Tensor({9, 3}, {dcp::Chunk({9, 0}, {0, 3}), dcp::Chunk({0, 0}, {9, 3}),
                                        dcp::Chunk({9, 0}, {0, 3}), dcp::Chunk({0, 0}, {9, 0})});
  index.storage = {dcp::Key("w", {0, 0}), dcp::Stored("a", 0, 1), dcp::Key("w", {9, 0}),
                   dcp::Stored("b", 0, 1)};
  const auto decoded = Decode(index);
  ASSERT_TRUE(IsOk(decoded));
  const auto& chunks = decoded->metadata.tensors[0].chunks;
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[0].box, (Box{{0, 0}, {9, 3}}));
  EXPECT_EQ(chunks[1].box, (Box{{9, 0}, {0, 3}}));
}

TEST(DcpMetadata, ManyDimensionsAndLargeSizesAreRead) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 40;
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{},
                                              {kLarge},
                                              {kLarge, 3},
                                              {1, 2, kLarge},
                                              {1, 1, 1, kLarge},
                                              {2, 3, 4, 5, 6},
                                              {1, 2, 1, 2, 1, 2, 1, 2, 1}}) {
    const std::vector<std::int64_t> zeros(shape.size(), 0);
    dcp::Index index;
    index.state = {p::Str("w"), dcp::Tensor(shape, {dcp::Chunk(zeros, shape)})};
    index.storage = {dcp::Key("w", zeros), dcp::Stored("a", 0, 1)};
    const auto decoded = Decode(index);
    ASSERT_TRUE(IsOk(decoded));
    const TensorMetadata& tensor = decoded->metadata.tensors[0];
    EXPECT_EQ(tensor.shape, Dims(shape.begin(), shape.end()));
    ASSERT_EQ(tensor.chunks.size(), 1U);
    EXPECT_EQ(tensor.chunks[0].box, WholeBox(tensor.shape));
  }
}

TEST(DcpMetadata, HolesAreNoErrorHere) {
  dcp::Index index;
  index.Add("w", {4, 4});
  index.state[1] = dcp::Tensor({8}, {dcp::Chunk({4}, {4})});
  const auto decoded = Decode(index);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(decoded->metadata.tensors[0].chunks.size(), 1U);
}

TEST(DcpMetadata, ObjectsThatShareContainersAreReadWithoutFolding) {
  dcp::Index index;
  index.Add("w", {4}).Add("v", {4});
  const std::string list = p::Str("transform_descriptors") + p::List({p::Str("stream.zstd/1")});
  // The list's node has been dropped when the second entry refers to it again.
  index.storage[1] = dcp::Stored("a", 0, 10, {list + "q\0"s});
  index.storage[3] = dcp::Stored("a", 10, 10, {p::Str("transform_descriptors"), "h\0"s});
  const auto decoded = Decode(index);
  ASSERT_TRUE(IsOk(decoded));
  for (const TensorMetadata& tensor : decoded->metadata.tensors) {
    EXPECT_EQ(tensor.chunks[0].extent.encoding, Encoding::kZstdTorchItem);
  }
  // And one that stays wrong without it.
  index.storage[3] = dcp::Stored("../a", 10, 10, {p::Str("transform_descriptors"), "h\0"s});
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace varve::metadata_test
