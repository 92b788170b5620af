// Rank files of torch_legacy put together by hand: ShardedTensors and DTensors as their pickles
// hold them.

#include "interop/olmo/sharded.h"

#include <gtest/gtest.h>

#include "support/pickles.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::sharded_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Watched;
using test::pickled::Archive;
using test::pickled::Build;
using test::pickled::Call;
using test::pickled::Dict;
using test::pickled::Global;
using test::pickled::Int;
using test::pickled::Ints;
using test::pickled::kFalse;
using test::pickled::kNone;
using test::pickled::List;
using test::pickled::Storage;
using test::pickled::Str;
using test::pickled::Tensor;
using test::pickled::Tuple;

constexpr auto kDataLoss = StatusCode::kDataLoss;

std::string Object(const std::string& name, const std::vector<std::string>& attributes) {
  return Build(Global("torch.distributed", name) + ")\x81", Dict(attributes));
}

/// The metadata of a shard.
std::string Place(const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& sizes,
                  int rank) {
  return Object("ShardMetadata",
                {Str("shard_offsets"), Ints(offsets), Str("shard_sizes"), Ints(sizes),
                 Str("placement"), Str("rank:" + std::to_string(rank) + "/cpu")});
}

/// A tensor of float32 in storage "0", row-major.
std::string Floats(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * sizes[d];
  }
  return Tensor(Storage("FloatStorage", "0", 16), 0, sizes, strides);
}

std::string Shard(const std::string& place, const std::string& tensor) {
  return Object("Shard", {Str("metadata"), place, Str("tensor"), tensor});
}

std::string Wrapped(const std::string& type, const std::vector<std::int64_t>& shape,
                    const std::string& state) {
  const std::string kind = Global("torch.distributed.tensor", type);
  return Call(Global("torch._tensor", "_rebuild_from_type_v2"),
              {Global("torch._utils", "_rebuild_wrapper_subclass"), kind,
               Tuple({kind, Global("torch", "float32"), Ints(shape), Ints({1})}), state});
}

std::string Sharded(const std::vector<std::int64_t>& shape, const std::vector<std::string>& places,
                    const std::vector<std::string>& own) {
  const std::string metadata =
      Object("ShardedTensorMetadata", {Str("shards_metadata"), List(places)});
  return Wrapped("ShardedTensor", shape, Tuple({List(own), metadata, kNone, kNone, kFalse}));
}

std::string Replicate() { return Global("torch.distributed", "Replicate") + ")R"; }
std::string ShardOn(int dim) { return Object("Shard", {Str("dim"), Int(dim)}); }

/// A DTensor on a mesh of this shape, as the rank with this coordinate holds it.
std::string DTensor(const std::vector<std::int64_t>& shape,
                    const std::vector<std::string>& placements,
                    const std::vector<std::int64_t>& mesh,
                    const std::vector<std::int64_t>& coordinate, const std::string& local) {
  const std::string layout = Object("Layout", {Str("shape"), Ints(mesh)});
  const std::string device_mesh =
      Object("DeviceMesh", {Str("_layout"), layout, Str("_coordinate_on_dim"), Ints(coordinate)});
  const std::string spec =
      Object("DTensorSpec", {Str("mesh"), device_mesh, Str("placements"), Tuple(placements)});
  return Wrapped("DTensor", shape, Dict({Str("_spec"), spec, Str("_local_tensor"), local}));
}

/// Reads the root of an archive as one of `world_size` ranks.
Result<std::optional<StateNode>> Read(const std::string& object, std::uint32_t world_size = 2) {
  const std::string file = Archive(object, {std::string(64, 'x')});
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive,
                         TorchArchive::Open(file.size(), Watched(file)));
  return ShardedTensors(archive, 5, world_size).At(archive.tree().root());
}

// ---- ShardedTensor ----

