// The entries that a conversion takes, their names and types, and the structure around them.

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "convert/writers.h"
#include "storages/memory.h"
#include "support/small_state.h"
#include "support/status_matchers.h"
#include "support/values.h"

namespace varve::test::select_test {
namespace {

using Names = std::vector<std::string>;

Value TensorLeaf() { return Make(ValueKind::kTensorLeaf, "torch"); }
Value ObjectLeaf() { return Make(ValueKind::kObjectLeaf); }

/// Selects from a saved state. The tensors of the result refer to a reader that is closed.
Result<Selection> SelectFrom(const SmallState& state, const ConvertOptions& options) {
  MemoryStorage storage;
  EXPECT_TRUE(IsOk(state.Save(storage, "/ck")));
  const auto reader = CheckpointReader::Open("/ck", storage);
  EXPECT_TRUE(IsOk(reader));
  return Select(**reader, options);
}

/// Returns {"model": {"w", "layers": [0, 1]}, "optim": {"m"}, "step", "empty": {}}.
SmallState Training() {
  return std::move(
      SmallState()
          .Floats("model.w", {1})
          .Floats("model.layers.0", {2})
          .Floats("model.layers.1", {3})
          .Floats("optim.m", {4})
          .Object("step", Value::Int(7))
          .Structure(Dict({Value::Str("model"),
                           Dict({Value::Str("w"), TensorLeaf(), Value::Str("layers"),
                                 List({TensorLeaf(), TensorLeaf()})}),
                           Value::Str("optim"), Dict({Value::Str("m"), TensorLeaf()}),
                           Value::Str("step"), ObjectLeaf(), Value::Str("empty"), Dict({})})));
}

Names NamesOf(const Selection& selection) {
  Names names;
  for (const SelectedTensor& tensor : selection.tensors) {
    names.push_back(tensor.fqn);
  }
  for (const SelectedObject& object : selection.objects) {
    names.push_back(object.fqn);
  }
  return names;
}

/// Returns {"w": a wrapped tensor of "i", "box": a dict of a class, with an enum's member}.
SmallState WithClasses() {
  const Value member = Make(ValueKind::kNamed, "my:Colour", {Value::Str("enum"), Value::Int(1)});
  return std::move(
      SmallState()
          .Floats("w.i", {1})
          .Object("box.of", List({member, member}))
          .Structure(
              Dict({Value::Str("w"),
                    Make(ValueKind::kWrapped, "ao:Int8", {Value::Str("i"), TensorLeaf()}),
                    Value::Str("box"),
                    Make(ValueKind::kNamedDict, "my:Box", {Value::Str("of"), ObjectLeaf()})})));
}

Names SelectedNames(const ConvertOptions& options) {
  const auto selection = SelectFrom(Training(), options);
  EXPECT_TRUE(IsOk(selection));
  return selection.ok() ? NamesOf(*selection) : Names{};
}

Value StructureOf(const ConvertOptions& options) {
  const auto selection = SelectFrom(Training(), options);
  EXPECT_TRUE(IsOk(selection));
  const auto structure = DecodeValue(selection->structure);
  EXPECT_TRUE(IsOk(structure));
  return structure.ok() ? *structure : Value{};
}

// ---- names ----

TEST(Select, TakesEverythingByDefault) {
  EXPECT_EQ(SelectedNames({}),
            (Names{"model.layers.0", "model.layers.1", "model.w", "optim.m", "step"}));
}

TEST(Select, ExcludeTakesFromWhatIncludeHasChosen) {
  EXPECT_EQ(SelectedNames({.include = {"model.*", "step"}, .exclude = {"*.layers.*"}}),
            (Names{"model.w", "step"}));
}

TEST(Select, GlobsAreCaseSensitiveAndCrossDots) {
  EXPECT_EQ(SelectedNames({.include = {"m*[0-9]"}}), (Names{"model.layers.0", "model.layers.1"}));
  EXPECT_TRUE(FailsWith(SelectFrom(Training(), {.include = {"MODEL.*"}}), StatusCode::kNotFound,
                        {"no name in the checkpoint matches \"MODEL.*\""}));
}

TEST(Select, RefusesAGlobThatMatchesNothingBesideOneThatDoes) {
  EXPECT_TRUE(FailsWith(SelectFrom(Training(), {.include = {"model.*", "optimizer.*"}}),
                        StatusCode::kNotFound, {"\"optimizer.*\""}));
  EXPECT_TRUE(FailsWith(SelectFrom(Training(), {.include = {"model.*"}, .exclude = {"model.*"}}),
                        StatusCode::kNotFound, {"nothing in the checkpoint is selected"}));
}

TEST(Select, AppliesTheFirstRenameThatFitsAfterTheGlobs) {
  EXPECT_EQ(
      SelectedNames({.include = {"model.*"},
                     .rename = {{"model.layers.", "blocks."}, {"model.", ""}, {"model.w", "x"}}}),
      (Names{"blocks.0", "blocks.1", "w"}));
}

TEST(Select, RefusesARenameThatFitsNoName) {
  EXPECT_TRUE(FailsWith(SelectFrom(Training(), {.rename = {{"model.", ""}, {"modle.", "x"}}}),
                        StatusCode::kNotFound, {"begins with \"modle.\"", "model.layers.0"}));
}

TEST(Select, RefusesRenamesThatMakeTwoNamesOne) {
  EXPECT_TRUE(FailsWith(SelectFrom(Training(), {.rename = {{"model.w", "x"}, {"optim.m", "x"}}}),
                        StatusCode::kInvalidArgument, {"two entries would be named \"x\""}));
  EXPECT_TRUE(FailsWith(SelectFrom(Training(), {.rename = {{"model.w", "step"}}}),
                        StatusCode::kInvalidArgument, {"two entries would be named \"step\""}))
      << "a tensor and a value";
}

// ---- types ----

TEST(Select, CastsFloatingPointTensorsOnly) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState()
                       .Floats("w", {1, 2})
                       .Tensor("ids", DType::kInt32, {3}, std::vector<std::int32_t>{1, 2, 3})
                       .Save(storage, "/ck")));
  const auto reader = CheckpointReader::Open("/ck", storage);  // Owns what the selection refers to.
  ASSERT_TRUE(IsOk(reader));
  const auto selection = Select(**reader, {.dtype = DType::kBFloat16});
  ASSERT_TRUE(IsOk(selection));
  ASSERT_EQ(NamesOf(*selection), (Names{"ids", "w"}));
  EXPECT_EQ(selection->tensors[0].item.dtype, DType::kInt32);
  EXPECT_EQ(selection->tensors[1].item.dtype, DType::kBFloat16);
  EXPECT_EQ(selection->tensor_bytes(), 3 * 4 + 2 * 2U) << "as they will be written";
}

