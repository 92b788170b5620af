// Parts put together by hand: what the golden sets do not show, and what only an attacker writes.

#include "interop/hfai/merge.h"

#include <gtest/gtest.h>

#include "interop/hfai/names.h"
#include "support/archives.h"
#include "support/pickles.h"
#include "support/status_matchers.h"

namespace varve::merge_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Watched;
using test::pickled::Archive;
using test::pickled::Call;
using test::pickled::Dict;
using test::pickled::Float;
using test::pickled::Global;
using test::pickled::Int;
using test::pickled::Ints;
using test::pickled::kNone;
using test::pickled::kTrue;
using test::pickled::List;
using test::pickled::Storage;
using test::pickled::Str;
using test::pickled::Tensor;
using test::pickled::Tuple;

constexpr auto kDataLoss = StatusCode::kDataLoss;
constexpr auto kUnimplemented = StatusCode::kUnimplemented;
constexpr auto kFailedPrecondition = StatusCode::kFailedPrecondition;

/// A part before it is pickled. Storage "0" has 24 bytes: six float32.
struct Sample {
  std::string nshards = Int(1);
  std::string version = Str("2.0.0");
  std::vector<std::string> small{};  ///< Of the one model: keys and values in turn.
  std::vector<std::string> large{};  ///< Of the one model.
  std::string optimizers = "]";
  std::vector<std::string> more{};  ///< Entries of the part.

  [[nodiscard]] std::string Pickled() const {
    std::vector<std::string> entries{Str("__nshards__"), nshards,
                                     Str("__version__"), version,
                                     Str("model"),       List({Tuple({Dict(small), Dict(large)})}),
                                     Str("optimizer"),   optimizers};
    entries.insert(entries.end(), more.begin(), more.end());
    return Archive(Dict(entries), {std::string(24, 'x')});
  }
};

std::string Flat(std::int64_t elements, std::int64_t begin = 0, std::int64_t stride = 1) {
  return Tensor(Storage("FloatStorage", "0", 6), begin, {elements}, {stride});
}

std::string Size(const std::vector<std::int64_t>& dims) {
  return Call(Global("torch", "Size"), {Ints(dims)});
}

std::string Piece(const std::vector<std::int64_t>& shape, std::int64_t elements,
                  std::int64_t begin = 0, std::int64_t stride = 1) {
  return Tuple({Size(shape), Flat(elements, begin, stride)});
}

std::string OptimizerPart(const std::vector<std::string>& state,
                          const std::vector<std::string>& large) {
  return List({Tuple({Dict({Str("state"), Dict(state), Str("param_groups"), "]"}), Dict(large)})});
}

Result<Decoded> Decode(const std::vector<Sample>& samples) {
  std::vector<HfaiPart> parts;
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    const std::string file = samples[i].Pickled();
    VARVE_ASSIGN_OR_RETURN(HfaiPart part, DecodeHfaiPart(file.size(), Watched(file), i, i));
    parts.push_back(std::move(part));
  }
  VARVE_RETURN_IF_ERROR(CheckHfaiParts(parts, {}));
  return MergeHfaiParts(std::move(parts));
}

Status Check(const std::vector<std::pair<std::uint32_t, std::uint64_t>>& parts,
             const std::vector<std::string>& odd = {}) {
  std::vector<HfaiPart> all;
  for (const auto& [number, nshards] : parts) {
    HfaiPart part;
    part.number = number;
    part.name = HfaiPartName(number);
    part.nshards = nshards;
    all.push_back(std::move(part));
  }
  return CheckHfaiParts(all, odd);
}

std::vector<std::string> Names(const Decoded& decoded) {
  std::vector<std::string> names;
  for (const TensorMetadata& tensor : decoded.metadata.tensors) {
    names.push_back(tensor.fqn);
  }
  for (const ObjectMetadata& object : decoded.metadata.objects) {
    names.push_back(object.fqn);
  }
  return names;
}

// ---- names of parts ----

TEST(HfaiPartName, HasAtLeastThreeDigits) {
  EXPECT_EQ(HfaiPartName(0), "PART_000.pt");
  EXPECT_EQ(HfaiPartName(1000), "PART_1000.pt");
  EXPECT_EQ(HfaiPartNumber("PART_012.pt"), 12);
  EXPECT_EQ(HfaiPartNumber("PART_1000.pt"), 1000);
  for (const auto* name : {"PART_12.pt", "PART_0012.pt", "PART_.pt", "PART_-01.pt", "PART_01a.pt",
                           "PART_99999999999.pt", "part_012.pt", "PART_012.pth", "XPART_012.pt"}) {
    EXPECT_EQ(HfaiPartNumber(name), std::nullopt) << name;
  }
}

