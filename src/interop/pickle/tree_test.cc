#include "interop/pickle/tree.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "support/pickle_render.h"
#include "support/pickle_samples.h"
#include "support/status_matchers.h"

namespace varve::tree_test {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): pickles hold NULs

using test::FailsWith;
using test::IsOk;
using test::RenderPickle;

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

/// Returns a pickle's tree as text, or its error.
std::string Read(const std::string& pickle) {
  const auto tree = ReadPickle(pickle);
  return tree.ok() ? RenderPickle(*tree) : tree.status().ToString();
}

TEST(Pickle, ReadsWhatPythonWritesInEveryProtocol) {
  for (const test::PickleSample& sample : test::kPickleSamples) {
    EXPECT_EQ(Read(FromHex(sample.hex)), sample.rendered)
        << sample.name << ", protocol " << sample.protocol;
  }
}

TEST(Pickle, EveryTruncationIsRefused) {
  for (const test::PickleSample& sample : test::kPickleSamples) {
    const std::string pickle = FromHex(sample.hex);
    for (std::size_t size = 0; size < pickle.size(); ++size) {
      // A copy of its own, so that a sanitizer sees a read behind its end.
      const std::string cut(pickle.data(), size);
      EXPECT_TRUE(FailsWith(ReadPickle(cut), StatusCode::kDataLoss)) << sample.name << " " << size;
    }
  }
}

TEST(Pickle, EveryChangedByteGivesATreeOrAnError) {
  for (const test::PickleSample& sample : test::kPickleSamples) {
    const std::string pickle = FromHex(sample.hex);
    for (std::size_t i = 0; i < pickle.size(); ++i) {
      for (const int flip : {0x01, 0x10, 0x80, 0xFF}) {
        std::string changed = pickle;
        changed[i] = static_cast<char>(changed[i] ^ flip);
        const auto tree = ReadPickle(changed);
        if (tree.ok()) {
          RenderPickle(*tree);
        }
      }
    }
  }
}

TEST(Pickle, SaysHowMuchOfTheInputItIs) {
  std::uint64_t consumed = 0;
  EXPECT_TRUE(IsOk(ReadPickle("\x80\x02N.K\x01."s, {}, nullptr, &consumed)));
  EXPECT_EQ(consumed, 4U);
}

TEST(Pickle, ReadsOldOpcodes) {
  EXPECT_EQ(Read("(I1\nI2\nd."), "{1: 2}");
  EXPECT_EQ(Read("(I1\nI2\nl."), "[1, 2]");
  EXPECT_EQ(Read("(I1\nI2\ns."),
            "DataLoss: pickle, byte 7, opcode 0x73 's': the stack is too short");
  EXPECT_EQ(Read("I01\nI00\n\x86."), "(True, False)");
  EXPECT_EQ(Read("(ios\nsystem\n."), "R(os:system, ())");
  EXPECT_EQ(Read("(I5\nios\nsystem\n."), "R(os:system, (5))");
  EXPECT_EQ(Read("(cos\nsystem\nI5\no."), "R(os:system, (5))");
  EXPECT_EQ(Read("S'a\\x41\\n\\101\\\\\\q'\n."), "'aA\\x0aA\\x5c\\x5cq'");
  EXPECT_EQ(Read("S'\\xff'\n."), "b'\\xff'");
  EXPECT_EQ(Read("U\x02hi."), "'hi'");
  EXPECT_EQ(Read("T\x01\0\0\0\xFF."s), "b'\\xff'");
  EXPECT_EQ(Read("Va\\u00e9\\\\u\xE9\n."), "'a\\xc3\\xa9\\x5c\\x5cu\\xc3\\xa9'");
  EXPECT_EQ(Read("F-1.5e2\n."), "-0x1.2cp+7");
  EXPECT_EQ(Read("Finf\n."), "inf");
  EXPECT_EQ(Read("L-1L\n."), "-1");
  EXPECT_EQ(Read("Pkey\n."), "P('key')");
  EXPECT_EQ(Read("I1\nI2\n0."), "1");
  EXPECT_EQ(Read("I1\n(I2\nI3\n1."), "1");
  EXPECT_EQ(Read("I1\n(0."), "1");
  EXPECT_EQ(Read("I1\n2\x86."), "(1, 1)");
  EXPECT_EQ(Read("I7\np5\n0g5\n."), "7");
}

