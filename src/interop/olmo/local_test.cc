// Rank files of the `local` layout put together by hand: a model of "a", of shape (2, 3), and "b",
// of one element, in one flat parameter of seven elements.

#include "interop/olmo/local.h"

#include <gtest/gtest.h>

#include "support/pickles.h"
#include "support/status_matchers.h"

namespace varve::local_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Watched;
using test::pickled::Archive;
using test::pickled::Dict;
using test::pickled::Float;
using test::pickled::Int;
using test::pickled::Ints;
using test::pickled::kFalse;
using test::pickled::kNone;
using test::pickled::kTrue;
using test::pickled::List;
using test::pickled::Storage;
using test::pickled::Str;
using test::pickled::Tensor;
using test::pickled::Tuple;

constexpr auto kDataLoss = StatusCode::kDataLoss;

/// A 1-d tensor of bytes in storage "0".
std::string Flat(std::int64_t elements, std::int64_t offset = 0) {
  return Tensor(Storage("ByteStorage", "0", 16), offset, {elements}, {1});
}

/// One entry of `_shard_param_infos`; elements [first, last] of a parameter, from `at` on.
std::string Inside(std::int64_t at, std::int64_t first, std::int64_t last) {
  return Tuple({kTrue, Int(at), Int(last - first + 1), Int(first), Int(last)});
}
const std::string kOutside = Tuple({kFalse, kNone, kNone, kNone, kNone});

struct Handle {
  std::string infos;
  std::int64_t elements = 4;
  std::int64_t padding = 0;
  std::string names = List({Str("_fsdp_wrapped_module.a"), Str("b")});
  std::vector<std::string> instead{};  ///< Of `infos`: keys and values.

  [[nodiscard]] std::string Pickled() const {
    std::vector<std::string> entries{Str("flat_param.data"),
                                     Flat(elements),
                                     Str("flat_param._fqns"),
                                     names,
                                     Str("flat_param._shapes"),
                                     List({Ints({2, 3}), Ints({1})}),
                                     Str("flat_param._shard_numel_padded"),
                                     Int(padding)};
    if (instead.empty()) {
      entries.insert(entries.end(), {Str("flat_param._shard_param_infos"), infos});
    }
    entries.insert(entries.end(), instead.begin(), instead.end());
    return Dict(entries);
  }
};

std::string ModelFile(const Handle& handle, const std::string& bytes = std::string(16, 'x'),
                      const std::string& module = "_fsdp_wrapped_module.m") {
  const std::string one =
      Dict({Str("name"), Str(module), Str("handles"), List({handle.Pickled()})});
  return Archive(Dict({Str("modules"), List({one})}), {bytes});
}

/// The two ranks' halves: elements 0 to 3 of "a"; 4 and 5, then "b", then padding.
Handle First() { return {Tuple({Inside(0, 0, 3), kOutside})}; }
Handle Second() { return {Tuple({Inside(0, 4, 5), Inside(2, 0, 0)}), 4, 1}; }

std::string SecondBytes() { return std::string("yyz") + std::string(13, '\0'); }

NamedFile Named(const std::string& content) { return {"f", content.size(), Watched(content)}; }

Result<LocalModel> ReadRank(const std::string& layout_file, const std::string& file,
                            std::uint32_t number) {
  VARVE_ASSIGN_OR_RETURN(const LocalLayout layout, ReadLocalLayout(Named(layout_file)));
  return ReadLocalModel(Named(file), number, layout);
}

ReplicaCheck CheckOf(const std::vector<std::string>& files) {
  FileNames names;
  for (std::size_t i = 0; i < files.size(); ++i) {
    names.push_back("rank" + std::to_string(i) + ".pt");
  }
  return {names, {}, [files](std::uint32_t file, std::uint64_t begin, std::uint64_t end) {
            return Result<std::string>(files.at(file).substr(begin, end - begin));
          }};
}

Result<StateNode> MergeModels(const std::vector<std::string>& files) {
  VARVE_ASSIGN_OR_RETURN(const LocalLayout layout, ReadLocalLayout(Named(files[0])));
  std::vector<LocalModel> models;
  for (std::size_t i = 0; i < files.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(LocalModel model,
                           ReadLocalModel(Named(files[i]), static_cast<std::uint32_t>(i), layout));
    models.push_back(std::move(model));
  }
  return MergeLocalModel(layout, models, CheckOf(files));
}

/// Returns the stored bytes of a tensor, chunk after chunk.
std::string BytesOf(const StoredTensor& tensor, const std::vector<std::string>& files) {
  std::string bytes;
  for (const Chunk& chunk : tensor.chunks) {
    bytes +=
        files[chunk.extent.file].substr(chunk.extent.begin, chunk.extent.end - chunk.extent.begin);
  }
  return bytes;
}

// ---- the model ----

