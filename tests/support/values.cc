#include "support/values.h"

#include <limits>

namespace varve::test {

std::vector<Value> ValuesOfEveryKind() {
  using Kind = ValueKind;
  const Value one = Value::Int(1);
  const Value text = Value::Str("k");
  const Value shape = Make(Kind::kTuple, {Value::Int(2), Value::Int(1)});
  const Value delta =
      Make(Kind::kTimeDelta, {Value::Int(-1), Value::Int(3600), Value::Int(999'999)});
  return {
      Make(Kind::kNone),
      Make(Kind::kFalse),
      Make(Kind::kTrue),
      Value::Int(std::numeric_limits<std::int64_t>::min()),
      Make(Kind::kInt, std::string(25, '\0') + '\x01'),  // 2^200.
      Value::Float(-0.1),
      Value{.kind = Kind::kComplex, .number = 1.5, .imaginary = -2},
      Value::Str("na\xC3\xAFve \xF0\x9F\x8C\x8A"),
      Make(Kind::kBytes, std::string("\0\xFF'", 3)),
      Make(Kind::kByteArray, std::string("raw")),
      List({one, text, List({})}),
      shape,
      Dict({text, one, one, text}),
      Make(Kind::kOrderedDict, {text, one}),
      Make(Kind::kSet, {text, one}),
      Make(Kind::kFrozenSet, {one}),
      Make(Kind::kCounter, {text, one}),
      Make(Kind::kDefaultDict, "list", {text, List({one})}),
      Make(Kind::kTorchSize, {Value::Int(4), Value::Int(6)}),
      Make(Kind::kTorchDType, std::string("bfloat16")),
      Make(Kind::kTorchDevice, std::string("cuda:1")),
      Make(Kind::kDateTime, "2024-02-29T12:00:00", {Make(Kind::kTimeZone, {delta})}),
      Make(Kind::kDate, std::string("2024-02-29")),
      Make(Kind::kTime, "12:00:00.5", {Make(Kind::kNone)}),
      delta,
      Make(Kind::kTimeZone, {delta, Value::Str("XYZ")}),
      Make(Kind::kZoneInfo, std::string("Europe/Berlin")),
      Make(Kind::kNumpyScalar, std::string("\x01\x02", 2), {Value::Str("<i2")}),
      Make(Kind::kNumpyArray, std::string("\x01\x02", 2), {Value::Str("|u1"), shape}),
      Make(Kind::kTensor, std::string("\x01\x02", 2), {Value::Str("uint8"), shape}),
      Make(Kind::kPickle, std::string("\x80\x04N.")),
      Make(Kind::kTensorLeaf, std::string("torch")),
      Make(Kind::kObjectLeaf),
      Make(Kind::kRange, {Value::Int(0), Value::Int(10), Value::Int(3)}),
      Make(Kind::kNamedDict, std::string("a.b:C"), {Value::Str("k"), one}),
      Make(Kind::kNamed, std::string("a:E"), {Value::Str("enum"), one, Value::Str("A")}),
      Make(Kind::kWrapped, std::string("a:T\0\x00", 5), {Value::Str("codes"), one}),
      Make(Kind::kSlice, {Make(Kind::kNone), one, Make(Kind::kNone)}),
  };
}

}  // namespace varve::test