TEST(Pickle, ObjectsSayWhatPythonWouldDo) {
  EXPECT_EQ(Read("cos\nsystem\nU\x02id\x85R."), "R(os:system, ('id'))");
  EXPECT_EQ(Read("cm\nC\n)}U\x01kK\x01s\x92."), "N(m:C, (), kwargs={'k': 1})");
  EXPECT_EQ(Read("cm\nC\n)\x81K\x01"s + "aK\x02K\x03s}b."),
            "N(m:C, (), items=[1], pairs={2: 3}, state={})");
  EXPECT_EQ(Read("cm\nC\n)\x81K\x01"s + "bK\x02"s + "b."), "N(m:C, (), state=2)")
      << "the last state stays";
  EXPECT_EQ(Read("cm\nC\n)R(K\x01K\x02\x90."), "R(m:C, (), items=[1, 2])");
  EXPECT_EQ(Read("U\x01iQ."), "P('i')");
}

TEST(Pickle, IntsAreAsLongAsTheyNeed) {
  EXPECT_EQ(Read("\x8a\0."s), "0");
  EXPECT_EQ(Read("\x8a\x03\xFF\xFF\xFF."), "-1");
  EXPECT_EQ(Read("\x8a\x0a\x01\0\0\0\0\0\0\0\0\0."s), "1") << "zeros that say nothing";
  EXPECT_EQ(Read("\x8a\x09\0\0\0\0\0\0\0\x80\0."s),
            "long'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x00'");
  EXPECT_EQ(Read("\x8b\x01\0\0\0\x05."s), "5");
  EXPECT_EQ(Read("J\xFE\xFF\xFF\xFF."), "-2");
  EXPECT_EQ(Read("M\xFF\xFF."), "65535");
}

TEST(Pickle, ATreeMayHoldItself) {
  const std::string pickle = "]q\0h\0a."s;
  const auto tree = ReadPickle(pickle);
  ASSERT_TRUE(IsOk(tree));
  ASSERT_EQ(tree->items(tree->root()).size(), 1U);
  EXPECT_EQ(tree->items(tree->root())[0], tree->root());
}

TEST(Pickle, FindsTheLastOfEqualKeys) {
  const std::string pickle =
      "}(U\x01"
      "aK\x01U\x01"
      "bK\x02U\x01"
      "aK\x03u.";
  const auto tree = ReadPickle(pickle);
  ASSERT_TRUE(IsOk(tree));
  EXPECT_EQ(tree->integer(tree->Get(tree->root(), "a")), 3);
  EXPECT_EQ(tree->Get(tree->root(), "c"), kNoPickle);
}

TEST(Pickle, NodesOfOtherKindsHaveNoTextAndNoItems) {
  const std::string pickle = "cm\nC\n)\x81.";
  const auto tree = ReadPickle(pickle);
  ASSERT_TRUE(IsOk(tree));
  const PickleRef root = tree->root();
  EXPECT_TRUE(tree->IsMadeBy(root, "m", "C"));
  EXPECT_FALSE(tree->IsMadeBy(root, "m", "D"));
  EXPECT_TRUE(tree->IsGlobal(tree->object(root).callee, "m", "C"));
  EXPECT_EQ(tree->text(root), "");
  EXPECT_EQ(tree->module(root), "");
  EXPECT_TRUE(tree->items(root).empty());
  EXPECT_EQ(tree->Get(root, "k"), kNoPickle);
}