// ---- which parts there are ----

TEST(HfaiParts, AreWholeWhenAllAreThereAndAgree) {
  EXPECT_TRUE(IsOk(Check({{0, 3}, {1, 3}, {2, 3}})));
}

TEST(HfaiParts, ThatAreMissingAreNamed) {
  EXPECT_TRUE(FailsWith(Check({{0, 4}, {3, 4}}), kFailedPrecondition,
                        {"PART_001.pt and PART_002.pt are missing", "__nshards__ says 4"}));
  EXPECT_TRUE(FailsWith(Check({{1, 2}}), kFailedPrecondition,
                        {"PART_000.pt is missing", "the plain values"}));
}

TEST(HfaiParts, OfAMillionThatAreClaimedNameAFew) {
  const Status status = Check({{0, 1'000'000}});
  EXPECT_TRUE(FailsWith(status, kFailedPrecondition, {"PART_001.pt", "and 999989 more"}));
  EXPECT_LT(status.message().size(), 400);
}

TEST(HfaiParts, OfAnotherSaveAreNamed) {
  EXPECT_TRUE(FailsWith(Check({{0, 2}, {1, 2}, {2, 4}, {3, 4}}), kDataLoss,
                        {"PART_002.pt and PART_003.pt belong to another save"}));
  EXPECT_TRUE(FailsWith(Check({{0, 1}, {1, 1}}), kDataLoss, {"PART_001.pt is surplus"}));
  EXPECT_TRUE(FailsWith(Check({{0, 2}, {1, 3}}), kDataLoss, {"PART_001.pt", "__nshards__ is 2"}));
  EXPECT_TRUE(FailsWith(Check({{0, 4}, {1, 2}}), kDataLoss,
                        {"PART_001.pt", "PART_002.pt and PART_003.pt are missing"}));
  EXPECT_TRUE(FailsWith(Check({{0, 1}}, {"PART_0001.pt"}), kDataLoss, {"PART_0001.pt"}));
}

// ---- one part ----

TEST(HfaiPart, OfAnotherVersionIsRefused) {
  EXPECT_TRUE(FailsWith(Decode({{.version = Str("3.0.0")}}), kUnimplemented,
                        {"PART_000.pt", "3.0.0", "2.0.0"}));
  EXPECT_TRUE(FailsWith(Decode({{.version = Float(2)}}), kUnimplemented, {"2.0"}));
  // Every part is asked, not only the first.
  EXPECT_TRUE(FailsWith(Decode({{.nshards = Int(2)}, {.nshards = Int(2), .version = Str("1.0.0")}}),
                        kUnimplemented, {"PART_001.pt", "1.0.0"}));
}

TEST(HfaiPart, NeedsANumberOfParts) {
  for (const std::string& wrong : {Str("1"), kTrue, kNone, Float(1), Int(0), Int(-1),
                                   Int(std::int64_t{1} << 60), List({Int(1)})}) {
    EXPECT_TRUE(FailsWith(Decode({{.nshards = wrong}}), kDataLoss, {"PART_000.pt", "__nshards__"}));
  }
}

TEST(HfaiPart, ThatIsNoneIsRefused) {
  const std::string file = Archive(List({Int(1)}));
  EXPECT_TRUE(FailsWith(DecodeHfaiPart(file.size(), Watched(file), 7, 0), kDataLoss,
                        {"PART_007.pt", "no dict"}));
  const std::string text = "this is no archive of torch.save, but long enough for one";
  EXPECT_TRUE(FailsWith(DecodeHfaiPart(text.size(), Watched(text), 7, 0), kDataLoss, {"PART_007"}));
  for (const std::string& optimizers : {kNone, Dict({}), List({Int(1)}), List({Tuple({"}"})}),
                                        List({Tuple({"}", "}"})}), List({Tuple({"]", "}"})})}) {
    EXPECT_TRUE(
        FailsWith(Decode({{.optimizers = optimizers}}), kDataLoss, {"PART_000.pt", "optimizer"}));
  }
}

