#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "support/values.h"
#include "varve/value.h"

namespace varve::value_text_test {
namespace {

using test::Dict;
using test::List;
using test::Make;
using Kind = ValueKind;

Value BigInt(std::string bytes) { return Make(Kind::kInt, std::move(bytes)); }

TEST(IntToString, IsExactForAnySize) {
  const std::string two_to_200 = "1606938044258990275541962092341162602522202993782792835301376";
  EXPECT_EQ(IntToString(BigInt(std::string(25, '\0') + '\x01')), two_to_200);
  EXPECT_EQ(IntToString(BigInt(std::string(25, '\0') + '\xFF')), "-" + two_to_200);
  EXPECT_EQ(IntToString(BigInt(std::string(8, '\xFF') + '\0')), "18446744073709551615");
  EXPECT_EQ(IntToString(BigInt(std::string(8, '\0') + '\xFF')), "-18446744073709551616");
}

TEST(IntToString, ReadsEveryWidthOfTheSameNumber) {
  for (std::size_t width = 1; width < 20; ++width) {
    EXPECT_EQ(IntToString(BigInt(std::string(width, '\xFF'))), "-1") << width;
    EXPECT_EQ(IntToString(BigInt(std::string(width, '\0'))), "0") << width;
    EXPECT_EQ(IntToString(BigInt("\x05" + std::string(width - 1, '\0'))), "5") << width;
  }
}

TEST(IntToString, EqualsTheNumberItWasMadeFrom) {
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{127}, std::int64_t{128}, std::int64_t{255},
        std::int64_t{-128}, std::int64_t{-129}, std::int64_t{-32768},
        std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(IntToString(Value::Int(value)), std::to_string(value));
  }
}

TEST(ValueToString, WritesFloatsAsPythonDoes) {
  EXPECT_EQ(ToString(Value::Float(0.1)), "0.1");
  EXPECT_EQ(ToString(Value::Float(3)), "3.0");
  EXPECT_EQ(ToString(Value::Float(-0.0)), "-0.0");
  EXPECT_EQ(ToString(Value::Float(1e16)), "1e+16");
  EXPECT_EQ(ToString(Value::Float(9999999999999998)), "9999999999999998.0");
  EXPECT_EQ(ToString(Value::Float(0.0001)), "0.0001");
  EXPECT_EQ(ToString(Value::Float(0.00001)), "1e-05");
  EXPECT_EQ(ToString(Value::Float(1.5e300)), "1.5e+300");
  EXPECT_EQ(ToString(Value::Float(-INFINITY)), "-inf");
  EXPECT_EQ(ToString(Value::Float(NAN)), "nan");
}

TEST(ValueToString, WritesContainersInPythonsNotation) {
  const Value one = Value::Int(1);
  const Value key = Value::Str("k");
  EXPECT_EQ(ToString(List({one, key, Make(Kind::kNone)})), "[1, 'k', None]");
  EXPECT_EQ(ToString(Make(Kind::kTuple, {one})), "(1,)");
  EXPECT_EQ(ToString(Make(Kind::kTuple, std::vector<Value>{})), "()");
  EXPECT_EQ(ToString(Make(Kind::kTuple, {one, one})), "(1, 1)");
  EXPECT_EQ(ToString(Dict({key, Make(Kind::kTrue), one, Make(Kind::kFalse)})),
            "{'k': True, 1: False}");
  EXPECT_EQ(ToString(Make(Kind::kSet, {one})), "{1}");
  EXPECT_EQ(ToString(Make(Kind::kSet, std::vector<Value>{})), "set()");
  EXPECT_EQ(ToString(Make(Kind::kDefaultDict, "list", {key, one})), "defaultdict(list, {'k': 1})");
  EXPECT_EQ(ToString(Make(Kind::kTorchSize, {one, one})), "torch.Size([1, 1])");
  EXPECT_EQ(ToString(Make(Kind::kTorchDType, std::string("bfloat16"))), "torch.bfloat16");
  EXPECT_EQ(ToString(Make(Kind::kRange, {Value::Int(0), Value::Int(9), one})), "range(0, 9, 1)");
}

TEST(ValueToString, EscapesWhatATerminalMustNotSee) {
  EXPECT_EQ(ToString(Value::Str("it's\n\x1B[31m")), R"('it\'s\n\x1b[31m')");
  EXPECT_EQ(ToString(Make(Kind::kBytes, std::string("\0\xFF", 2))), R"(b'\x00\xff')");
}

TEST(ValueToString, CutsLongTextBetweenCharacters) {
  const Value text = Value::Str("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9");
  EXPECT_EQ(ToString(text, 4), "'\xC3\xA9...");
  EXPECT_EQ(ToString(text, 5), "'\xC3\xA9\xC3\xA9...");
}

TEST(ValueToString, StaysShortForHugeContainers) {
  EXPECT_LE(ToString(List(std::vector<Value>(100'000, Value::Int(7)))).size(), 203U);
}

// Decimal digits of a long integer take time quadratic in its length.
TEST(ValueToString, DoesNotSpellOutHugeIntegers) {
  const Value huge = BigInt(std::string(4'000'000, '\x7F'));
  EXPECT_EQ(ToString(huge), "<int of 4000000 bytes>");
}

TEST(ValueToString, ShowsTheClassOfAnObjectAndItsPlainValue) {
  EXPECT_EQ(
      ToString(Make(Kind::kNamed, std::string("m:Color"), {Value::Str("enum"), Value::Int(1)})),
      "m:Color(1)");
  EXPECT_EQ(ToString(Make(Kind::kNamedDict, std::string("m:D\0...", 7),
                          {Value::Str("a"), Value::Int(1)})),
            "m:D({'a': 1})");
}

TEST(ValueToString, EveryKindHasARendering) {
  for (const Value& value : test::ValuesOfEveryKind()) {
    EXPECT_FALSE(ToString(value).empty()) << static_cast<int>(value.kind);
  }
}

}  // namespace
}  // namespace varve::value_text_test