TEST(Pickle, LongListsGrowInParts) {
  // A batch each time another list has been made behind it.
  std::string pickle = "]q\0("s;
  for (int batch = 0; batch < 50; ++batch) {
    pickle += "h\0("s;
    for (int i = 0; i <= batch; ++i) {
      pickle += "](K\x07K\x08"s + "e";
    }
    pickle += "e";
  }
  pickle += "1.";
  const auto tree = ReadPickle(pickle);
  ASSERT_TRUE(IsOk(tree));
  const auto items = tree->items(tree->root());
  ASSERT_EQ(items.size(), 50U * 51 / 2);
  for (const PickleRef item : items) {
    EXPECT_EQ(RenderPickle(*tree, item, 0), "[7, 8]");
  }
}

TEST(Pickle, WhatIsMalformedIsRefusedWithItsPlace) {
  EXPECT_TRUE(FailsWith(ReadPickle(""), StatusCode::kDataLoss, {"byte 0", "without STOP"}));
  EXPECT_TRUE(FailsWith(ReadPickle("NN\xFE."), StatusCode::kDataLoss,
                        {"byte 2", "0xfe", "no such opcode"}));
  for (const std::string& pickle : {
           "."s,          "a."s,
           "Na."s,        "NNa."s,
           "]Ns."s,       "NNNs."s,
           "e."s,         "(e."s,
           "(Ne."s,       "](NNu."s,
           "}(Nu."s,      "(Nd."s,
           "](N\x90."s,   "]N\x90."s,
           "(t0."s,       "t."s,
           "\x85."s,      "N\x86."s,
           "0."s,         "1."s,
           "2."s,         "R."s,
           "NR."s,        "NNR."s,
           "N]R."s,       "N)}R"s,
           "NN\x81."s,    "N)N\x92."s,
           "N}}\x92."s,   "N}b."s,
           "]}b."s,       "NNb."s,
           "\x93."s,      "K\x01U\x01x\x93."s,
           "(o."s,        "o."s,
           "im\nC\n."s,   "Q."s,
           "\x94."s,      "q\0."s,
           "(q\0."s,      "h\0."s,
           "j\0\0\0\0."s, "g0\n."s,
           "Nq\1h\0."s,   "N(."s,
           "]\x91."s,
       }) {
    EXPECT_TRUE(FailsWith(ReadPickle(pickle), StatusCode::kDataLoss)) << pickle;
  }
}

TEST(Pickle, MalformedTextIsRefused) {
  for (const std::string& pickle : {
           "I\n."s,
           "Ix\n."s,
           "I1x\n."s,
           "I 1\n."s,
           "I--1\n."s,
           "LL\n."s,
           "L1"s,
           "F\n."s,
           "F1.5x\n."s,
           "F+-1\n."s,
           "S\n."s,
           "S'\n."s,
           "Sa\n."s,
           "S'a\"\n."s,
           "S'\\'\n."s,
           "S'\\x1'\n."s,
           "V\\u12\n."s,
           "V\\U00110000\n."s,
           "p-1\n."s,
           "Np\n."s,
           "Np1x\n."s,
           "Np99999999999999999999\n."s,
           "cm\nC"s,
           "c\xFF\nC\n."s,
           "X\x01\0\0\0\xFF."s,
           "X\x02\0\0\0\xC0\x80."s,
           "X\x03\0\0\0\xE0\x80\x80."s,
           "X\x04\0\0\0\xF4\x90\x80\x80."s,
           "X\x02\0\0\0\xE2\x82."s,
           "I" + std::string(4301, '1') + "\n.",
       }) {
    EXPECT_TRUE(FailsWith(ReadPickle(pickle), StatusCode::kDataLoss)) << pickle;
  }
}

