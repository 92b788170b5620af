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

TEST(MergeStructures, NamesThePathAndTheRanksOfAConflict) {
  EXPECT_TRUE(FailsWith(
      MergeStructures({Dict({Key("optim"), List({Tensor(), Dict({Key("lr"), Object()})})}),
                       Dict({Key("optim"), List({Tensor(), Dict({Key("lr"), List({})})})})}),
      StatusCode::kInvalidArgument,
      {"\"optim.1.lr\"", "a list on rank 1", "a plain value on rank 0"}));
  // The rank that has it is named, not the first one.
  EXPECT_TRUE(FailsWith(
      MergeStructures({Dict({}), Dict({Key("a"), Dict({})}), Dict({}),
                       Dict({Key("a"), Make(ValueKind::kOrderedDict, std::vector<Value>{})})}),
      StatusCode::kInvalidArgument, {"\"a\"", "an OrderedDict on rank 3", "a dict on rank 1"}));
}

TEST(MergeEncodedStructures, NamesTheRanksOfAConflictAmongEqualStructures) {
  const Bytes same = EncodeValue(Dict({Key("a"), Dict({})}));
  const Bytes other = EncodeValue(Dict({Key("a"), List({})}));
  EXPECT_TRUE(FailsWith(MergeEncodedStructures({"", same, same, same, other}),
                        StatusCode::kInvalidArgument, {"a list on rank 4", "a dict on rank 1"}));
}

TEST(MergeStructures, RefusesAWrappedTensorOfAnotherClassOrWithOtherAttributes) {
  const auto wrapped = [](const std::string& text) {
    return Dict({Key("w"), Make(ValueKind::kWrapped, text, {Key("codes"), Tensor()})});
  };
  EXPECT_TRUE(IsOk(MergeStructures({wrapped("m:A"), wrapped("m:A")})));
  EXPECT_TRUE(FailsWith(MergeStructures({wrapped("m:A"), wrapped("m:B")}),
                        StatusCode::kInvalidArgument, {"w", "m:A", "m:B"}));
  EXPECT_TRUE(FailsWith(MergeStructures({wrapped("m:A"), wrapped(std::string("m:A\0x", 5))}),
                        StatusCode::kInvalidArgument,
                        {"of the class m:A on rank 1, one with other attributes"}));
}

}  // namespace
}  // namespace varve::structure_test
