#include "interop/dcp/structure.h"

#include <gtest/gtest.h>

#include "interop/dcp/metadata.h"
#include "support/dcp_pickles.h"
#include "support/status_matchers.h"

namespace varve::structure_test {
namespace {

namespace p = test::pickled;
namespace dcp = test::dcp;

using test::FailsWith;
using test::IsOk;

/// Returns the structure of these values with this planner_data, as text; "none" where there is
/// none.
std::string Structure(const std::vector<std::string>& names, const std::string& planner_data) {
  dcp::Index index;
  for (const std::string& name : names) {
    index.AddValue(name);
  }
  index.planner_data = planner_data;
  const auto decoded = DecodeDcpMetadata(index.Pickle());
  if (!decoded.ok()) {
    return decoded.status().ToString();
  }
  return decoded->structure ? ToString(*decoded->structure, 10000) : "none";
}

TEST(DcpStructure, FollowsThePaths) {
  EXPECT_EQ(Structure({"a.b", "a.c.1", "a.c.0", "d.0"},
                      dcp::Paths({{"a.b", {p::Str("a"), p::Str("b")}},
                                  {"a.c.1", {p::Str("a"), p::Str("c"), p::Int(1)}},
                                  {"d.0", {p::Str("d"), p::Str("0")}},
                                  {"a.c.0", {p::Str("a"), p::Str("c"), p::Int(0)}}})),
            "{'a': {'b': <object>, 'c': [<object>, <object>]}, 'd': {'0': <object>}}");
  EXPECT_EQ(Structure({"a.b.c", "."}, dcp::Paths({{"a.b.c", {p::Str("a.b"), p::Str("c")}},
                                                  {".", {p::Str(""), p::Str("")}}})),
            "{'a.b': {'c': <object>}, '': {'': <object>}}");
}

TEST(DcpStructure, WithoutPathsNamesStandSideBySide) {
  EXPECT_EQ(Structure({"b.x", "a"}, p::kNone), "{'b.x': <object>, 'a': <object>}");
  EXPECT_EQ(Structure({"b.x", "a"}, dcp::Paths({{"a", {p::Str("a")}}})),
            "{'a': <object>, 'b.x': <object>}");
}

TEST(DcpStructure, PathsWithoutAnEntrySayNothing) {
  EXPECT_EQ(Structure({"a"}, dcp::Paths({{"a", {p::Str("a")}}, {"b", {p::Str("b")}}})),
            "{'a': <object>}");
}

TEST(DcpStructure, WhatAnotherPlannerKeepsIsNoStructure) {
  for (const std::string& planner_data :
       {p::List({}), p::Dict({p::Int(1), p::Int(2)}), p::Dict({p::Str("a"), p::Str("a")}),
        dcp::Paths({{"a", {}}}), dcp::Paths({{"a", {p::Str("b")}}}),
        dcp::Paths({{"a", {p::Str("a"), p::kNone}}}), dcp::Paths({{"0", {p::Int(0)}}}),
        dcp::Paths({{"a.-1", {p::Str("a"), p::Int(-1)}}}),
        dcp::Paths({{"a.b", {p::Str("a"), p::Str("b"), p::Str("")}}}),
        dcp::Paths({{"a.b", {p::Str("a")}}}), p::Global("m", "x"),
        p::Dict({p::Bytes("a"), p::Tuple({p::Str("a")})})}) {
    EXPECT_EQ(Structure({"a"}, planner_data), "none");
  }
  EXPECT_EQ(Structure({"a", "a.b"}, dcp::Paths({{"a.b", {p::Str("a"), p::Str("b")}}})), "none")
      << "two things of one name";
}

TEST(DcpStructure, PathsThatContradictAreRefused) {
  const std::string error = "DataLoss: planner_data: the path of \"a.0\" contradicts another";
  EXPECT_EQ(Structure({"a.b", "a.0"}, dcp::Paths({{"a.b", {p::Str("a"), p::Str("b")}},
                                                  {"a.0", {p::Str("a"), p::Int(0)}}})),
            error);
  EXPECT_EQ(Structure({"a", "a.0"},
                      dcp::Paths({{"a", {p::Str("a")}}, {"a.0", {p::Str("a"), p::Int(0)}}})),
            error);
  EXPECT_EQ(Structure({"a", "a.0"},
                      dcp::Paths({{"a.0", {p::Str("a"), p::Int(0)}}, {"a", {p::Str("a")}}})),
            "DataLoss: planner_data: the path of \"a\" contradicts another");
}

TEST(DcpStructure, MissingPositionsAreEmptyDictsWithinReason) {
  EXPECT_EQ(Structure({"a.2"}, dcp::Paths({{"a.2", {p::Str("a"), p::Int(2)}}})),
            "{'a': [{}, {}, <object>]}");
  const auto at = [](std::int64_t position) {
    const std::string name = "a." + std::to_string(position);
    return Structure({name}, dcp::Paths({{name, {p::Str("a"), p::Int(position)}}}));
  };
  EXPECT_TRUE(at(60000).starts_with("{'a': [{}, {}, "));
  EXPECT_TRUE(at(std::int64_t{1} << 31)
                  .starts_with(
                      "InvalidArgument: planner_data: a list has an entry at position 2147483648"));
  EXPECT_TRUE(at(0x7FFFFFFFFFFFFFFF).starts_with("InvalidArgument"));
  // The sum counts, not each list.
  EXPECT_TRUE(
      Structure({"a.60000", "b.60000"}, dcp::Paths({{"a.60000", {p::Str("a"), p::Int(60000)}},
                                                    {"b.60000", {p::Str("b"), p::Int(60000)}}}))
          .starts_with("InvalidArgument"));
}

// ---- the types of keys ----

Value Dict(std::vector<Value> items) {
  return Value{.kind = ValueKind::kDict, .items = std::move(items)};
}
Value Leaf() { return Value{.kind = ValueKind::kObjectLeaf}; }

TEST(VarveStructure, CountsWhereItsLeavesAreTheEntries) {
  dcp::Index index;
  index.AddValue("s.0.a").AddValue("s.True");
  index.planner_data = dcp::Paths({{"s.0.a", {p::Str("s"), p::Str("0"), p::Str("a")}},
                                   {"s.True", {p::Str("s"), p::Str("True")}}});
  const auto shown = [&](const Value& structure) {
    index.more = {p::Str(kDcpStructure), p::Bytes(EncodeValue(structure))};
    DcpAttributeList attributes;
    const auto decoded = DecodeDcpMetadata(index.Pickle(), &attributes);
    EXPECT_TRUE(IsOk(decoded));
    EXPECT_TRUE(attributes.empty());
    EXPECT_EQ(decoded->keys_are_text,
              ToString(*decoded->structure).find("'0'") != std::string::npos);
    return ToString(*decoded->structure);
  };
  const Value typed = Dict({Value::Str("s"), Dict({Value::Int(0), Dict({Value::Str("a"), Leaf()}),
                                                   Value{.kind = ValueKind::kTrue}, Leaf(),
                                                   Value::Str("none"), Dict({})})});
  EXPECT_EQ(shown(typed), "{'s': {0: {'a': <object>}, True: <object>, 'none': {}}}");
  const std::string by_paths = "{'s': {'0': {'a': <object>}, 'True': <object>}}";
  Value more = typed;
  more.items.push_back(Value::Str("b"));
  more.items.push_back(Leaf());
  Value fewer = typed;
  fewer.items[1].items.resize(2);
  Value other = typed;
  other.items[1].items[3] = Value{.kind = ValueKind::kTensorLeaf, .text = "torch"};
  Value twice = typed;
  twice.items[1].items[4] = Value::Str("True");
  twice.items[1].items[5] = Leaf();
  for (const Value& wrong : {more, fewer, other, twice, Leaf(), Value::Int(3)}) {
    EXPECT_EQ(shown(wrong), by_paths);
  }
  Value deep = Dict({});
  for (int i = 0; i < 220; ++i) {
    deep = Dict({Value::Str("d"), std::move(deep)});
  }
  Value with_deep = typed;
  with_deep.items.push_back(Value::Str("deep"));
  with_deep.items.push_back(std::move(deep));
  EXPECT_EQ(shown(with_deep), by_paths);
}

TEST(DcpOptimizers, AreStatesByNumberBesideGroups) {
  const Value groups{.kind = ValueKind::kList,
                     .items = {Dict({}), Dict({Value::Str("params"), Leaf()})}};
  const auto optimizer = [&](std::vector<std::string> keys) {
    Value state = Dict({});
    for (std::string& key : keys) {
      state.items.push_back(Value::Str(std::move(key)));
      state.items.push_back(Leaf());
    }
    return Dict({Value::Str("state"), std::move(state), Value::Str("param_groups"), groups});
  };
  Value structure = Dict({Value::Str("a"), optimizer({"0", "12"}), Value::Str("b"),
                          Value{.kind = ValueKind::kList, .items = {optimizer({"3"})}},
                          Value::Str("c"), optimizer({"0", "w"}), Value::Str("d"),
                          optimizer({"00"}), Value::Str("e"), optimizer({"-1"})});
  const std::vector<DcpOptimizer> found = FindDcpOptimizers(&structure);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].params, std::vector<std::string>{"a.param_groups.1.params"});
  EXPECT_EQ(found[1].params, std::vector<std::string>{"b.0.param_groups.1.params"});
  NumberKeys(found[0].state);
  EXPECT_EQ(ToString(structure.items[1].items[1]), "{0: <object>, 12: <object>}");
  EXPECT_EQ(FindDcpOptimizers(&structure).size(), 1U) << "ints are done";
}

}  // namespace
}  // namespace varve::structure_test
