#include "interop/pickle/writer.h"

#include <limits>

#include <gtest/gtest.h>

#include "interop/pickle/tree.h"
#include "support/archives.h"
#include "support/status_matchers.h"
#include "varve/value.h"

namespace varve::writer_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Le;

/// Returns the opcodes that `write` writes between PROTO and STOP.
template <class Write>
std::string Opcodes(Write write) {
  Bytes out;
  PickleWriter pickle(&out);
  write(pickle);
  EXPECT_TRUE(IsOk(pickle.Finish()));
  EXPECT_TRUE(out.starts_with("\x80\x02") && out.ends_with('.'));
  return out.substr(2, out.size() - 3);
}

TEST(PickleWriter, WritesEachIntInItsShortestForm) {
  const auto of = [](std::int64_t value) {
    return Opcodes([&](PickleWriter& pickle) { pickle.Int(value); });
  };
  EXPECT_EQ(of(0), std::string("K\0", 2));
  EXPECT_EQ(of(255), "K\xFF");
  EXPECT_EQ(of(256), std::string("M\0\x01", 3));
  EXPECT_EQ(of(65535), "M\xFF\xFF");
  EXPECT_EQ(of(65536), "J" + Le(65536, 4));
  EXPECT_EQ(of(-1), "J\xFF\xFF\xFF\xFF");
  EXPECT_EQ(of(std::numeric_limits<std::int32_t>::max()), "J\xFF\xFF\xFF\x7F");
  EXPECT_EQ(of(std::numeric_limits<std::int32_t>::min()), "J" + Le(0x80000000, 4));
  EXPECT_EQ(of(std::int64_t{1} << 31), "\x8a\x05" + Le(0x80000000, 5));
  EXPECT_EQ(of(-(std::int64_t{1} << 31) - 1), "\x8a\x05" + Le(0xFF7FFFFFFF, 5));
  EXPECT_EQ(of(std::numeric_limits<std::int64_t>::min()), "\x8a\x08" + Le(1ULL << 63, 8));
}

TEST(PickleWriter, WritesIntsOfAnySize) {
  const auto of = [](std::string_view bytes) {
    return Opcodes([&](PickleWriter& pickle) { pickle.Int(bytes); });
  };
  EXPECT_EQ(of(""), std::string("K\0", 2));
  EXPECT_EQ(of(std::string_view("\x07\0\0", 3)), "K\x07") << "zeros that only repeat the sign";
  EXPECT_EQ(of("\xFE\xFF\xFF"), "J" + Le(0xFFFFFFFE, 4));
  EXPECT_EQ(of(std::string_view("\xFF\0", 2)), "K\xFF") << "positive";
  const std::string nine = std::string(8, '\0') + '\x01';
  EXPECT_EQ(of(nine), "\x8a\x09" + nine);
  const std::string most = std::string(254, '\x11') + '\x01';
  EXPECT_EQ(of(most), "\x8a\xFF" + most);
  const std::string more = std::string(255, '\x11') + '\x01';
  EXPECT_EQ(of(more), "\x8b" + Le(256, 4) + more);
}

TEST(PickleWriter, IntsReadBackAsTheyWere) {
  for (int bits = 0; bits < 64; ++bits) {
    for (const std::uint64_t beside : {~std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{1}}) {
      for (const bool negative : {false, true}) {
        const std::uint64_t size = (std::uint64_t{1} << bits) + beside;
        const auto value = static_cast<std::int64_t>(negative ? ~size : size);
        Bytes out;
        PickleWriter pickle(&out);
        pickle.Int(value);
        pickle.Int(Value::Int(value).text);
        pickle.Tuple2();
        ASSERT_TRUE(IsOk(pickle.Finish()));
        const auto tree = ReadPickle(out);
        ASSERT_TRUE(IsOk(tree));
        for (const PickleRef item : tree->items(tree->root())) {
          ASSERT_EQ(tree->kind(item), PickleKind::kInt);
          EXPECT_EQ(tree->integer(item), value);
        }
      }
    }
  }
}

TEST(PickleWriter, WritesFloatsBigEndian) {
  EXPECT_EQ(Opcodes([](PickleWriter& pickle) { pickle.Float(-2.5); }),
            std::string("G\xC0\x04\0\0\0\0\0\0", 9));
}

TEST(PickleWriter, WritesBytesAsLatin1Text) {
  EXPECT_EQ(
      Opcodes([](PickleWriter& pickle) { pickle.BytesObject(std::string_view("a\0\x80\xFF", 4)); }),
      "c_codecs\nencode\nq" + Le(0, 1) + "X" + Le(6, 4) + std::string("a\0\xC2\x80\xC3\xBF", 6) +
          "X" + Le(6, 4) + "latin1\x86R");
}

