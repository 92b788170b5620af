#include "interop/torch/values.h"

#include <gtest/gtest.h>

#include "support/pickles.h"
#include "support/status_matchers.h"
#include "support/values.h"

namespace varve::values_test {
namespace {

using test::Dict;
using test::FailsWith;
using test::Le;
using test::List;
using test::Make;
namespace pickled = test::pickled;
using pickled::Archive;
using pickled::Build;
using pickled::Bytes;
using pickled::Call;
using pickled::Global;
using pickled::Int;
using pickled::Ints;
using pickled::kFalse;
using pickled::kNone;
using pickled::kTrue;
using pickled::Storage;
using pickled::Str;
using pickled::Tensor;
using pickled::Tuple;

Result<Value> ValueOf(const std::string& object, const std::vector<std::string>& storages = {}) {
  return ReadValueItem(Archive(object, storages));
}

testing::AssertionResult ComesOutAs(const std::string& object, const Value& expected,
                                    const std::vector<std::string>& storages = {}) {
  const auto value = ValueOf(object, storages);
  if (!value.ok()) {
    return testing::AssertionFailure() << value.status().ToString();
  }
  if (!(*value == expected)) {
    return testing::AssertionFailure() << "got " << ToString(*value);
  }
  return testing::AssertionSuccess();
}

/// Checks that the object stays opaque and names `needs`.
testing::AssertionResult StaysOpaque(const std::string& object,
                                     const std::vector<std::string>& needs,
                                     const std::vector<std::string>& storages = {}) {
  Value expected = Make(ValueKind::kTorchSave, Archive(object, storages));
  for (const std::string& need : needs) {
    expected.items.push_back(Value::Str(need));
  }
  return ComesOutAs(object, expected, storages);
}

std::string Builtin(const std::string& name, const std::vector<std::string>& arguments) {
  return Call(Global("builtins", name), arguments);
}

Value IntsAs(ValueKind kind, const std::vector<std::int64_t>& values) {
  Value out = Make(kind);
  for (const std::int64_t value : values) {
    out.items.push_back(Value::Int(value));
  }
  return out;
}

TEST(TorchValues, OfBuiltInTypesComeBackAsTheyWere) {
  EXPECT_TRUE(ComesOutAs(kNone, Make(ValueKind::kNone)));
  EXPECT_TRUE(ComesOutAs(kTrue, Make(ValueKind::kTrue)));
  EXPECT_TRUE(ComesOutAs(Int(-5), Value::Int(-5)));
  EXPECT_TRUE(ComesOutAs("\x8a\x0b" + Le(0, 8) + Le(1, 3), Make(ValueKind::kInt, Le(0, 8) + "\1")));
  EXPECT_TRUE(ComesOutAs("\x8a\x0b" + Le(0, 8) + Le(0xFFFFFE, 3),
                         Make(ValueKind::kInt, Le(0, 8) + "\xFE")));
  EXPECT_TRUE(ComesOutAs(pickled::Float(-0.0), Value::Float(-0.0)));
  EXPECT_TRUE(ComesOutAs(Bytes("\xff"), Make(ValueKind::kBytes, "\xff")));
  EXPECT_TRUE(ComesOutAs(Builtin("bytearray", {Bytes("ab")}), Make(ValueKind::kByteArray, "ab")));
  EXPECT_TRUE(ComesOutAs(Builtin("bytearray", {Str("é"), Str("latin-1")}),
                         Make(ValueKind::kByteArray, "\xe9")));
  EXPECT_TRUE(ComesOutAs(Call(Global("_codecs", "encode"), {Str("ÿa"), Str("latin1")}),
                         Make(ValueKind::kBytes,
                              "\xff"
                              "a")));
  EXPECT_TRUE(ComesOutAs(Builtin("complex", {pickled::Float(1), pickled::Float(2)}),
                         {.kind = ValueKind::kComplex, .number = 1, .imaginary = 2}));
  EXPECT_TRUE(ComesOutAs("\x8f(" + Int(1) + "\x90", IntsAs(ValueKind::kSet, {1})));
  EXPECT_TRUE(ComesOutAs("(" + Int(1) + "\x91", IntsAs(ValueKind::kFrozenSet, {1})));
  EXPECT_TRUE(ComesOutAs(Builtin("set", {pickled::List({Int(1)})}), IntsAs(ValueKind::kSet, {1})));
  EXPECT_TRUE(
      ComesOutAs(Builtin("range", {Int(1), Int(9), Int(2)}), IntsAs(ValueKind::kRange, {1, 9, 2})));
  EXPECT_TRUE(ComesOutAs(
      Builtin("slice", {kNone, Int(9), kNone}),
      Make(ValueKind::kSlice, {Make(ValueKind::kNone), Value::Int(9), Make(ValueKind::kNone)})));
}

TEST(TorchValues, OfPython2NamesComeBackTheSame) {
  EXPECT_TRUE(ComesOutAs(Call(Global("__builtin__", "xrange"), {Int(1), Int(9), Int(2)}),
                         IntsAs(ValueKind::kRange, {1, 9, 2})));
  EXPECT_TRUE(
      ComesOutAs(Call(Global("collections", "defaultdict"), {Global("__builtin__", "long")}),
                 Make(ValueKind::kDefaultDict, "int", {})));
  EXPECT_TRUE(StaysOpaque(Global("__builtin__", "len"), {"builtins.len"}));
}

TEST(TorchValues, OfMappingsKeepTheirKindAndOrder) {
  const std::string ordered = Call(Global("collections", "OrderedDict"), {});
  const std::vector<std::string> pairs{Str("z"), Int(1), Int(0), Int(2)};
  const std::vector<Value> items{Value::Str("z"), Value::Int(1), Value::Int(0), Value::Int(2)};
  const std::string set_items = "(" + pickled::All(pairs) + "u";
  EXPECT_TRUE(ComesOutAs(pickled::Dict(pairs), Dict(items)));
  EXPECT_TRUE(ComesOutAs(ordered + set_items, Make(ValueKind::kOrderedDict, items)));
  // Attributes, as state_dict() gives its result, are not kept.
  EXPECT_TRUE(
      ComesOutAs(Build(ordered + set_items, pickled::Dict({Str("_metadata"), Global("my", "Own")})),
                 Make(ValueKind::kOrderedDict, items)));
  EXPECT_TRUE(ComesOutAs(
      Call(Global("collections", "OrderedDict"),
           {pickled::List({pickled::List({Str("z"), Int(1)}), Tuple({Int(0), Int(2)})})}),
      Make(ValueKind::kOrderedDict, items)));
  EXPECT_TRUE(ComesOutAs(Call(Global("collections", "Counter"), {pickled::Dict(pairs)}),
                         Make(ValueKind::kCounter, items)));
  EXPECT_TRUE(ComesOutAs(
      Call(Global("collections", "defaultdict"), {Global("builtins", "list")}) + set_items,
      Make(ValueKind::kDefaultDict, "list", items)));
  EXPECT_TRUE(StaysOpaque(Call(Global("collections", "defaultdict"), {Global("my", "factory")}),
                          {"my.factory"}));
  EXPECT_TRUE(StaysOpaque(Build(Call(Global("collections", "Counter"), {}), pickled::Dict({})),
                          {"collections.Counter"}));
}

TEST(TorchValues, OfTorchComeBackAsTheyWere) {
  EXPECT_TRUE(ComesOutAs(Call(Global("torch", "Size"), {Ints({2, 0})}),
                         IntsAs(ValueKind::kTorchSize, {2, 0})));
  EXPECT_TRUE(
      ComesOutAs(Global("torch", "float8_e5m2"), Make(ValueKind::kTorchDType, "float8_e5m2")));
  EXPECT_TRUE(ComesOutAs(Global("torch", "quint4x2"), Make(ValueKind::kTorchDType, "quint4x2")));
  EXPECT_TRUE(ComesOutAs(Call(Global("torch", "device"), {Str("cuda"), Int(1)}),
                         Make(ValueKind::kTorchDevice, "cuda:1")));
  EXPECT_TRUE(ComesOutAs(Call(Global("torch", "device"), {Str("cpu")}),
                         Make(ValueKind::kTorchDevice, "cpu")));
}

TEST(TorchValues, OfDatesAndTimesAreWhatPythonWrites) {
  const Value none = Make(ValueKind::kNone);
  const auto date_time = [](const std::string& state, const std::vector<std::string>& zone = {}) {
    std::vector<std::string> arguments{Bytes(state)};
    arguments.insert(arguments.end(), zone.begin(), zone.end());
    return Call(Global("datetime", "datetime"), arguments);
  };
  const std::string leap_day("\x07\xe8\x02\x1d\x17\x3b\x3a\x01\xe2\x40", 10);
  EXPECT_TRUE(
      ComesOutAs(date_time(leap_day),
                 Make(ValueKind::kDateTime, "2024-02-29T23:59:58.123456", {none, Value::Int(0)})));
  // From protocol 4 on, the month's top bit is the fold.
  EXPECT_TRUE(
      ComesOutAs(date_time(test::With(leap_day, 2, "\x82")),
                 Make(ValueKind::kDateTime, "2024-02-29T23:59:58.123456", {none, Value::Int(1)})));
  EXPECT_TRUE(StaysOpaque(date_time(test::With(leap_day, 1, "\xe7")), {"datetime.datetime"}));
  EXPECT_TRUE(StaysOpaque(date_time(test::With(leap_day, 4, "\x18")), {"datetime.datetime"}));
  EXPECT_TRUE(StaysOpaque(date_time(leap_day.substr(1)), {"datetime.datetime"}));
  EXPECT_TRUE(ComesOutAs(Call(Global("datetime", "date"), {Bytes("\x01\x01\x0c\x1f")}),
                         Make(ValueKind::kDate, "0257-12-31")));
  EXPECT_TRUE(
      ComesOutAs(Call(Global("datetime", "time"), {Bytes(std::string("\x81\2\3\0\0\0", 6))}),
                 Make(ValueKind::kTime, "01:02:03", {none, Value::Int(1)})));
  const auto delta = [](std::int64_t days, std::int64_t seconds, std::int64_t microseconds) {
    return Call(Global("datetime", "timedelta"), {Int(days), Int(seconds), Int(microseconds)});
  };
  EXPECT_TRUE(ComesOutAs(delta(-1, 5, 7), IntsAs(ValueKind::kTimeDelta, {-1, 5, 7})));
  EXPECT_TRUE(StaysOpaque(delta(0, 86400, 0), {"datetime.timedelta"}));

  const auto zone = [&](const std::vector<std::string>& arguments) {
    return Call(Global("datetime", "timezone"), arguments);
  };
  const Value hour = IntsAs(ValueKind::kTimeDelta, {0, 3600, 0});
  EXPECT_TRUE(ComesOutAs(zone({delta(0, 3600, 0)}), Make(ValueKind::kTimeZone, {hour})));
  EXPECT_TRUE(ComesOutAs(zone({delta(0, 3600, 0), Str("CET")}),
                         Make(ValueKind::kTimeZone, {hour, Value::Str("CET")})));
  EXPECT_TRUE(
      ComesOutAs(zone({delta(0, 3600, 0), Str("UTC+01:00")}), Make(ValueKind::kTimeZone, {hour})));
  EXPECT_TRUE(StaysOpaque(zone({delta(1, 0, 0)}), {"datetime.timezone"}));
  EXPECT_TRUE(ComesOutAs(date_time(leap_day, {zone({delta(0, 3600, 0)})}),
                         Make(ValueKind::kDateTime, "2024-02-29T23:59:58.123456",
                              {Make(ValueKind::kTimeZone, {hour}), Value::Int(0)})));
  const std::string unpickle =
      Call(Global("builtins", "getattr"), {Global("zoneinfo", "ZoneInfo"), Str("_unpickle")});
  EXPECT_TRUE(ComesOutAs(Call(unpickle, {Str("Europe/Berlin"), Int(1)}),
                         Make(ValueKind::kZoneInfo, "Europe/Berlin")));
}

TEST(TorchValues, TimeZonesWithoutANameHavePythons) {
  EXPECT_EQ(TimeZoneName(0, 0, 0), "UTC");
  EXPECT_EQ(TimeZoneName(0, 19800, 0), "UTC+05:30");
  EXPECT_EQ(TimeZoneName(-1, 86399, 0), "UTC-00:00:01");
  EXPECT_EQ(TimeZoneName(-1, 0, 1), "UTC-23:59:59.999999");
  EXPECT_EQ(TimeZoneName(0, 0, 5), "UTC+00:00:00.000005");
  EXPECT_EQ(TimeZoneName(-1, 0, 0), std::nullopt);
}

std::string NumpyType(const std::string& code, const std::string& order,
                      const std::string& more = "") {
  return Build(Call(Global("numpy", "dtype"), {Str(code), kFalse, kTrue}),
               Tuple({Int(3), Str(order), kNone, kNone, kNone, Int(-1), Int(-1), Int(0), more}));
}

std::string NumpyArray(const std::string& shape, const std::string& type,
                       const std::string& fortran, const std::string& content) {
  return Build(Call(Global("numpy._core.multiarray", "_reconstruct"),
                    {Global("numpy", "ndarray"), Ints({0}), Bytes("b")}),
               Tuple({Int(1), shape, type, fortran, content}));
}

Value Array(const std::string& type, const std::vector<std::int64_t>& shape,
            const std::string& bytes) {
  return Make(ValueKind::kNumpyArray, bytes, {Value::Str(type), IntsAs(ValueKind::kTuple, shape)});
}

TEST(TorchValues, OfNumpyComeBackAsTheyWere) {
  EXPECT_TRUE(ComesOutAs(
      Call(Global("numpy.core.multiarray", "scalar"), {NumpyType("i2", "<"), Bytes("\1\2")}),
      Make(ValueKind::kNumpyScalar, "\1\2", {Value::Str("<i2")})));
  EXPECT_TRUE(ComesOutAs(NumpyArray(Ints({2}), NumpyType("b1", "|"), kFalse, Bytes("\1\1")),
                         Array("|b1", {2}, "\1\1")));
  EXPECT_TRUE(ComesOutAs(NumpyArray(Ints({1}), NumpyType("U2", ">"), kFalse, Bytes("12345678")),
                         Array(">U2", {1}, "12345678")));
  const std::string unit = Tuple({kNone, Tuple({Bytes("s"), Int(25), Int(1), Int(1)})});
  EXPECT_TRUE(
      ComesOutAs(NumpyArray(Ints({1}), NumpyType("M8", "<", unit), kFalse, Bytes("12345678")),
                 Array("<M8[25s]", {1}, "12345678")));
  EXPECT_TRUE(ComesOutAs(Call(Global("numpy._core.numeric", "_frombuffer"),
                              {Bytes("abcd"), NumpyType("u1", "|"), Ints({2, 2}), Str("C")}),
                         Array("|u1", {2, 2}, "abcd")));
  EXPECT_TRUE(ComesOutAs(NumpyArray(Ints({}), NumpyType("u1", "|"), kFalse, Bytes("a")),
                         Array("|u1", {}, "a")));
}

TEST(TorchValues, ColumnMajorArraysBecomeRowMajor) {
  EXPECT_TRUE(
      ComesOutAs(NumpyArray(Ints({2, 3}), NumpyType("u2", "<"), kTrue, Bytes("aabbccddeeff")),
                 Array("<u2", {2, 3}, "aacceebbddff")));
  EXPECT_TRUE(
      ComesOutAs(NumpyArray(Ints({2, 2, 2}), NumpyType("u1", "|"), kTrue, Bytes("abcdefgh")),
                 Array("|u1", {2, 2, 2}, "aecgbfdh")));
  EXPECT_TRUE(ComesOutAs(NumpyArray(Ints({0, 1 << 30}), NumpyType("u1", "|"), kTrue, Bytes("")),
                         Array("|u1", {0, 1 << 30}, "")));
}

TEST(TorchValues, ArraysOfObjectsAndOfFieldsStayOpaque) {
  const std::string make = "numpy._core.multiarray._reconstruct";
  EXPECT_TRUE(StaysOpaque(
      NumpyArray(Ints({1}), NumpyType("O8", "|"), kFalse, pickled::List({Int(1)})), {make}));
  const std::string fields = Build(Call(Global("numpy", "dtype"), {Str("V4"), kFalse, kTrue}),
                                   Tuple({Int(3), Str("|"), kNone, Tuple({Str("a")}),
                                          pickled::Dict({}), Int(4), Int(1), Int(16)}));
  EXPECT_TRUE(StaysOpaque(NumpyArray(Ints({1}), fields, kFalse, Bytes("abcd")), {make}));
  EXPECT_TRUE(StaysOpaque(
      NumpyArray(Ints({1}), Call(Global("numpy", "dtype"), {Global("ml_dtypes", "bfloat16")}),
                 kFalse, Bytes("ab")),
      {"ml_dtypes.bfloat16"}));
}

TEST(TorchValues, ArraysOfAnotherSizeThanTheirShapeAreRefused) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{3}, {1, 1}, {1LL << 62, 1LL << 62}, {}}) {
    EXPECT_TRUE(
        FailsWith(ValueOf(NumpyArray(Ints(shape), NumpyType("u2", "<"), kTrue, Bytes("abcd"))),
                  StatusCode::kDataLoss, {"<u2", "4 bytes"}));
  }
}

