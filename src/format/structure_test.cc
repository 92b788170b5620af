#include "format/structure.h"

#include <gtest/gtest.h>

#include "support/status_matchers.h"
#include "support/values.h"

namespace varve::structure_test {
namespace {

using test::Dict;
using test::FailsWith;
using test::IsOk;
using test::List;
using test::Make;

Value Key(const char* name) { return Value::Str(name); }
Value Tensor() { return Make(ValueKind::kTensorLeaf, std::string("torch")); }
Value Object() { return Make(ValueKind::kObjectLeaf); }

TEST(MergeStructures, OfOneRankIsItself) {
  const Value value = Dict({Key("w"), Tensor()});
  const auto merged = MergeStructures({value, value, value});
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(*merged, value);
}

TEST(MergeStructures, OfNoRankIsAnEmptyDict) { EXPECT_EQ(*MergeStructures({}), Dict({})); }

TEST(MergeStructures, TakesEveryKeyInTheOrderFirstSeen) {
  const auto merged = MergeStructures(
      {Dict({Key("b"), Tensor(), Key("m"), Dict({Key("x"), Tensor()})}),
       Dict({Key("a"), Object(), Key("m"), Dict({Key("y"), Object()}), Key("b"), Tensor()})});
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(*merged, Dict({Key("b"), Tensor(), Key("m"),
                           Dict({Key("x"), Tensor(), Key("y"), Object()}), Key("a"), Object()}));
}

TEST(MergeStructures, JoinsListsByPosition) {
  const auto merged = MergeStructures(
      {List({Dict({Key("a"), Object()})}), List({Dict({Key("b"), Object()}), Tensor()})});
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(*merged, List({Dict({Key("a"), Object(), Key("b"), Object()}), Tensor()}));
}

TEST(MergeStructures, KeepsKeysOfDifferentTypesApart) {
  const auto merged =
      MergeStructures({Dict({Value::Int(1), Object()}), Dict({Value::Str("1"), Object()})});
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(merged->items.size(), 4U);
}

TEST(MergeStructures, NamesThePathOfAConflict) {
  EXPECT_TRUE(FailsWith(
      MergeStructures({Dict({Key("optim"), List({Tensor(), Dict({Key("lr"), Object()})})}),
                       Dict({Key("optim"), List({Tensor(), Dict({Key("lr"), List({})})})})}),
      StatusCode::kInvalidArgument, {"optim", "1", "lr", "disagree"}));
  EXPECT_TRUE(FailsWith(
      MergeStructures({Dict({Key("a"), Dict({})}),
                       Dict({Key("a"), Make(ValueKind::kOrderedDict, std::vector<Value>{})})}),
      StatusCode::kInvalidArgument, {"a"}));
}

TEST(MergeStructures, RefusesAWrappedTensorOfAnotherClassOrWithOtherAttributes) {
  const auto wrapped = [](const std::string& text) {
    return Dict({Key("w"), Make(ValueKind::kWrapped, text, {Key("codes"), Tensor()})});
  };
  EXPECT_TRUE(IsOk(MergeStructures({wrapped("m:A"), wrapped("m:A")})));
  EXPECT_TRUE(FailsWith(MergeStructures({wrapped("m:A"), wrapped("m:B")}),
                        StatusCode::kInvalidArgument, {"w", "m:A", "m:B"}));
}

}  // namespace
}  // namespace varve::structure_test
