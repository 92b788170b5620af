#include <algorithm>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "interop/torch/archive.h"
#include "interop/torch/encode.h"
#include "interop/torch/encode_parts.h"
#include "interop/zip/directory.h"
#include "support/archives.h"
#include "support/pickles.h"
#include "support/status_matchers.h"
#include "support/values.h"

namespace varve::encode_value_test {
namespace {

using test::Dict;
using test::FailsWith;
using test::IsOk;
using test::List;
using test::Make;
using test::Watched;
using Kind = ValueKind;

Value Text(Kind kind, std::string text) { return Make(kind, std::move(text)); }

Value Delta(std::int64_t days, std::int64_t seconds, std::int64_t microseconds) {
  return Make(Kind::kTimeDelta, {Value::Int(days), Value::Int(seconds), Value::Int(microseconds)});
}

Value Shape(const Dims& sizes) {
  Value shape{.kind = Kind::kTuple};
  for (const std::uint64_t size : sizes) {
    shape.items.push_back(Value::Int(static_cast<std::int64_t>(size)));
  }
  return shape;
}

Value Time(Kind kind, std::string text, Value zone = {}, int fold = 0) {
  return Make(kind, std::move(text), {std::move(zone), Value::Int(fold)});
}

Value Numpy(std::string type, const Dims& shape, std::string bytes) {
  return Make(Kind::kNumpyArray, std::move(bytes), {Value::Str(std::move(type)), Shape(shape)});
}

Value Tensor(std::string type, const Dims& shape, std::string bytes) {
  return Make(Kind::kTensor, std::move(bytes), {Value::Str(std::move(type)), Shape(shape)});
}

std::vector<Value> PlainValues() {
  const Value one = Value::Int(1);
  std::vector<Value> values{
      Make(Kind::kNone),
      Make(Kind::kTrue),
      Make(Kind::kFalse),
      Value::Int(0),
      Value::Int(-1),
      Value::Int(65'536),
      Value::Int(std::int64_t{1} << 40),
      Text(Kind::kInt, std::string(25, '\0') + '\x01'),
      Text(Kind::kInt, std::string(300, '\x55')),
      Value::Float(-0.0),
      Value{.kind = Kind::kComplex, .number = -0.0, .imaginary = 2.5},
      Value::Str(""),
      Value::Str("na\xC3\xAFve \xED\xA0\x80"),  // A lone surrogate.
      Text(Kind::kBytes, ""),
      Text(Kind::kBytes, std::string("\0\x7F\x80\xFF", 4)),
      Text(Kind::kByteArray, ""),
      Text(Kind::kByteArray, "raw\xFE"),
      List({}),
      List({one, List({}), Value::Str("x")}),
      Shape({}),
      Shape({1}),
      Shape({1, 2}),
      Shape({1, 2, 3}),
      Shape({1, 2, 3, 4}),
      Dict({}),
      Dict({Value::Str("k"), one, one, Value::Str("k"), Shape({1, 2}), Make(Kind::kNone)}),
      Make(Kind::kOrderedDict, {one, one}),
      Make(Kind::kSet, {one, Value::Str("k")}),
      Make(Kind::kFrozenSet, {one}),
      Make(Kind::kCounter, {Value::Str("k"), one}),
      Make(Kind::kTorchSize, {Value::Int(4), Value::Int(6)}),
      Text(Kind::kTorchDType, "bfloat16"),
      Text(Kind::kTorchDevice, "cuda:1"),
      Make(Kind::kRange, {Value::Int(10), Value::Int(0), Value::Int(-3)}),
      Make(Kind::kSlice, {Make(Kind::kNone), one, Value::Str("any")}),
  };
  for (const char* factory : {"", "bool", "dict", "float", "int", "list", "set", "str", "tuple"}) {
    values.push_back(Make(Kind::kDefaultDict, factory, {Value::Str("k"), one}));
  }
  return values;
}

std::vector<Value> Times() {
  const Value berlin = Text(Kind::kZoneInfo, "Europe/Berlin");
  const Value zone = Make(Kind::kTimeZone, {Delta(-1, 82'800, 1)});
  return {
      Delta(-999'999'999, 86'399, 999'999),
      zone,
      Make(Kind::kTimeZone, {Delta(0, 3600, 0), Value::Str("here")}),
      berlin,
      Text(Kind::kDate, "0001-01-01"),
      Text(Kind::kDate, "2024-02-29"),
      Time(Kind::kDateTime, "9999-12-31T23:59:59.999999"),
      Time(Kind::kDateTime, "2024-10-27T02:30:00", berlin, 1),
      Time(Kind::kDateTime, "2024-10-27T02:30:00.000001", zone),
      Time(Kind::kTime, "00:00:00"),
      Time(Kind::kTime, "23:59:59.100000", zone, 1),
  };
}

std::vector<Value> Arrays() {
  const auto scalar = [](std::string type, std::string bytes) {
    return Make(Kind::kNumpyScalar, std::move(bytes), {Value::Str(std::move(type))});
  };
  return {
      scalar("<f4", "\x01\x02\x03\x80"),
      scalar("|b1", "\x01"),
      scalar("|S3", "abc"),
      scalar("|S0", ""),
      scalar("<U2", "a\1\1\1b\2\2\2"),
      scalar("|V3", "a\xFF\1"),
      scalar("<M8[ns]", "12345678"),
      scalar("<m8[25s]", "12345678"),
      scalar("<M8", "12345678"),
      Numpy("<i2", {}, "\x01\x02"),
      Numpy("|u1", {0, 3}, ""),
      Numpy(">f8", {2, 1}, "0123456789abcdef"),
      Numpy("|S2", {3}, "aabbcc"),
      Numpy("<U0", {7}, ""),
  };
}

TEST(ValueArchive, EveryValueReadsBackAsItWas) {
  std::vector<Value> values = PlainValues();
  for (const std::vector<Value>& more : {Times(), Arrays()}) {
    values.insert(values.end(), more.begin(), more.end());
  }
  values.push_back(List(values));
  for (const Value& value : values) {
    const auto archive = EncodeValueArchive(value);
    ASSERT_TRUE(IsOk(archive)) << ToString(value);
    const auto back = ReadValueItem(*archive);
    ASSERT_TRUE(IsOk(back)) << ToString(value);
    EXPECT_EQ(*back, value) << ToString(value) << " came back as " << ToString(*back);
  }
}

TEST(ValueArchive, PicklesNumpyTimesAsNumpyDoes) {
  namespace p = test::pickled;
  const auto archive =
      EncodeValueArchive(Make(Kind::kNumpyScalar, "12345678", {Value::Str("<M8[25s]")}));
  ASSERT_TRUE(IsOk(archive));
  const auto record = (*ReadZipDirectory(archive->size(), Watched(*archive)))[0];
  const auto begin = FindRecordContent(record, archive->size(), Watched(*archive));
  ASSERT_TRUE(IsOk(begin));
  const std::string zero(1, '\0');
  const std::string one = "K\x01";
  const std::string minus_one = "J\xFF\xFF\xFF\xFF";
  EXPECT_EQ(archive->substr(*begin, record.size),
            p::Pickle(p::Global("numpy.core.multiarray", "scalar") + "q" + zero +
                      p::Global("numpy", "dtype") + "q\x01" + p::Str("M8") + p::kFalse + p::kTrue +
                      "\x87R(K\x04" + p::Str("<") + "NNN" + minus_one + minus_one + "K" + zero +
                      "}(" + p::Global("_codecs", "encode") + "q\x02" + p::Str("s") +
                      p::Str("latin1") + "\x86RK\x19" + one + one + "t\x86tb" + "h\x02" +
                      p::Str("12345678") + p::Str("latin1") + "\x86R\x86R"));
}

TEST(ValueArchive, LongContainersReadBackAsTheyWere) {
  for (const std::int64_t count : {999, 1000, 1001, 2500}) {
    Value list{.kind = Kind::kList};
    Value dict{.kind = Kind::kDict};
    for (std::int64_t i = 0; i < count; ++i) {
      list.items.push_back(Value::Int(i));
      dict.items.push_back(Value::Int(i));
      dict.items.push_back(Value::Str(std::to_string(i)));
    }
    for (const Value& value : {list, dict}) {
      const auto archive = EncodeValueArchive(value);
      ASSERT_TRUE(IsOk(archive));
      const auto back = ReadValueItem(*archive);
      ASSERT_TRUE(IsOk(back));
      EXPECT_EQ(*back, value);
    }
  }
}

TEST(ValueArchive, TensorsInsideAreStoragesOfTheArchive) {
  Value value{.kind = Kind::kList};
  for (char i = 0; i < 12; ++i) {
    value.items.push_back(Tensor("int16", {2, 3}, std::string(12, i)));
  }
  value.items.push_back(Tensor("float8_e5m2", {}, "\x3C"));
  value.items.push_back(Tensor("float64", {0, 4}, ""));
  const auto archive = EncodeValueArchive(value);
  ASSERT_TRUE(IsOk(archive));
  const auto back = ReadValueItem(*archive);
  ASSERT_TRUE(IsOk(back));
  EXPECT_EQ(*back, value);

  const auto records = ReadZipDirectory(archive->size(), Watched(*archive));
  ASSERT_TRUE(IsOk(records));
  ASSERT_EQ(records->size(), 3 + value.items.size());
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const ZipRecord& record = (*records)[3 + i];
    EXPECT_EQ(record.name, "archive/data/" + std::to_string(i));
    EXPECT_EQ(record.crc32, Crc32ZipExtend(0, AsByteSpan(value.items[i].text)));
    const auto begin = FindRecordContent(record, archive->size(), Watched(*archive));
    ASSERT_TRUE(IsOk(begin));
    EXPECT_EQ(*begin % 64, 0U);
  }
}

TEST(ValueArchive, AnArchiveIsGivenBackUnchanged) {
  const Value value = Make(Kind::kTorchSave, "PK whatever", {Value::Str("a.Class")});
  const auto archive = EncodeValueArchive(value);
  ASSERT_TRUE(IsOk(archive));
  EXPECT_EQ(*archive, "PK whatever");
}

/// Returns what the pickle of an archive says, which is all that torch looks at.
Value PickledIn(const std::string& archive) {
  const auto opened = TorchArchive::Open(archive.size(), ReadFrom(archive));
  EXPECT_TRUE(IsOk(opened));
  const auto value = opened->ValueAt(opened->tree().root(), ReadFrom(archive));
  EXPECT_TRUE(IsOk(value));
  return value->value_or(Value{});
}

TEST(ValueArchive, AnObjectIsPickledAsItsPlainValueAndReadAsItself) {
  const Value seven = Value::Int(7);
  const Value named = Make(Kind::kNamed, std::string("m:E"), {Value::Str("enum"), seven});
  const Value dict = Make(Kind::kNamedDict, std::string("m:D"), {Value::Str("k"), seven});
  const std::vector<std::pair<Value, Value>> pairs{
      {named, seven}, {dict, Dict({Value::Str("k"), seven})}, {List({named}), List({seven})}};
  for (const auto& [value, plain] : pairs) {
    auto archive = EncodeValueArchive(value);
    ASSERT_TRUE(IsOk(archive));
    EXPECT_EQ(PickledIn(*archive), plain);
    const auto read = ReadValueItem(*archive);
    ASSERT_TRUE(IsOk(read));
    EXPECT_EQ(*read, value);
    (*archive)[archive->find(kValueRecord) + kValueRecord.size()] ^= 0x7F;
    // Damaged: not the plain value in its place.
    EXPECT_TRUE(FailsWith(ReadValueItem(*archive), StatusCode::kDataLoss,
                          {std::string(kValueRecord), "checksum"}));
  }
}

TEST(ValueArchive, ALargeObjectIsItsPlainValueAlone) {
  const Value text = Value::Str(std::string(kMaxValueRecordBytes, 'x'));
  const Value named = Make(Kind::kNamed, std::string("m:V"), {Value::Str("str"), text});
  EXPECT_EQ(*EncodeValueArchive(named), *EncodeValueArchive(text));
}

TEST(ValueArchive, WhatNeedsAPickleOfItsOwnIsRefused) {
  for (const Value& value :
       {Text(Kind::kPickle, "\x80\x04N."), Text(Kind::kTensorLeaf, "torch"),
        Make(Kind::kObjectLeaf), Make(Kind::kDefaultDict, "os.system", {}),
        Make(Kind::kDefaultDict, "eval", {}), Make(Kind::kDefaultDict, "bool dict", {}),
        Tensor("quint8", {1}, "x")}) {
    EXPECT_TRUE(FailsWith(EncodeValueArchive(List({value})), StatusCode::kUnimplemented,
                          {"cannot be a torch.save archive"}))
        << ToString(value);
  }
  EXPECT_TRUE(FailsWith(EncodeValueArchive(List({Text(Kind::kTorchSave, "PK")})),
                        StatusCode::kUnimplemented, {"inside another value"}));
}

TEST(ValueArchive, ANameThatIsNoneIsRefused) {
  // In a pickle, a line break would end the name, and opcodes would follow.
  for (const char* name : {"", "float32\ncos\nsystem", "a.b", "float32 "}) {
    EXPECT_TRUE(FailsWith(EncodeValueArchive(Text(Kind::kTorchDType, name)),
                          StatusCode::kInvalidArgument, {"is no torch dtype"}));
  }
}

TEST(ValueArchive, TextThatIsNotUtf8IsRefused) {
  for (const Kind kind : {Kind::kStr, Kind::kZoneInfo, Kind::kTorchDevice}) {
    EXPECT_TRUE(FailsWith(EncodeValueArchive(Text(kind, "a\xC3")), StatusCode::kInvalidArgument,
                          {"not UTF-8"}));
  }
}

TEST(ValueArchive, TimesThatPythonHasNotAreRefused) {
  const Value none = Make(Kind::kNone);
  for (const Value& value : {
           Text(Kind::kDate, "2023-02-29"),
           Text(Kind::kDate, "2023-13-01"),
           Text(Kind::kDate, "2023-1-01"),
           Text(Kind::kDate, "2023-01-01T"),
           Text(Kind::kDate, ""),
           Time(Kind::kDateTime, "2023-01-01"),
           Time(Kind::kDateTime, "2023-01-01 10:00:00"),
           Time(Kind::kDateTime, "2023-01-01T10:00:00+01:00"),
           Time(Kind::kTime, "24:00:00"),
           Time(Kind::kTime, "10:00:00.5"),
           Time(Kind::kTime, "10:00:00", Value::Int(3)),
           Time(Kind::kTime, "10:00:00", Delta(0, 0, 0)),
           Make(Kind::kTime, "10:00:00", {none}),
           Make(Kind::kTime, "10:00:00", {none, none}),
           Delta(0, 86'400, 0),
           Delta(1'000'000'000, 0, 0),
           Make(Kind::kTimeDelta, {Value::Int(1)}),
           Make(Kind::kTimeZone, {Delta(1, 0, 0)}),
           Make(Kind::kTimeZone, {Delta(-1, 0, 0)}),
           Make(Kind::kTimeZone, {Delta(0, 0, 0), none}),
           Make(Kind::kTimeZone),
       }) {
    EXPECT_TRUE(FailsWith(EncodeValueArchive(value), StatusCode::kInvalidArgument))
        << ToString(value);
  }
}

TEST(ValueArchive, ArraysWhoseBytesDoNotFitAreRefused) {
  const Value any = Value::Str("<f4");
  for (const Value& value : {
           Numpy("<f4", {2}, "1234"),
           Numpy("<f4", {std::uint64_t{1} << 62, 4}, ""),
           Numpy("|O8", {1}, "12345678"),
           Numpy("f4", {1}, "1234"),
           Numpy("=f4", {1}, "1234"),
           Numpy("<U4611686018427387905", {1}, "1234"),
           Numpy("<f4x", {1}, "1234"),
           Numpy("<f99999999999999999999", {1}, "1234"),
           Numpy("<M8[parsec]", {1}, "12345678"),
           Numpy("<M8[0s]", {1}, "12345678"),
           Numpy("<M8[", {1}, "12345678"),
           Numpy("<M4[s]", {1}, "1234"),
           Make(Kind::kNumpyArray, "1234", {any, List({Value::Int(1)})}),
           Make(Kind::kNumpyArray, "1234", {any, Make(Kind::kTuple, {any})}),
           Make(Kind::kNumpyArray, "", {any, Make(Kind::kTuple, {Value::Int(-1), Value::Int(0)})}),
           Make(Kind::kNumpyArray, "1234", {any}),
           Make(Kind::kNumpyScalar, "123", {any}),
           Make(Kind::kNumpyScalar),
           Tensor("float32", {2}, "1234"),
           Tensor("float32", {std::uint64_t{1} << 62}, ""),
           Make(Kind::kTensor, "1234", {any}),
       }) {
    EXPECT_TRUE(FailsWith(EncodeValueArchive(value), StatusCode::kInvalidArgument))
        << ToString(value);
  }
}

TEST(ValueArchive, ContainersThatPythonHasNotAreRefused) {
  const Value one = Value::Int(1);
  for (const Value& value : {
           Dict({one}),
           Make(Kind::kCounter, {one, one, one}),
           Make(Kind::kTorchSize, {Value::Str("x")}),
           Make(Kind::kRange, {one, one}),
           Make(Kind::kRange, {one, one, Value::Int(0)}),
           Make(Kind::kRange, {one, one, Value::Float(1)}),
           Make(Kind::kSlice, {one}),
       }) {
    EXPECT_TRUE(FailsWith(EncodeValueArchive(value), StatusCode::kInvalidArgument))
        << ToString(value);
  }
}

TEST(ValueArchive, NestingEndsWhereDecodeValueEndsIt) {
  Value value;
  for (int i = 0; i < 256; ++i) {
    value = List({std::move(value)});
  }
  EXPECT_TRUE(IsOk(EncodeValueArchive(value)));
  EXPECT_TRUE(FailsWith(EncodeValueArchive(List({std::move(value)})), StatusCode::kInvalidArgument,
                        {"deeper than 256"}));
}

}  // namespace
}  // namespace varve::encode_value_test