TEST(Select, RefusesToCastToATypeThatIsNoFloat) {
  EXPECT_TRUE(FailsWith(SelectFrom(Training(), {.dtype = DType::kInt8}),
                        StatusCode::kInvalidArgument, {"not to int8"}));
}

// ---- the model ----

/// Returns {"models": [the model, ...], "optimizers": [one]}.
SmallState OfAccelerator(std::size_t models) {
  SmallState state;
  std::vector<Value> each;
  for (std::size_t i = 0; i < models; ++i) {
    state.Floats("models." + std::to_string(i) + ".w", {1});
    each.push_back(Dict({Value::Str("w"), TensorLeaf()}));
  }
  return std::move(
      state.Floats("optimizers.0.m", {2})
          .Structure(Dict({Value::Str("models"), List(std::move(each)), Value::Str("optimizers"),
                           List({Dict({Value::Str("m"), TensorLeaf()})})})));
}

TEST(Select, TheOnlyModelOfAnAcceleratorHasItsOwnNamesInAHuggingFaceFolder) {
  const auto one = SelectFrom(OfAccelerator(1), {.to = ConvertTarget::kHf});
  ASSERT_TRUE(IsOk(one));
  EXPECT_EQ(NamesOf(*one), (Names{"w"}));
  const auto two = SelectFrom(OfAccelerator(2), {.to = ConvertTarget::kHf});
  ASSERT_TRUE(IsOk(two));
  EXPECT_EQ(NamesOf(*two), (Names{"models.0.w", "models.1.w"}));
}

TEST(Select, SaysWhyNothingOfAnOptimizerGoesIntoAHuggingFaceFolder) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState().Floats("optim.m", {1}).Save(storage, "/alone")));
  ASSERT_TRUE(IsOk(SmallState()
                       .Floats("optim.m", {1})
                       .Object("trainer.step", Value::Int(7))
                       .Save(storage, "/with-values")));
  for (const std::string path : {"/alone", "/with-values"}) {
    EXPECT_TRUE(FailsWith(Convert(path, "/hf", {.to = ConvertTarget::kHf}, storage),
                          StatusCode::kNotFound, {"the model alone", "begins with \"optim\""}));
  }
}