TEST(TorchValues, HoldTheElementsOfTensorsInside) {
  const auto tensor = [](const std::string& type, const std::vector<std::int64_t>& shape,
                         const std::string& bytes) {
    return Make(ValueKind::kTensor, bytes, {Value::Str(type), IntsAs(ValueKind::kTuple, shape)});
  };
  const std::string shorts = Storage("ShortStorage", "0", 6);
  const std::vector<std::string> storages{"aabbccddeeff"};
  EXPECT_TRUE(ComesOutAs(Tuple({Tensor(shorts, 0, {2, 3}, {3, 1})}),
                         Make(ValueKind::kTuple, {tensor("int16", {2, 3}, "aabbccddeeff")}),
                         storages));
  EXPECT_TRUE(ComesOutAs(Tensor(shorts, 0, {3, 2}, {1, 3}), tensor("int16", {3, 2}, "aaddbbeeccff"),
                         storages));
  EXPECT_TRUE(
      ComesOutAs(Tensor(shorts, 1, {2, 2}, {2, 0}), tensor("int16", {2, 2}, "bbbbdddd"), storages));
  EXPECT_TRUE(ComesOutAs(Tensor(shorts, 5, {}, {}), tensor("int16", {}, "ff"), storages));
  EXPECT_TRUE(ComesOutAs(Tensor(shorts, 0, {0, 3}, {3, 1}), tensor("int16", {0, 3}, ""), storages));
  EXPECT_TRUE(ComesOutAs(Tensor(shorts, 0, {1, 2, 1}, {1 << 30, 1, 1 << 30}),
                         tensor("int16", {1, 2, 1}, "aabb"), storages));
}