TEST(PickleWriter, WritesAGlobalOnceAndRecallsIt) {
  EXPECT_EQ(Opcodes([](PickleWriter& pickle) {
              pickle.Global("a", "bc");
              pickle.Global("ab", "c");
              pickle.Global("a", "b");
              pickle.Global("a", "bc");
              pickle.Global("a", "b");
            }),
            "ca\nbc\nq" + Le(0, 1) + "cab\nc\nq\x01" + "ca\nb\nq\x02" + "h" + Le(0, 1) + "h\x02");
}

TEST(PickleWriter, ManyGlobalsReadBackAsTheyWere) {
  Bytes out;
  PickleWriter pickle(&out);
  pickle.Mark();
  for (int i = 0; i < 400; ++i) {
    pickle.Global("m", "n" + std::to_string(i % 200));
  }
  pickle.Tuple();
  ASSERT_TRUE(IsOk(pickle.Finish()));
  const auto tree = ReadPickle(out);
  ASSERT_TRUE(IsOk(tree));
  const auto items = tree->items(tree->root());
  ASSERT_EQ(items.size(), 400U);
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_TRUE(tree->IsGlobal(items[i], "m", "n" + std::to_string(i % 200)));
  }
}

TEST(PickleWriter, RecallsFromAMemoOfAnySize) {
  Bytes out;
  PickleWriter pickle(&out);
  constexpr std::uint32_t kCount = 300;
  pickle.Mark();
  for (std::uint32_t i = 0; i < kCount; ++i) {
    pickle.Str("text " + std::to_string(i));
    EXPECT_EQ(pickle.Remember(), i);
  }
  pickle.Recall(0);
  pickle.Recall(255);
  pickle.Recall(256);
  pickle.Tuple();
  ASSERT_TRUE(IsOk(pickle.Finish()));
  const auto tree = ReadPickle(out);
  ASSERT_TRUE(IsOk(tree));
  const auto items = tree->items(tree->root());
  ASSERT_EQ(items.size(), kCount + 3);
  EXPECT_EQ(items[kCount], items[0]);
  EXPECT_EQ(items[kCount + 1], items[255]);
  EXPECT_EQ(items[kCount + 2], items[256]);
}

TEST(PickleWriter, ContainersAndObjectsReadBackAsTheyWere) {
  Bytes out;
  PickleWriter pickle(&out);
  pickle.Global("m", "C");
  pickle.Tuple0();
  pickle.NewObject();
  pickle.Dict();
  pickle.Mark();
  pickle.Str("list");
  pickle.List();
  pickle.Mark();
  pickle.None();
  pickle.Bool(true);
  pickle.Bool(false);
  pickle.Appends();
  pickle.Str("call");
  pickle.Global("m", "f");
  pickle.Int(1);
  pickle.Tuple1();
  pickle.Reduce();
  pickle.Str("persistent");
  pickle.Str("id");
  pickle.PersistentId();
  pickle.Str("three");
  pickle.Int(1);
  pickle.Int(2);
  pickle.Int(3);
  pickle.Tuple3();
  pickle.SetItems();
  pickle.Build();
  ASSERT_TRUE(IsOk(pickle.Finish()));

  const auto tree = ReadPickle(out);
  ASSERT_TRUE(IsOk(tree));
  ASSERT_EQ(tree->kind(tree->root()), PickleKind::kNewObject);
  EXPECT_TRUE(tree->IsMadeBy(tree->root(), "m", "C"));
  const PickleRef state = tree->object(tree->root()).state;
  const auto list = tree->items(tree->Get(state, "list"));
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(tree->kind(list[0]), PickleKind::kNone);
  EXPECT_EQ(tree->integer(list[1]), 1);
  EXPECT_EQ(tree->integer(list[2]), 0);
  EXPECT_TRUE(tree->IsMadeBy(tree->Get(state, "call"), "m", "f"));
  EXPECT_EQ(tree->kind(tree->Get(state, "persistent")), PickleKind::kPersistent);
  EXPECT_EQ(tree->items(tree->Get(state, "three")).size(), 3U);
}

TEST(PickleWriter, ALineBreakInAGlobalIsRefused) {
  for (const bool in_module : {false, true}) {
    Bytes out;
    PickleWriter pickle(&out);
    const std::string evil = "x\ncos\nsystem";
    pickle.Global(in_module ? evil : "m", in_module ? "n" : evil);
    pickle.Int(1);
    EXPECT_TRUE(FailsWith(pickle.Finish(), StatusCode::kInvalidArgument, {"line break"}));
    EXPECT_EQ(out.find("system"), std::string::npos);
  }
}

}  // namespace
}  // namespace varve::writer_test