TEST(OlmoLocalModel, NamesParametersByModuleAndCleansBoth) {
  const std::string file = ModelFile(First());
  const auto layout = ReadLocalLayout(Named(file));
  ASSERT_TRUE(IsOk(layout));
  ASSERT_EQ(layout->parameters.size(), 2);
  EXPECT_EQ(layout->parameters[0].name, "m.a");
  EXPECT_EQ(layout->parameters[0].shape, (Dims{2, 3}));
  EXPECT_EQ(layout->parameters[1].name, "m.b");
}

TEST(OlmoLocalModel, OfTheRootModuleHasNamesWithoutADot) {
  const std::string file = ModelFile(First(), std::string(16, 'x'), "");
  const auto layout = ReadLocalLayout(Named(file));
  ASSERT_TRUE(IsOk(layout));
  EXPECT_EQ(layout->parameters[1].name, "b");
}

TEST(OlmoLocalModel, IsPutTogetherFromTheShardsOfItsRanks) {
  const std::vector<std::string> files{ModelFile(First()), ModelFile(Second(), SecondBytes())};
  auto model = MergeModels(files);
  ASSERT_TRUE(IsOk(model));
  EXPECT_EQ(BytesOf(model->Find("m.a")->tensor, files), "xxxxyy");
  EXPECT_EQ(BytesOf(model->Find("m.b")->tensor, files), "z");
}

TEST(OlmoLocalModel, OfTorch20SaysTheSameByOffsets) {
  Handle first = First();
  first.instead = {Str("flat_param._shard_indices"), Ints({0, 0}),
                   Str("flat_param._shard_param_offsets"), Tuple({Ints({0, 3})})};
  Handle second = Second();
  second.instead = {Str("flat_param._shard_indices"), Ints({0, 1}),
                    Str("flat_param._shard_param_offsets"), Tuple({Ints({4, 5}), Ints({0, 0})})};
  const std::vector<std::string> files{ModelFile(first), ModelFile(second, SecondBytes())};
  auto model = MergeModels(files);
  ASSERT_TRUE(IsOk(model));
  EXPECT_EQ(BytesOf(model->Find("m.a")->tensor, files), "xxxxyy");
}

TEST(OlmoLocalModel, OfTorch20MayBeAShardOfPaddingAlone) {
  Handle padding = First();
  padding.padding = 4;
  padding.instead = {Str("flat_param._shard_indices"), Ints({0, 0}),
                     Str("flat_param._shard_param_offsets"), ")"};
  const std::string file = ModelFile(padding, std::string(16, '\0'));
  const auto model = ReadRank(file, file, 0);
  ASSERT_TRUE(IsOk(model));
  EXPECT_TRUE(model->pieces.empty());
}

TEST(OlmoLocalModel, RefusesPaddingThatIsNotZero) {
  const std::string file = ModelFile(Second());
  EXPECT_TRUE(FailsWith(ReadRank(file, file, 0), kDataLoss, {"padding", "\"m.\"", "[3, 4)"}));
}

TEST(OlmoLocalModel, RefusesPiecesOutsideTheParameterOrTheShard) {
  const std::string good = ModelFile(First());
  const std::string beyond = ModelFile({Tuple({Inside(0, 3, 6), kOutside})});
  EXPECT_TRUE(FailsWith(ReadRank(good, beyond, 1), kDataLoss, {"\"m.a\"", "[3, 7)", "6 elements"}));
  const std::string behind = ModelFile({Tuple({Inside(2, 0, 3), kOutside})});
  EXPECT_TRUE(FailsWith(ReadRank(good, behind, 1), kDataLoss, {"\"m.a\"", "the shard's 4"}));
}

TEST(OlmoLocalModel, RefusesInfosThatContradictThemselves) {
  const std::string good = ModelFile(First());
  const std::string counts =
      ModelFile({Tuple({Tuple({kTrue, Int(0), Int(3), Int(0), Int(3)}), kOutside})});
  EXPECT_TRUE(FailsWith(ReadRank(good, counts, 1), kDataLoss, {"contradicts itself"}));
  const std::string few = ModelFile({Tuple({kOutside})});
  EXPECT_TRUE(FailsWith(ReadRank(good, few, 1), kDataLoss, {"2 parameters and 1"}));
}

TEST(OlmoLocalModel, RefusesRanksThatDescribeOtherParameters) {
  Handle other = First();
  other.names = List({Str("a"), Str("c")});
  EXPECT_TRUE(FailsWith(ReadRank(ModelFile(First()), ModelFile(other), 1), kDataLoss,
                        {"\"m.c\"", "\"m.b\""}));
}

TEST(OlmoLocalModel, RefusesANameTwice) {
  Handle twice = First();
  twice.names = List({Str("a"), Str("_fsdp_wrapped_module.a")});
  const std::string file = ModelFile(twice);
  EXPECT_TRUE(FailsWith(ReadLocalLayout(Named(file)), kDataLoss, {"\"m.a\" twice"}));
}