TEST(TorchValues, ApplyConjugationAndNegation) {
  const std::string flag_conj = pickled::Dict({Str("conj"), kTrue});
  const std::string flag_neg = pickled::Dict({Str("neg"), kTrue});
  const std::string bytes = Le(0x3f800000, 4) + Le(0x40000000, 4);
  const std::string storage = Storage("ComplexFloatStorage", "0", 1);
  const auto content = [&](const std::string& object) { return ValueOf(object, {bytes})->text; };
  EXPECT_EQ(content(Tensor(storage, 0, {1}, {1}, {flag_conj})),
            Le(0x3f800000, 4) + Le(0xC0000000, 4));
  EXPECT_EQ(content(Tensor(storage, 0, {1}, {1}, {flag_neg})),
            Le(0xbf800000, 4) + Le(0xC0000000, 4));
  const std::string both = pickled::Dict({Str("conj"), kTrue, Str("neg"), kTrue});
  EXPECT_EQ(content(Tensor(storage, 0, {1}, {1}, {both})), Le(0xbf800000, 4) + Le(0x40000000, 4));
  EXPECT_EQ(content(Tensor(Storage("FloatStorage", "0", 2), 1, {1}, {1}, {flag_neg})),
            Le(0xC0000000, 4));
  // Nothing has a conjugate or a negative of bool.
  EXPECT_TRUE(StaysOpaque(Tensor(Storage("BoolStorage", "0", 8), 0, {8}, {1}, {flag_neg}),
                          {"torch._utils._rebuild_tensor_v2"}, {bytes}));
}