TEST(Pickle, ErrorsAreTextWhateverTheInput) {
  const auto error = ReadPickle("I\xFF\x01\xED\xA0\x80\xC3\xA9\n.");
  EXPECT_TRUE(FailsWith(error, StatusCode::kDataLoss,
                        {"\"\\xff\\x01\\xed\\xa0\\x80\xC3\xA9\" is no decimal number"}));
}

TEST(Pickle, SizesBeyondTheInputAreRefused) {
  for (const std::string& pickle : {
           "\x8d\0\0\0\0\0\0\0\x80x."s,
           "\x8d\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFx."s,
           "\x8e\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7Fx."s,
           "\x96\0\0\0\0\0\0\0\x80x."s,
           "X\xFF\xFF\xFF\xFFx."s,
           "B\xFF\xFF\xFF\xFFx."s,
           "T\xFF\xFF\xFF\xFFx."s,
           "\x8b\xFF\xFF\xFF\xFF\x01."s,
           "\x8b\0\0\0\x80\x01."s,
           "\x8a\xFF\x01."s,
           "U\xFFx."s,
           "\x95\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFN."s,
           "\x95\x03\0\0\0\0\0\0\0N."s,
       }) {
    EXPECT_TRUE(FailsWith(ReadPickle(pickle), StatusCode::kDataLoss, {"beyond the end"})) << pickle;
  }
}

TEST(Pickle, ASparseMemoTakesLittleMemory) {
  // Would be 16 GiB as a vector. Numbers grow fourfold, to keep just ahead of any growth rule.
  std::string pickle = "K\x05r\xFF\xFF\xFF\xFF"s;
  for (std::uint64_t index = 100; index < 1'000'000'000'000'000'000; index *= 4) {
    pickle += "p" + std::to_string(index) + "\n";
  }
  EXPECT_EQ(Read(pickle + "0j\xFF\xFF\xFF\xFF."), "5");
  EXPECT_EQ(Read(pickle + "0g400\n."), "5");
  EXPECT_EQ(Read("K\x01"
                 "p200\n0K\x02\x94"
                 "0g200\ng1\n\x86."s),
            "(1, 2)")
      << "MEMOIZE counts entries";
}

TEST(Pickle, LimitsAreKept) {
  const auto with = [](std::uint64_t nodes, std::uint32_t depth) {
    return PickleLimits{.max_nodes = nodes, .max_depth = depth};
  };
  const std::string nested = std::string(1000, '(') + "N" + std::string(1000, 't') + ".";
  EXPECT_TRUE(IsOk(ReadPickle(nested)));
  EXPECT_TRUE(FailsWith(ReadPickle("(" + nested), StatusCode::kInvalidArgument, {"1000 MARKs"}));
  EXPECT_TRUE(FailsWith(ReadPickle(nested, with(1000, 1000)), StatusCode::kInvalidArgument,
                        {"too many nodes"}));
  EXPECT_TRUE(FailsWith(ReadPickle("N\x94\x94\x94\x94."s, with(3, 10)),
                        StatusCode::kInvalidArgument, {"too many memo entries"}));
}

TEST(Pickle, WhatLiesOutsideThePickleIsRefused) {
  EXPECT_TRUE(FailsWith(ReadPickle("\x82\x01."), StatusCode::kUnimplemented, {"registry"}));
  EXPECT_TRUE(FailsWith(ReadPickle("\x83\x01\x01."), StatusCode::kUnimplemented, {"registry"}));
  EXPECT_TRUE(FailsWith(ReadPickle("\x84\x01\x01\x01\x01."), StatusCode::kUnimplemented));
  EXPECT_TRUE(FailsWith(ReadPickle("\x97."), StatusCode::kUnimplemented, {"buffers"}));
  EXPECT_TRUE(FailsWith(ReadPickle("N\x98."), StatusCode::kUnimplemented, {"buffers"}));
  EXPECT_TRUE(FailsWith(ReadPickle("\x80\x06N."), StatusCode::kUnimplemented, {"protocol 6"}));
}

}  // namespace
}  // namespace varve::tree_test
