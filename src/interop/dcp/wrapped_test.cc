#include "interop/dcp/wrapped.h"

#include <string>

#include <gtest/gtest.h>

#include "format/structure.h"
#include "interop/dcp/encode.h"
#include "interop/dcp/structure.h"
#include "support/status_matchers.h"
#include "varve/value.h"

namespace varve::wrapped_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr std::uint64_t kItem = 4096;  // Where the value's item begins.

/// Returns a state {"m": {"w": of "a" and "b"}, "n": number}, whose `m.w` is one value for torch.
Metadata Sample() {
  Metadata metadata;
  metadata.format = Format::kDcp;
  metadata.files = {{.name = "__0_0.distcp"}};
  const auto inner = [](const std::string& fqn, DType dtype, const Dims& shape,
                        std::uint64_t begin) {
    const Box whole{Dims(shape.size(), 0), shape};
    std::uint64_t bytes = ItemSize(dtype);
    for (const std::uint64_t size : shape) {
      bytes *= size;
    }
    const Extent extent{0, kItem + begin, kItem + begin + bytes, Encoding::kPlain};
    return TensorMetadata{fqn, dtype, shape, {{.box = whole, .extent = extent}}};
  };
  metadata.tensors = {inner("m.w.a", DType::kInt8, {8, 4}, 512),
                      inner("m.w.b", DType::kFloat32, {}, 640)};
  metadata.objects = {{"m.w", {0, kItem, kItem + 1000, Encoding::kTorchItem}},
                      {"n", {0, 6000, 7000, Encoding::kTorchItem}}};
  return metadata;
}

Value Dict(const std::string& key, Value item) {
  return {.kind = ValueKind::kDict, .items = {Value::Str(key), std::move(item)}};
}

Value Structure() {
  const Value leaf{.kind = ValueKind::kTensorLeaf, .text = "torch"};
  const Value wrapped{.kind = ValueKind::kWrapped,
                      .text = "m:Class",
                      .items = {Value::Str("a"), leaf, Value::Str("b"), leaf}};
  Value state = Dict("m", Dict("w", wrapped));
  state.items.push_back(Value::Str("n"));
  state.items.push_back({.kind = ValueKind::kObjectLeaf});
  return state;
}

/// Returns the index with what `wrapped` says in its attribute.
std::string Encoded(const Metadata& metadata, const std::string& wrapped) {
  const Value structure = Structure();
  DcpEncodeOptions options;
  options.structure = &structure;
  options.wrapped = FindDcpWrapped(metadata);
  options.attributes = {{std::string(kDcpStructure), EncodeValue(structure)},
                        {std::string(kDcpWrapped), wrapped}};
  auto encoded = EncodeDcpMetadata(metadata, options);
  EXPECT_TRUE(IsOk(encoded));
  return encoded.ok() ? *std::move(encoded) : std::string();
}

TEST(DcpWrapped, FindsTheTensorsInTheItemsOfValues) {
  const auto found = FindDcpWrapped(Sample());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].fqn, "m.w");
  const std::vector<DcpInner> inner{{"m.w.a", DType::kInt8, {8, 4}, 512},
                                    {"m.w.b", DType::kFloat32, {}, 640}};
  EXPECT_EQ(found[0].inner, inner);
  const auto decoded = DecodeDcpWrapped(EncodeDcpWrapped(found));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, found);
}

TEST(DcpWrapped, ComesBackFromAnIndexAsItWas) {
  const Metadata metadata = Sample();
  const auto decoded =
      DecodeDcpMetadata(Encoded(metadata, EncodeDcpWrapped(FindDcpWrapped(metadata))));
  ASSERT_TRUE(IsOk(decoded));
  ASSERT_EQ(decoded->metadata.tensors.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(decoded->metadata.tensors[i].fqn, metadata.tensors[i].fqn);
    EXPECT_EQ(decoded->metadata.tensors[i].dtype, metadata.tensors[i].dtype);
    EXPECT_EQ(decoded->metadata.tensors[i].shape, metadata.tensors[i].shape);
    EXPECT_EQ(decoded->metadata.tensors[i].chunks[0].extent, metadata.tensors[i].chunks[0].extent);
  }
  ASSERT_EQ(decoded->metadata.objects.size(), 1U);
  EXPECT_EQ(decoded->metadata.objects[0].fqn, "n");
  ASSERT_TRUE(decoded->structure);
  EXPECT_EQ(*decoded->structure, Structure());
}

TEST(DcpWrapped, CountsOnlyWhereTheStructureHasTheInnerTensors) {
  auto wrapped = FindDcpWrapped(Sample());
  wrapped[0].inner.pop_back();  // Other software has changed the index, for example.
  const auto decoded = DecodeDcpMetadata(Encoded(Sample(), EncodeDcpWrapped(wrapped)));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_TRUE(decoded->metadata.tensors.empty());
  EXPECT_EQ(decoded->metadata.objects.size(), 2U);
}

TEST(DcpWrapped, RefusesWhatDoesNotLieInTheItem) {
  for (const std::uint64_t begin : {std::uint64_t{969}, std::uint64_t{1} << 62}) {
    auto wrapped = FindDcpWrapped(Sample());
    wrapped[0].inner[0].begin = begin;
    EXPECT_TRUE(FailsWith(DecodeDcpMetadata(Encoded(Sample(), EncodeDcpWrapped(wrapped))),
                          StatusCode::kDataLoss, {"m.w.a"}));
  }
  auto wrapped = FindDcpWrapped(Sample());
  wrapped[0].inner[0].shape = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
  EXPECT_TRUE(FailsWith(DecodeDcpMetadata(Encoded(Sample(), EncodeDcpWrapped(wrapped))),
                        StatusCode::kDataLoss, {"m.w.a"}));
}

TEST(DcpWrapped, RefusesAnotherContent) {
  const Value number = Value::Int(3);
  const Value pair{.kind = ValueKind::kTuple, .items = {number, number}};
  const Value nameless{.kind = ValueKind::kTuple, .items = {pair}};
  for (const Value& value : {number, Dict("w", number), Dict("w", nameless)}) {
    EXPECT_TRUE(FailsWith(DecodeDcpWrapped(EncodeValue(value)), StatusCode::kDataLoss, {}));
  }
  auto twice = FindDcpWrapped(Sample());
  twice[0].inner[1].fqn = "m.w.a";
  EXPECT_TRUE(
      FailsWith(DecodeDcpWrapped(EncodeDcpWrapped(twice)), StatusCode::kDataLoss, {"twice"}));
}

}  // namespace
}  // namespace varve::wrapped_test