TEST(TorchValues, WhatTheyCannotBeSaysWhatItNeedsAndIsNeverRun) {
  EXPECT_TRUE(StaysOpaque(Call(Global("os", "system"), {Str("exit 1")}), {"os.system"}));
  EXPECT_TRUE(StaysOpaque(
      pickled::List({Call(Global("b", "x"), {}), Call(Global("a", "y"), {}), Global("f", "f"),
                     Global("e", "e"), Global("d", "d"), Global("c", "c"), Global("a", "y")}),
      {"a.y", "b.x", "c.c", "d.d", "e.e"}));
  EXPECT_TRUE(StaysOpaque(Storage("FloatStorage", "0", 1), {"a storage or another part of torch"},
                          {"abcd"}));
  EXPECT_TRUE(StaysOpaque(Global("argparse", "Namespace") + ")\x81" + pickled::Dict({}) + "b",
                          {"argparse.Namespace"}));
}

std::string Nested(int levels) {
  return std::string(static_cast<std::size_t>(levels), ']') +
         std::string(static_cast<std::size_t>(levels - 1), 'a');
}

TEST(TorchValues, NestTwoHundredLevelsDeepAndNoDeeper) {
  EXPECT_EQ(ValueOf(Nested(201))->kind, ValueKind::kList);
  EXPECT_TRUE(StaysOpaque(Nested(202), {"more than 200 levels of nesting"}));
  // A list that holds itself.
  EXPECT_TRUE(StaysOpaque(std::string("]q\0h\0a", 6), {"more than 200 levels of nesting"}));
}

