#include "interop/olmo/names.h"

#include <gtest/gtest.h>

#include "support/status_matchers.h"

namespace varve::names_test {
namespace {

using test::FailsWith;
using test::IsOk;

Value Ids(std::initializer_list<std::int64_t> ids) {
  Value list{.kind = ValueKind::kList};
  for (const std::int64_t id : ids) {
    list.items.push_back(Value::Int(id));
  }
  return list;
}

Value Names(std::initializer_list<const char*> names) {
  Value list{.kind = ValueKind::kList};
  for (const char* const name : names) {
    list.items.push_back(Value::Str(name));
  }
  return list;
}

/// An optimizer whose state has `keys` and which has one group.
StateNode Optimizer(const Value& keys, const Value& params, const Value* names) {
  StateNode state;
  for (const Value& key : keys.items) {
    state.keys.push_back(key);
    state.items.push_back(StateNode::OfValue(Value::Int(7)));
  }
  StateNode group;
  group.Add("params", StateNode::OfValue(params));
  if (names != nullptr) {
    group.Add("param_names", StateNode::OfValue(*names));
  }
  StateNode groups;
  groups.kind = ValueKind::kList;
  groups.items.push_back(std::move(group));
  StateNode optim;
  optim.Add("state", std::move(state));
  optim.Add("param_groups", std::move(groups));
  return optim;
}

StateNode& StateOf(StateNode& optim) { return *optim.Find("state"); }

Value ListOf(StateNode& optim, const char* name) {
  return *DecodeValue(optim.Find("param_groups")->items[0].Find(name)->value);
}

TEST(OlmoNames, LoseTheWrapperWhereverItStands) {
  EXPECT_EQ(CleanName("_fsdp_wrapped_module.a._fsdp_wrapped_module.b.w"), "a.b.w");
  EXPECT_EQ(CleanName("_fsdp_wrapped_module._fsdp_wrapped_module.w"), "w");
  EXPECT_EQ(CleanName("a._fsdp_wrapped_module."), "a.");
  EXPECT_EQ(CleanName(""), "");
}

TEST(OlmoNames, KeepWhatOnlyResemblesTheWrapper) {
  EXPECT_EQ(CleanName("my_fsdp_wrapped_module"), "my_fsdp_wrapped_module");
  EXPECT_EQ(CleanName("_fsdp_wrapped_modules.w"), "_fsdp_wrapped_modules.w");
}

TEST(OlmoOptimizer, StateByIdGetsTheNamesOfTheGroups) {
  const Value names = Names({"_fsdp_wrapped_module.a", "b"});
  StateNode optim = Optimizer(Ids({1, 0}), Ids({0, 1}), &names);
  ASSERT_TRUE(IsOk(NameOptimizerState(GroupParams::kNames, &optim)));
  EXPECT_EQ(KeyText(StateOf(optim).keys[0]), "b");
  EXPECT_EQ(KeyText(StateOf(optim).keys[1]), "a");
  EXPECT_EQ(StateOf(optim).items[0].stored_key, "1") << "inspect shows what is stored";
  EXPECT_EQ(ListOf(optim, "params"), Names({"a", "b"}));
  EXPECT_EQ(ListOf(optim, "param_names"), Names({"a", "b"}));
}

TEST(OlmoOptimizer, KeepsStoredIdsWhereTheLayoutDoes) {
  const Value names = Names({"_fsdp_wrapped_module.a"});
  StateNode optim = Optimizer(Ids({0}), Ids({0}), &names);
  ASSERT_TRUE(IsOk(NameOptimizerState(GroupParams::kStored, &optim)));
  EXPECT_EQ(ListOf(optim, "params"), Ids({0}));
  EXPECT_EQ(ListOf(optim, "param_names"), Names({"a"}));
}

TEST(OlmoOptimizer, WithoutNamesKeepsItsIds) {
  StateNode optim = Optimizer(Ids({0, 5}), Ids({0, 5}), nullptr);
  ASSERT_TRUE(IsOk(NameOptimizerState(GroupParams::kNames, &optim)));
  EXPECT_EQ(KeyText(StateOf(optim).keys[1]), "5");
}

TEST(OlmoOptimizer, StateByNameIsCleaned) {
  const Value prefixed = Names({"a._fsdp_wrapped_module.w"});
  StateNode optim = Optimizer(prefixed, prefixed, &prefixed);
  ASSERT_TRUE(IsOk(NameOptimizerState(GroupParams::kNames, &optim)));
  EXPECT_EQ(KeyText(StateOf(optim).keys[0]), "a.w");
  EXPECT_EQ(ListOf(optim, "params"), Names({"a.w"}));
}

TEST(OlmoOptimizer, RefusesAnIdThatNoGroupHas) {
  const Value names = Names({"a"});
  StateNode optim = Optimizer(Ids({3}), Ids({0}), &names);
  EXPECT_TRUE(FailsWith(NameOptimizerState(GroupParams::kNames, &optim), StatusCode::kDataLoss,
                        {"parameter id 3", "no group has"}));
}

TEST(OlmoOptimizer, RefusesListsOfDifferentLengths) {
  const Value names = Names({"a", "b"});
  StateNode optim = Optimizer(Ids({0}), Ids({0}), &names);
  EXPECT_TRUE(FailsWith(NameOptimizerState(GroupParams::kNames, &optim), StatusCode::kDataLoss,
                        {"group 0", "1 params", "2 param_names"}));
}

TEST(OlmoOptimizer, ThatIsNoMappingIsLeftAlone) {
  StateNode leaf = StateNode::OfValue(Value::Int(1));
  EXPECT_TRUE(IsOk(NameOptimizerState(GroupParams::kNames, &leaf)));
}

}  // namespace
}  // namespace varve::names_test