TEST(HfaiPart, RefusesWrongPieces) {
  const auto fails = [](const std::string& piece, std::string_view phrase) {
    return FailsWith(Decode({{.large = {Str("w"), piece}}}), kDataLoss,
                     {"PART_000.pt", "large tensor w", phrase});
  };
  EXPECT_TRUE(fails(Flat(6), "no pair"));
  EXPECT_TRUE(fails(Tuple({Size({6}), Int(6)}), "no tensor"));
  EXPECT_TRUE(fails(Tuple({Str("6"), Flat(6)}), "no torch.Size"));
  EXPECT_TRUE(fails(Tuple({Ints({-6}), Flat(6)}), "negative"));
  EXPECT_TRUE(fails(Piece({1LL << 40, 1LL << 40}, 6), "larger than"));
  EXPECT_TRUE(fails(Piece(std::vector<std::int64_t>(65, 1), 1), "65 dimensions"));
  EXPECT_TRUE(
      fails(Tuple({Size({2, 3}), Tensor(Storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1})}),
            "instead of one dimension"));
  EXPECT_TRUE(
      FailsWith(Decode({{.large = {Str("w"), Piece({7}, 7)}}}), kDataLoss, {"PART_000.pt"}));
  EXPECT_TRUE(FailsWith(Decode({{.optimizers = OptimizerPart({}, {Str("w"), Piece({6}, 6)})}}),
                        kDataLoss, {"PART_000.pt", "no pair of parameter id and name"}));
}

// ---- merged ----

TEST(HfaiMerge, NamesModelsOptimizersAndTheCallersOwnEntries) {
  const auto decoded =
      Decode({{.nshards = Int(2),
               .small = {Str("b"), Flat(2)},
               .large = {Str("w"), Piece({2, 3}, 3)},
               .optimizers = OptimizerPart({Int(0), Dict({Str("step"), Int(4)}), Int(1), "}"},
                                           {Tuple({Int(1), Str("m")}), Piece({5}, 3)}),
               .more = {Str("epoch"), Int(3)}},
              {.nshards = Int(2),
               .large = {Str("w"), Piece({2, 3}, 3, 3)},
               .optimizers = OptimizerPart({}, {Tuple({Int(1), Str("m")}), Piece({5}, 2)}),
               .more = {Str("epoch"), Int(9), Str("lost"), Int(9)}}});
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(Names(*decoded),
            (std::vector<std::string>{"model.0.b", "model.0.w", "optimizer.0.state.1.m", "epoch",
                                      "optimizer.0.param_groups", "optimizer.0.state.0.step"}));
  EXPECT_EQ(decoded->metadata.world_size, 2);
  EXPECT_EQ(decoded->metadata.files.at(1).name, "PART_001.pt");
  EXPECT_EQ(decoded->metadata.files.at(1).rank, 1);
  const TensorMetadata* const w = decoded->metadata.FindTensor("model.0.w");
  ASSERT_EQ(w->chunks.size(), 2);
  EXPECT_EQ(w->chunks[1].box, (Box{{1, 0}, {1, 3}}));
  EXPECT_EQ(w->chunks[1].extent.file, 1);
  EXPECT_EQ(w->chunks[1].extent.end - w->chunks[1].extent.begin, 12);
}

TEST(HfaiMerge, ReadsAPieceWithSteps) {
  const auto decoded = Decode({{.large = {Str("w"), Piece({1, 3}, 3, 1, 2)}}});
  ASSERT_TRUE(IsOk(decoded));
  const Chunk& chunk = decoded->metadata.tensors.at(0).chunks[0];
  EXPECT_EQ(chunk.strides, (Strides{6, 2}));
  EXPECT_EQ(chunk.extent.end - chunk.extent.begin, 20);
}

TEST(HfaiMerge, TakesFewerPiecesThanPartsForATinyTensor) {
  // Three parts, four elements: two each, and none for the last.
  const Sample with{.nshards = Int(3), .large = {Str("w"), Piece({4}, 2)}};
  Sample last{.nshards = Int(3), .large = {Str("w"), Piece({4}, 0)}};
  EXPECT_TRUE(IsOk(Decode({with, with, last})));
  last.large.clear();
  EXPECT_TRUE(IsOk(Decode({with, with, last})));
}

TEST(HfaiMerge, TakesATensorWithoutElements) {
  EXPECT_TRUE(IsOk(Decode({{.large = {Str("w"), Piece({0, 3}, 0)}}})));
  EXPECT_TRUE(
      FailsWith(Decode({{.large = {Str("w"), Piece({0, 3}, 1)}}}), kDataLoss, {"w [0, 3]"}));
}