TEST(TorchValues, SharedObjectsCannotMakeASmallArchiveGrowWithoutBound) {
  // Ten lists of ten lists of ...: the memo makes each level cost 25 bytes.
  const auto laughs = [](std::string object) {
    for (char level = 0; level < 12; ++level) {
      const std::string get = std::string("h") + level;
      std::string next = std::string("q") + level + "0](";
      for (int i = 0; i < 10; ++i) {
        next += get;
      }
      object += next + "e";
    }
    return object;
  };
  EXPECT_TRUE(FailsWith(ValueOf(laughs("]")), StatusCode::kInvalidArgument, {"many times larger"}));
  EXPECT_TRUE(FailsWith(ValueOf(laughs(Str(std::string(1 << 20, 'x')))),
                        StatusCode::kInvalidArgument, {"many times larger"}));
  const std::string wide = Tensor(Storage("ByteStorage", "0", 1), 0, {1 << 20, 1 << 9}, {0, 0});
  EXPECT_TRUE(FailsWith(ValueOf(wide, {"x"}), StatusCode::kInvalidArgument, {"many times larger"}));
  // Sharing as in real archives is accepted.
  const std::string shared = pickled::List({"]q" + std::string(1, '\0'), std::string("h\0", 2)});
  EXPECT_TRUE(ComesOutAs(shared, List({List({}), List({})})));
}

}  // namespace
}  // namespace varve::values_test