// ---- structure ----

TEST(Select, KeepsTheStructureWhereAllOfItIsSelected) {
  const Value structure = StructureOf({});
  ASSERT_EQ(structure.items.size(), 8U);
  EXPECT_EQ(structure.items[6], Value::Str("empty"));
  EXPECT_EQ(structure.items[7], Dict({})) << "an empty container was saved as one";
}

TEST(Select, PrunesLeavesAndTheContainersThatThisEmpties) {
  EXPECT_EQ(StructureOf({.include = {"model.w", "step"}}),
            Dict({Value::Str("model"), Dict({Value::Str("w"), TensorLeaf()}), Value::Str("step"),
                  ObjectLeaf(), Value::Str("empty"), Dict({})}));
}

TEST(Select, ListThatLosesAnItemBecomesADictOfThePositionsLeft) {
  EXPECT_EQ(StructureOf({.include = {"model.layers.1"}}),
            Dict({Value::Str("model"),
                  Dict({Value::Str("layers"), Dict({Value::Str("1"), TensorLeaf()})}),
                  Value::Str("empty"), Dict({})}));
}

TEST(Select, NamesAreFlatOnceAnEntryIsRenamed) {
  const auto selection = SelectFrom(Training(), {.rename = {{"model.", ""}}});
  ASSERT_TRUE(IsOk(selection));
  EXPECT_TRUE(selection->structure.empty());
}

// ---- the model of a training state ----

TEST(Select, TakesTheModelUnderItsOwnNamesForHuggingFace) {
  EXPECT_EQ(SelectedNames({.to = ConvertTarget::kHf}), (Names{"layers.0", "layers.1", "w"}));
}

TEST(Select, TakesMoreThanTheModelForHuggingFaceWhereAsked) {
  EXPECT_EQ(SelectedNames({.to = ConvertTarget::kHf, .everything = true}).size(), 5U);
  EXPECT_EQ(SelectedNames({.to = ConvertTarget::kHf, .include = {"optim.*"}}), Names{"optim.m"});
  EXPECT_EQ(SelectedNames({.to = ConvertTarget::kHf, .rename = {{"model.", "m."}}}),
            (Names{"m.layers.0", "m.layers.1", "m.w"}));
}

TEST(Select, LeavesOutTheOptimizerWhereNoEntryIsCalledAModel) {
  const auto selection =
      SelectFrom(std::move(SmallState().Floats("net.w", {1}).Floats("optimizer.m", {2})),
                 {.to = ConvertTarget::kHf});
  ASSERT_TRUE(IsOk(selection));
  EXPECT_EQ(NamesOf(*selection), Names{"net.w"});
}

TEST(Select, NamesTheClassesThatATargetDoesNotKeep) {
  const auto classes = [](const ConvertOptions& options) {
    const auto selection = SelectFrom(WithClasses(), options);
    EXPECT_TRUE(IsOk(selection));
    return selection.ok() ? selection->classes_left_out : Names();
  };
  const Names wrapped{R"(ao.Int8 of 1 entry, "w")"};
  EXPECT_EQ(classes({.to = ConvertTarget::kTorch}),
            (Names{wrapped[0], R"(my.Box of 1 entry, "box")",
                   R"(my.Colour of 2 entries, the first is "box.of")"}));
  EXPECT_EQ(classes({.to = ConvertTarget::kSafetensors}), wrapped);
  EXPECT_EQ(classes({.to = ConvertTarget::kHf}), wrapped);
  for (const ConvertTarget to : {ConvertTarget::kVarve, ConvertTarget::kDcp}) {
    EXPECT_EQ(classes({.to = to}), Names());
    EXPECT_EQ(classes({.to = to, .rename = {{"w.", "v."}}}), wrapped)
        << "renamed entries have no containers";
  }
}

TEST(Select, AGlobThatIsANameWithBracketsIsShownAsTheGlobOfThatName) {
  const auto selection = SelectFrom(SmallState().Floats("a[0]", {1}), {.include = {"a[0]"}});
  EXPECT_TRUE(FailsWith(selection, StatusCode::kNotFound,
                        {R"(matches "a[0]", a glob; the one of that name is "a[[]0]")"}));
}

}  // namespace
}  // namespace varve::test::select_test
