#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "interop/pickle/tree.h"
#include "support/pickle_render.h"
#include "support/pickle_samples.h"
#include "support/pickles.h"
#include "support/status_matchers.h"

namespace varve::fold_test {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): pickles hold NULs
namespace p = test::pickled;

using test::FailsWith;
using test::IsOk;
using test::RenderPickle;

/// Folds objects of the class m.F that have state, and results of m.f(...); their order of folding
/// is the value. Records what they were.
class TestFolder : public PickleFolder {
 public:
  bool Fold(const PickleTree& tree, PickleRef object, std::uint32_t* tag,
            std::int64_t* value) override {
    const bool is_call = tree.IsMadeBy(object, "m", "f");
    const bool is_built = tree.IsMadeBy(object, "m", "F") && tree.object(object).state != kNoPickle;
    if (!is_call && !is_built) {
      return false;
    }
    *tag = is_call ? 1 : 2;
    *value = static_cast<std::int64_t>(folded.size());
    folded.push_back(RenderPickle(tree, object, 0));
    return true;
  }

  std::vector<std::string> folded;
};

class PickleFolding : public testing::Test {
 protected:
  std::string Read(const std::string& pickle, const PickleLimits& limits = {}) {
    folder_ = {};
    const auto tree = ReadPickle(pickle, limits, &folder_);
    return tree.ok() ? RenderPickle(*tree) : tree.status().ToString();
  }
  TestFolder folder_;
};

const std::string kCall = p::Global("m", "f");
const std::string kClass = p::Global("m", "F");

TEST_F(PickleFolding, ReplacesObjectsWhenTheyAreComplete) {
  EXPECT_EQ(Read(p::List({p::Call(kCall, {p::Int(7)}), p::Int(8)}) + "."), "[F(1, 0), 8]");
  EXPECT_EQ(folder_.folded, std::vector<std::string>{"R(m:f, (7))"});
  EXPECT_EQ(Read(p::Build(kClass + ")\x81", p::Dict({p::Str("a"), p::Call(kCall, {})})) + "."),
            "F(2, 1)");
  EXPECT_EQ(folder_.folded,
            (std::vector<std::string>{"R(m:f, ())", "N(m:F, (), state={'a': F(1, 0)})"}));
  EXPECT_EQ(Read(kClass + ")\x81."), "N(m:F, ())") << "without state it was left alone";
}

TEST_F(PickleFolding, ReadsOtherPicklesAsWithout) {
  for (const test::PickleSample& sample : test::kPickleSamples) {
    std::string pickle;
    for (std::size_t i = 0; i < sample.hex.size(); i += 2) {
      pickle += static_cast<char>(std::stoi(std::string(sample.hex.substr(i, 2)), nullptr, 16));
    }
    if (sample.name != "self") {
      EXPECT_EQ(Read(pickle), sample.rendered) << sample.name << " " << sample.protocol;
    }
  }
}

const std::string kMemoize = "\x94";

TEST_F(PickleFolding, KeepsWhatTheMemoStillNames) {
  // A str, an int, a global and a folded object inside an object; all used again behind it.
  const std::string inside = "(" + p::Str("key") + kMemoize + p::Str("not again") + p::Int(5) +
                             kMemoize + kCall + kMemoize + p::Call("h\3", {}) + kMemoize + "t";
  const std::string object = p::Build(kClass + ")\x81" + kMemoize, inside);
  EXPECT_EQ(Read("](" + object + "h\4h\3h\2h\1h\0e."s),
            "[F(2, 1), F(1, 0), m:f, 5, 'key', F(2, 1)]");
}

TEST_F(PickleFolding, GivesTheNodesBack) {
  constexpr int kObjects = 20000;
  std::string pickle = "](";
  for (int i = 0; i < kObjects; ++i) {
    pickle += p::Build(kClass + ")\x81", p::Dict({p::Str("a"), p::Ints({1, 2, 3}), p::Str("b"),
                                                  p::List({p::Call(kCall, {p::Int(i)})})}));
  }
  pickle += "e.";
  const PickleLimits limits{.max_nodes = kObjects + 100};
  TestFolder folder;
  const auto tree = ReadPickle(pickle, limits, &folder);
  ASSERT_TRUE(IsOk(tree));
  ASSERT_EQ(tree->items(tree->root()).size(), std::size_t{kObjects});
  for (const PickleRef item : tree->items(tree->root())) {
    ASSERT_EQ(tree->kind(item), PickleKind::kFolded);
  }
  EXPECT_EQ(folder.folded.back(), "N(m:F, (), state={'a': (1, 2, 3), 'b': [F(1, " +
                                      std::to_string(2 * kObjects - 2) + ")]})");
  EXPECT_TRUE(FailsWith(ReadPickle(pickle, limits), StatusCode::kInvalidArgument, {"nodes"}));
}