// ---- the optimizer ----

std::string OptimizerFile(const std::string& state, const std::string& learning_rate = Float(0.1)) {
  const std::string group =
      Dict({Str("lr"), learning_rate, Str("params"), List({Int(0), Int(1)}), Str("param_names"),
            List({Str("_fsdp_wrapped_module.m.a"), Str("m._fsdp_wrapped_module.b")})});
  return Archive(Dict({Str("state"), state, Str("param_groups"), List({group})}),
                 {std::string("0123456789abcdef")});
}

std::string StateOf(std::int64_t id, const std::string& moment, std::int64_t step = 3) {
  return Int(id) + Dict({Str("exp_avg"), moment, Str("step"), Int(step)});
}

/// Reads the optimizer files of both ranks and puts them together.
Result<StateNode> MergeOptimizers(const std::string& first, const std::string& second) {
  const std::vector<std::string> models{ModelFile(First()), ModelFile(Second(), SecondBytes())};
  const std::vector<std::string> files{models[0], models[1], first, second};
  VARVE_ASSIGN_OR_RETURN(const LocalLayout layout, ReadLocalLayout(Named(models[0])));
  VARVE_ASSIGN_OR_RETURN(LocalGroups groups, ReadLocalGroups(Named(first)));
  std::vector<LocalOptimizer> optimizers;
  for (std::uint32_t r = 0; r < 2; ++r) {
    VARVE_ASSIGN_OR_RETURN(const LocalModel model, ReadLocalModel(Named(models[r]), r, layout));
    VARVE_ASSIGN_OR_RETURN(LocalOptimizer optimizer,
                           ReadLocalOptimizer(Named(files[2 + r]), 2 + r, layout, groups, model));
    optimizers.push_back(std::move(optimizer));
  }
  return MergeLocalOptimizer(layout, std::move(groups), std::move(optimizers), CheckOf(files));
}

std::string FirstOptimizer() { return OptimizerFile(Dict({StateOf(0, Flat(4))})); }
std::string SecondOptimizer(std::int64_t step = 3) {
  return OptimizerFile(Dict({StateOf(0, Flat(2), step), StateOf(1, Flat(1, 2), step)}));
}

TEST(OlmoLocalOptimizer, HasThePiecesThatTheModelFilesSay) {
  const std::string first = FirstOptimizer();
  const std::string second = SecondOptimizer();
  auto optim = MergeOptimizers(first, second);
  ASSERT_TRUE(IsOk(optim));
  StateNode* const state = optim->Find("state")->Find("m.a");
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(state->stored_key, "0");
  EXPECT_EQ(BytesOf(state->Find("exp_avg")->tensor, {"", "", first, second}), "012301");
  EXPECT_EQ(*DecodeValue(state->Find("step")->value), Value::Int(3));
  EXPECT_NE(optim->Find("state")->Find("m.b"), nullptr);
}

TEST(OlmoLocalOptimizer, RefusesStepsThatDiffer) {
  EXPECT_TRUE(FailsWith(MergeOptimizers(FirstOptimizer(), SecondOptimizer(4)), kDataLoss,
                        {"optim.state.m.a.step", "rank2.pt and rank3.pt"}));
}

TEST(OlmoLocalOptimizer, RefusesOtherGroups) {
  const std::string other = OptimizerFile(Dict({StateOf(0, Flat(2))}), Float(0.2));
  EXPECT_TRUE(FailsWith(MergeOptimizers(FirstOptimizer(), other), kDataLoss, {"param_groups"}));
}

TEST(OlmoLocalOptimizer, RefusesAMomentThatDoesNotFitTheModelsPiece) {
  const std::string other = OptimizerFile(Dict({StateOf(0, Flat(3))}));
  EXPECT_TRUE(FailsWith(MergeOptimizers(FirstOptimizer(), other), kDataLoss,
                        {"m.a.exp_avg", "[3]", "2 elements"}));
}

TEST(OlmoLocalOptimizer, RefusesAnIdThatNoGroupHas) {
  const std::string other = OptimizerFile(Dict({StateOf(9, Flat(2))}));
  EXPECT_TRUE(FailsWith(MergeOptimizers(FirstOptimizer(), other), kDataLoss, {"id 9"}));
}

TEST(OlmoLocalOptimizer, RefusesGroupsWithoutNames) {
  const std::string file = Archive(Dict(
      {Str("state"), "}", Str("param_groups"), List({Dict({Str("params"), List({Int(0)})})})}));
  EXPECT_TRUE(FailsWith(ReadLocalGroups(Named(file)), kDataLoss, {"no param_names"}));
}

}  // namespace
}  // namespace varve::local_test