TEST(HfaiMerge, NamesAPieceThatIsMissingOrOfAnotherSize) {
  const Sample half{.nshards = Int(2), .large = {Str("w"), Piece({2, 3}, 3)}};
  EXPECT_TRUE(FailsWith(Decode({half, {.nshards = Int(2)}}), kDataLoss,
                        {"model tensor w [2, 3]", "PART_001.pt has no piece", "3 of 6 elements"}));
  EXPECT_TRUE(FailsWith(Decode({half, {.nshards = Int(2), .large = {Str("w"), Piece({2, 3}, 4)}}}),
                        kDataLoss, {"w [2, 3]", "PART_001.pt has 4 elements instead of 3"}));
  EXPECT_TRUE(FailsWith(Decode({half, {.nshards = Int(2), .large = {Str("w"), Piece({3, 2}, 3)}}}),
                        kDataLoss, {"w [2, 3]", "PART_001.pt", "[3, 2]"}));
  const std::string ints = Tensor(Storage("IntStorage", "0", 6), 0, {3}, {1});
  EXPECT_TRUE(FailsWith(
      Decode({half, {.nshards = Int(2), .large = {Str("w"), Tuple({Size({2, 3}), ints})}}}),
      kDataLoss, {"w [2, 3]", "PART_001.pt is int32", "float32"}));
}

TEST(HfaiMerge, NamesATensorThatIsStoredTwice) {
  const Sample whole{.nshards = Int(2), .small = {Str("w"), Flat(6)}};
  EXPECT_TRUE(FailsWith(Decode({whole, whole}), kDataLoss,
                        {"model tensor w is stored in PART_000.pt and in PART_001.pt"}));
  EXPECT_TRUE(FailsWith(
      Decode({{.small = {Str("w"), Flat(6)}, .large = {Str("w"), Piece({6}, 6)}}}), kDataLoss,
      {"model tensor w is stored whole in PART_000.pt and in pieces elsewhere"}));
  const std::string entry = OptimizerPart({Int(0), "}"}, {});
  EXPECT_TRUE(FailsWith(
      Decode({{.nshards = Int(2), .optimizers = entry}, {.nshards = Int(2), .optimizers = entry}}),
      kDataLoss, {"parameter 0", "PART_000.pt and in PART_001.pt"}));
  EXPECT_TRUE(
      FailsWith(Decode({{.optimizers = OptimizerPart({Int(0), Dict({Str("m"), Flat(6)})},
                                                     {Tuple({Int(0), Str("m")}), Piece({6}, 6)})}}),
                kDataLoss, {"optimizer tensor 0.m is stored whole in PART_000.pt"}));
}

TEST(HfaiMerge, NeedsTheSmallEntryOfALargeOptimizerTensor) {
  for (const std::vector<std::string>& state :
       {std::vector<std::string>{}, std::vector<std::string>{Int(0), Int(1)}}) {
    EXPECT_TRUE(FailsWith(
        Decode({{.optimizers = OptimizerPart(state, {Tuple({Int(0), Str("m")}), Piece({6}, 6)})}}),
        kDataLoss, {"optimizer tensor 0.m", "no part has the small entry"}));
  }
}

TEST(HfaiMerge, NeedsAsManyModelsInEveryPart) {
  EXPECT_TRUE(FailsWith(
      Decode({{.nshards = Int(2)}, {.nshards = Int(2), .optimizers = OptimizerPart({}, {})}}),
      kDataLoss, {"PART_001.pt has 1 entries in \"optimizer\""}));
}

TEST(HfaiMerge, TakesKeysOfAnyPlainType) {
  const auto decoded = Decode({{.small = {Int(5), Flat(1), Tuple({Int(1), Str("a")}), Flat(2)},
                                .large = {kNone, Piece({6}, 6)},
                                .more = {Int(7), Str("seven")}}});
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(Names(*decoded),
            (std::vector<std::string>{"model.0.(1, 'a')", "model.0.5", "model.0.None", "7"}));
}

TEST(HfaiMerge, RefusesPiecesThatTakeManyTimesTheMemoryOfTheFiles) {
  // Half of 3 x 3 x ... ends in the middle of every dimension: sixteen boxes of sixteen dimensions.
  const std::vector<std::int64_t> shape(16, 3);
  constexpr std::int64_t kElements = 43'046'721;
  Sample first{.nshards = Int(2)};
  Sample second{.nshards = Int(2)};
  for (int i = 0; i < 6000; ++i) {
    const std::string key = Str(std::to_string(i));
    first.large.insert(first.large.end(), {key, Piece(shape, kElements / 2 + 1, 0, 0)});
    second.large.insert(second.large.end(), {key, Piece(shape, kElements / 2, 0, 0)});
  }
  EXPECT_TRUE(FailsWith(Decode({first, second}), StatusCode::kInvalidArgument, {"memory"}));
}

}  // namespace
}  // namespace varve::merge_test