TEST_F(PickleFolding, WhatIsNotFoldedStaysWhole) {
  // Containers before, around and behind folded objects, filled in several portions.
  const std::string other = p::Call(p::Global("m", "g"), {p::Ints({1, 2}), p::Call(kCall, {})});
  std::string pickle = "}(" + p::Str("before") + p::Ints({1, 2, 3}) + p::Str("list") + "]";
  std::string items;
  for (int i = 0; i < 5; ++i) {
    pickle += "(" + other + p::Call(kCall, {p::Ints({i, i})}) + p::Ints({i}) + "e";
    items += (i == 0 ? "" : ", ") + ("R(m:g, ((1, 2), F(1, " + std::to_string(2 * i) + ")))") +
             ", F(1, " + std::to_string(2 * i + 1) + "), (" + std::to_string(i) + ")";
  }
  pickle += p::Str("behind") + p::Ints({4, 5}) + "u.";
  EXPECT_EQ(Read(pickle), "{'before': (1, 2, 3), 'list': [" + items + "], 'behind': (4, 5)}");
}

TEST_F(PickleFolding, RefusesWhatOnlyAReadWithoutItCanDo) {
  const std::string tuple_in_object =
      p::Build(kClass + ")\x81", "(" + p::Ints({1}) + kMemoize + "t");
  const std::vector<std::pair<std::string, std::string>> cases{
      {"(" + tuple_in_object + "h\0t."s, "refers into a folded object"},
      {p::Call(kCall, {}) + "}b.", "adds to a folded object"},
      {p::Call(kCall, {}) + "Na.", "adds to a folded object"},
      {"]" + kMemoize + "h\0Na."s, "a container of the memo"},
      {kClass + ")\x81" + kMemoize + "h\0}b."s, "a container of the memo"},
      {"]2Na.", "a container of the memo"},
      {"Nq\5Nq\3."s, "not in order"},
      {"Nr\xFF\xFF\xFF\xFF.", "not in order"},
      {"Nq\0q\0."s, "not in order"},
  };
  for (const auto& [pickle, phrase] : cases) {
    TestFolder folder;
    EXPECT_TRUE(
        FailsWith(ReadPickle(pickle, {}, &folder), StatusCode::kFailedPrecondition, {phrase}))
        << pickle;
  }
  EXPECT_TRUE(IsOk(ReadPickle("(" + tuple_in_object + "h\0t."s)));
  EXPECT_TRUE(IsOk(ReadPickle("]" + kMemoize + "h\0Na."s)));
}

TEST_F(PickleFolding, TowersOfObjectsDoNotTakeQuadraticTime) {
  // Each object holds the one before it, and all are in the memo.
  std::string pickle;
  constexpr int kHeight = 20000;
  for (int i = 0; i < kHeight; ++i) {
    pickle += kClass + ")\x81" + kMemoize;
  }
  pickle += "N";
  for (int i = 0; i < kHeight; ++i) {
    pickle +=
        "\x85"
        "b";
  }
  pickle += ".";
  TestFolder folder;
  EXPECT_TRUE(
      FailsWith(ReadPickle(pickle, {}, &folder), StatusCode::kFailedPrecondition, {"folds"}));
  EXPECT_TRUE(IsOk(ReadPickle(pickle)));
}

TEST_F(PickleFolding, SharedTextFromOldProtocolsStays) {
  // Text that the input does not hold as such lives as long as the tree.
  const std::string object = p::Build(kClass + ")\x81", "(Va\\u00e9\n" + kMemoize + "t");
  EXPECT_EQ(Read("](" + object + "h\0e."s), "[F(2, 0), 'a\\xc3\\xa9']");
}

}  // namespace
}  // namespace varve::fold_test