TEST(OlmoShardedTensor, HasTheChunksThatItsRankHolds) {
  const std::string first = Place({0, 0}, {2, 3}, 0);
  const auto tensor =
      Read(Sharded({3, 3}, {first, Place({2, 0}, {1, 3}, 1)}, {Shard(first, Floats({2, 3}))}));
  ASSERT_TRUE(IsOk(tensor));
  ASSERT_TRUE(tensor->has_value());
  const StoredTensor& stored = (*tensor)->tensor;
  EXPECT_EQ(stored.shape, (Dims{3, 3}));
  ASSERT_EQ(stored.chunks.size(), 1);
  EXPECT_EQ(stored.chunks[0].box, (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(stored.chunks[0].extent.file, 5);
  EXPECT_FALSE(stored.sharding.empty());
}

TEST(OlmoShardedTensor, MayHoldNothingOnARank) {
  const auto tensor = Read(Sharded({3}, {Place({0}, {3}, 0)}, {}));
  ASSERT_TRUE(IsOk(tensor));
  EXPECT_TRUE((*tensor)->tensor.chunks.empty());
}

TEST(OlmoShardedTensor, HasOneDigestForOneWayOfSharing) {
  const std::string a = Place({0}, {2}, 0);
  const std::string b = Place({2}, {2}, 1);
  const auto first = Read(Sharded({4}, {a, b}, {Shard(a, Floats({2}))}));
  const auto second = Read(Sharded({4}, {a, b}, {Shard(b, Floats({2}))}));
  const auto other = Read(Sharded({4}, {b, a}, {}));
  ASSERT_TRUE(IsOk(first) && IsOk(second) && IsOk(other));
  EXPECT_EQ((*first)->tensor.sharding, (*second)->tensor.sharding);
  EXPECT_NE((*first)->tensor.sharding, (*other)->tensor.sharding);
}

TEST(OlmoShardedTensor, RefusesAShardThatItsMetadataDoNotList) {
  const std::string listed = Place({0}, {2}, 0);
  EXPECT_TRUE(FailsWith(Read(Sharded({4}, {listed}, {Shard(Place({2}, {2}, 0), Floats({2}))})),
                        kDataLoss, {"rank 0 is not in the tensor's metadata"}));
  EXPECT_TRUE(FailsWith(Read(Sharded({4}, {listed}, {Shard(Place({0}, {2}, 1), Floats({2}))})),
                        kDataLoss, {"rank 1 is not in the tensor's metadata"}));
}

TEST(OlmoShardedTensor, RefusesPlacesOutsideTheTensorOrTheWorld) {
  EXPECT_TRUE(FailsWith(Read(Sharded({4}, {Place({3}, {2}, 0)}, {})), kDataLoss, {"outside"}));
  EXPECT_TRUE(
      FailsWith(Read(Sharded({4}, {Place({-1}, {2}, 0)}, {})), kDataLoss, {"no valid offsets"}));
  EXPECT_TRUE(FailsWith(Read(Sharded({4}, {Place({0}, {2}, 2)}, {})), kDataLoss,
                        {"placed on rank 2", "2 ranks"}));
}

TEST(OlmoShardedTensor, RefusesATensorOfAnotherShape) {
  const std::string place = Place({0}, {4}, 0);
  EXPECT_TRUE(FailsWith(Read(Sharded({4}, {place}, {Shard(place, Floats({3}))})), kDataLoss,
                        {"[0:4]", "[3]"}));
}

TEST(OlmoShardedTensor, WhoseShapeOverflowsIsRefused) {
  EXPECT_TRUE(FailsWith(Read(Sharded({std::int64_t{1} << 32, std::int64_t{1} << 32}, {}, {})),
                        kDataLoss, {"larger than 2^62 bytes"}));
}

TEST(OlmoShardedTensor, IsNothingElse) {
  const auto plain = Read(Floats({2}));
  ASSERT_TRUE(IsOk(plain));
  EXPECT_FALSE(plain->has_value());
  const auto dict = Read(Dict({Str("a"), Int(1)}));
  ASSERT_TRUE(IsOk(dict));
  EXPECT_FALSE(dict->has_value());
}

// ---- DTensor ----

Box BoxOf(const Result<std::optional<StateNode>>& tensor) {
  EXPECT_TRUE(IsOk(tensor));
  return tensor.ok() && *tensor && !(*tensor)->tensor.chunks.empty()
             ? (*tensor)->tensor.chunks[0].box
             : Box();
}

TEST(OlmoDTensor, IsCutAsTorchChunkCuts) {
  // Five rows on three ranks: 2, 2, 1.
  EXPECT_EQ(BoxOf(Read(DTensor({5, 2}, {ShardOn(0)}, {3}, {1}, Floats({2, 2})))),
            (Box{{2, 0}, {2, 2}}));
  EXPECT_EQ(BoxOf(Read(DTensor({5, 2}, {ShardOn(0)}, {3}, {2}, Floats({1, 2})))),
            (Box{{4, 0}, {1, 2}}));
}

TEST(OlmoDTensor, OfARankBehindTheLastPartHasNoChunk) {
  const auto tensor = Read(DTensor({2}, {ShardOn(0)}, {3}, {2}, Floats({0})));
  ASSERT_TRUE(IsOk(tensor));
  EXPECT_TRUE((*tensor)->tensor.chunks.empty());
}

TEST(OlmoDTensor, IsCutByEachDimensionOfItsMesh) {
  EXPECT_EQ(BoxOf(Read(DTensor({4, 6}, {ShardOn(0), ShardOn(1)}, {2, 3}, {1, 2}, Floats({2, 2})))),
            (Box{{2, 4}, {2, 2}}));
  EXPECT_EQ(BoxOf(Read(DTensor({4}, {Replicate(), ShardOn(0)}, {2, 2}, {1, 0}, Floats({2})))),
            (Box{{0}, {2}}));
}

TEST(OlmoDTensor, RefusesOtherPlacements) {
  const std::string partial = Global("torch.distributed", "Partial") + ")R";
  EXPECT_TRUE(FailsWith(Read(DTensor({4}, {partial}, {2}, {0}, Floats({4}))),
                        StatusCode::kUnimplemented, {"Partial", "Shard and Replicate"}));
}

TEST(OlmoDTensor, RefusesACoordinateOutsideItsMesh) {
  EXPECT_TRUE(
      FailsWith(Read(DTensor({4}, {ShardOn(0)}, {2}, {2}, Floats({2}))), kDataLoss, {"not there"}));
  EXPECT_TRUE(
      FailsWith(Read(DTensor({4}, {ShardOn(1)}, {2}, {0}, Floats({2}))), kDataLoss, {"not there"}));
  EXPECT_TRUE(FailsWith(Read(DTensor({4}, {ShardOn(0)}, {2, 2}, {0, 0}, Floats({2}))), kDataLoss,
                        {"1 placements on a mesh of 2 dimensions"}));
}

}  // namespace
}  // namespace varve::sharded_test
