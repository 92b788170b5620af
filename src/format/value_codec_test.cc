#include <bit>
#include <set>

#include <gtest/gtest.h>

#include "format/structure.h"
#include "support/random.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"
#include "support/values.h"
#include "varve/value.h"

namespace varve::value_codec_test {
namespace {

using test::Dict;
using test::FailsWith;
using test::IsOk;
using test::List;
using test::Make;
using test::Random;

/// Compares field by field; operator== itself compares encodings.
bool SameFields(const Value& a, const Value& b) {
  if (a.kind != b.kind || a.text != b.text || a.items.size() != b.items.size() ||
      std::bit_cast<std::uint64_t>(a.number) != std::bit_cast<std::uint64_t>(b.number) ||
      std::bit_cast<std::uint64_t>(a.imaginary) != std::bit_cast<std::uint64_t>(b.imaginary)) {
    return false;
  }
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!SameFields(a.items[i], b.items[i])) {
      return false;
    }
  }
  return true;
}

/// Returns `levels` lists around a None.
std::string NestedLists(int levels) {
  std::string bytes;
  for (int i = 0; i < levels; ++i) {
    bytes += {static_cast<char>(ValueKind::kList), '\x01'};
  }
  return bytes + static_cast<char>(ValueKind::kNone);
}

TEST(ValueCodec, RoundTripsEveryKind) {
  std::set<ValueKind> kinds;
  std::vector<Value> values = test::ValuesOfEveryKind();  // The golden files hold these too.
  values.push_back(test::Make(ValueKind::kTorchSave, "PK", {Value::Str("argparse.Namespace")}));
  values.push_back(test::Make(ValueKind::kPath, "runs/step5", {Value::Str("PosixPath")}));
  for (const Value& value : values) {
    kinds.insert(value.kind);
    const auto decoded = DecodeValue(EncodeValue(value));
    ASSERT_TRUE(IsOk(decoded)) << ToString(value);
    if (value.kind != ValueKind::kSet) {  // Given unsorted; see below.
      EXPECT_TRUE(SameFields(*decoded, value)) << ToString(value);
    }
    EXPECT_EQ(*decoded, value) << ToString(value);
  }
  EXPECT_EQ(kinds.size(), kValueKindCount);
}

TEST(ValueCodec, RejectsEveryTruncation) {
  const std::string bytes = EncodeValue(List(test::ValuesOfEveryKind()));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(
        FailsWith(DecodeValue(std::string_view(bytes).substr(0, size)), StatusCode::kDataLoss))
        << size;
  }
}

TEST(ValueCodec, RejectsBytesLeftOver) {
  EXPECT_TRUE(FailsWith(DecodeValue(std::string(2, '\0')), StatusCode::kDataLoss, {"trailing"}));
}

TEST(ValueCodec, EncodesASetTheSameWhateverItsOrder) {
  Random random(1);
  for (const ValueKind kind : {ValueKind::kSet, ValueKind::kFrozenSet}) {
    std::vector<Value> items{Value::Int(3), Value::Int(-300), Value::Str("b"), Value::Float(2)};
    const std::string want = EncodeValue(Make(kind, items));
    for (int i = 0; i < 30; ++i) {
      random.Shuffle(&items);
      EXPECT_EQ(EncodeValue(Make(kind, items)), want);
    }
  }
}

TEST(ValueCodec, KeepsTheOrderOfMappings) {
  const Value a = Value::Str("a");
  const Value b = Value::Str("b");
  EXPECT_NE(EncodeValue(Dict({a, a, b, b})), EncodeValue(Dict({b, b, a, a})));
}

TEST(ValueCodec, KeepsTheBitsOfANan) {
  const double odd_nan = std::bit_cast<double>(std::uint64_t{0x7FF8000000000ABC});
  const auto decoded = DecodeValue(EncodeValue(Value::Float(odd_nan)));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_TRUE(SameFields(*decoded, Value::Float(odd_nan)));
  EXPECT_NE(Value::Float(0.0), Value::Float(-0.0));
}

TEST(ValueCodec, Accepts256LevelsAndRefusesMore) {
  EXPECT_TRUE(IsOk(DecodeValue(NestedLists(256))));
  EXPECT_TRUE(FailsWith(DecodeValue(NestedLists(257)), StatusCode::kDataLoss, {"too deep"}));
  EXPECT_TRUE(FailsWith(DecodeValue(NestedLists(2'000'000)), StatusCode::kDataLoss));
}

TEST(ValueCodec, AnUnknownKindIsUnimplementedAndNamed) {
  const std::string unknown(1, static_cast<char>(kValueKindCount));
  const std::string inside = std::string("\x09\x01", 2) + unknown;
  EXPECT_TRUE(FailsWith(DecodeValue(unknown), StatusCode::kUnimplemented,
                        {"value kind " + std::to_string(kValueKindCount)}));
  EXPECT_TRUE(FailsWith(DecodeValue(inside), StatusCode::kUnimplemented));
}

TEST(ValueCodec, RefusesAMappingWithAKeyButNoValue) {
  for (const ValueKind kind : {ValueKind::kDict, ValueKind::kOrderedDict, ValueKind::kCounter}) {
    const std::string bytes = EncodeValue(Make(kind, {Value::Int(1)}));
    EXPECT_TRUE(FailsWith(DecodeValue(bytes), StatusCode::kDataLoss, {"no value"}));
  }
}

TEST(ValueCodec, RefusesCountsAndLengthsBeyondTheInput) {
  const std::string huge = "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01";
  for (const ValueKind kind : {ValueKind::kStr, ValueKind::kList, ValueKind::kDict}) {
    const std::string bytes = std::string(1, static_cast<char>(kind)) + huge + "abc";
    EXPECT_TRUE(FailsWith(DecodeValue(bytes), StatusCode::kDataLoss));
  }
}

// For any bytes, decoding ends in a Status or in a value that survives its own round trip, and a
// check without the value says the same.
TEST(ValueCodec, SurvivesAnyChangedByte) {
  const std::string good = EncodeValue(List(test::ValuesOfEveryKind()));
  for (std::size_t at = 0; at < good.size(); at += test::kEveryByte) {
    for (int byte = 0; byte < 256; byte += 5) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(byte);
      const auto value = DecodeValue(bytes);
      ASSERT_EQ(CheckEncodedValue(bytes).ToString(), value.status().ToString());
      if (value.ok()) {
        const auto again = DecodeValue(EncodeValue(*value));
        ASSERT_TRUE(IsOk(again));
        ASSERT_EQ(*again, *value);
        (void)ToString(*value);
      }
    }
  }
}

TEST(ValueCodec, IntTakesTheShortestTwosComplement) {
  const auto width = [](std::int64_t value) { return Value::Int(value).text.size(); };
  EXPECT_EQ(width(0), 1U);
  EXPECT_EQ(width(127), 1U);
  EXPECT_EQ(width(128), 2U);
  EXPECT_EQ(width(-128), 1U);
  EXPECT_EQ(width(-129), 2U);
  EXPECT_EQ(width(INT64_MAX), 8U);
  EXPECT_EQ(width(INT64_MIN), 8U);
}

}  // namespace
}  // namespace varve::value_codec_test
