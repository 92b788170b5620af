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

}  // namespace
}  // namespace varve::structure_test
