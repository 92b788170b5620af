// The value encoding of docs/format.md section "Values": one kind byte, then the kind's fields.

#include <algorithm>
#include <cstddef>

#include "base/bytes.h"
#include "format/structure.h"
#include "varve/value.h"

namespace varve {
namespace {

// Deeper nesting than any real state; keeps the recursive decoder's stack small.
constexpr int kMaxDepth = 256;

struct Fields {
  bool text = false;
  bool number = false;
  bool imaginary = false;
  bool items = false;
};

Fields FieldsOf(ValueKind kind) {
  switch (kind) {
    case ValueKind::kNone:
    case ValueKind::kFalse:
    case ValueKind::kTrue:
    case ValueKind::kObjectLeaf: return {};
    case ValueKind::kFloat: return {.number = true};
    case ValueKind::kComplex: return {.number = true, .imaginary = true};
    case ValueKind::kInt:
    case ValueKind::kStr:
    case ValueKind::kBytes:
    case ValueKind::kByteArray:
    case ValueKind::kTorchDType:
    case ValueKind::kTorchDevice:
    case ValueKind::kDate:
    case ValueKind::kZoneInfo:
    case ValueKind::kPickle:
    case ValueKind::kTensorLeaf: return {.text = true};
    case ValueKind::kList:
    case ValueKind::kTuple:
    case ValueKind::kDict:
    case ValueKind::kOrderedDict:
    case ValueKind::kSet:
    case ValueKind::kFrozenSet:
    case ValueKind::kCounter:
    case ValueKind::kTorchSize:
    case ValueKind::kTimeDelta:
    case ValueKind::kTimeZone:
    case ValueKind::kRange:
    case ValueKind::kSlice: return {.items = true};
    case ValueKind::kDefaultDict:
    case ValueKind::kDateTime:
    case ValueKind::kTime:
    case ValueKind::kNumpyScalar:
    case ValueKind::kNumpyArray:
    case ValueKind::kTensor:
    case ValueKind::kTorchSave:
    case ValueKind::kPath:
    case ValueKind::kNamedDict:
    case ValueKind::kNamed:
    case ValueKind::kWrapped: return {.text = true, .items = true};
  }
  return {};
}

bool IsSet(ValueKind kind) { return kind == ValueKind::kSet || kind == ValueKind::kFrozenSet; }

void Encode(const Value& value, ByteWriter* out, Bytes* buffer) {
  const Fields fields = FieldsOf(value.kind);
  out->U8(static_cast<std::uint8_t>(value.kind));
  if (fields.number) {
    out->F64(value.number);
  }
  if (fields.imaginary) {
    out->F64(value.imaginary);
  }
  if (fields.text) {
    out->String(value.text);
  }
  if (!fields.items) {
    return;
  }
  out->Varint(value.items.size());
  if (IsSet(value.kind)) {
    // Python's set order varies between processes; the stored order must not.
    std::vector<std::string> encoded;
    encoded.reserve(value.items.size());
    for (const Value& item : value.items) {
      encoded.push_back(EncodeValue(item));
    }
    std::sort(encoded.begin(), encoded.end());
    for (const std::string& item : encoded) {
      buffer->append(item);
    }
    return;
  }
  for (const Value& item : value.items) {
    Encode(item, out, buffer);
  }
}

/// Reads one value into `value`; where that is null it only checks the bytes.
void Decode(ByteReader* in, int depth, Status* newer, Value* value) {
  if (depth > kMaxDepth) {
    in->Fail("value nests too deeply");
    return;
  }
  const std::uint8_t kind = in->U8();
  if (kind >= kValueKindCount) {
    if (newer->ok()) {
      *newer = Unimplemented("value kind " + std::to_string(kind) +
                             " is not known to this version of Varve");
    }
    in->Fail("unknown value kind");
    return;
  }
  Value unused;
  Value& into = value == nullptr ? unused : *value;
  into.kind = static_cast<ValueKind>(kind);
  const Fields fields = FieldsOf(into.kind);
  if (fields.number) {
    into.number = in->F64();
  }
  if (fields.imaginary) {
    into.imaginary = in->F64();
  }
  if (fields.text) {
    const std::string_view text = in->String();
    if (value != nullptr) {
      value->text = text;
    }
  }
  if (fields.items) {
    const std::uint64_t count = in->Count();
    if (IsMapping(into.kind) && count % 2 != 0) {
      in->Fail("mapping with a key but no value");
    }
    for (std::uint64_t i = 0; i < count && !in->failed(); ++i) {
      Decode(in, depth + 1, newer, value == nullptr ? nullptr : &value->items.emplace_back());
    }
  }
}

/// Reads the whole of `data`, see Decode.
Status DecodeAll(std::string_view data, Value* value) {
  ByteReader in(data);
  Status newer;
  Decode(&in, 0, &newer, value);
  VARVE_RETURN_IF_ERROR(newer);
  return in.Finish().Annotate("decode value");
}

}  // namespace

Value Value::Int(std::int64_t value) {
  Value out{.kind = ValueKind::kInt};
  // Shortest two's complement form, as Python's int.to_bytes with signed=True would give.
  do {
    out.text.push_back(static_cast<char>(value));
    value >>= 8;
  } while (!((value == 0 && (out.text.back() & 0x80) == 0) ||
             (value == -1 && (out.text.back() & 0x80) != 0)));
  return out;
}

Value Value::Float(double value) { return {.kind = ValueKind::kFloat, .number = value}; }

Value Value::Str(std::string text) {
  Value out{.kind = ValueKind::kStr};
  out.text = std::move(text);
  return out;
}

std::string_view ClassOf(const Value& value) {
  return std::string_view(value.text).substr(0, value.text.find('\0'));
}

bool operator==(const Value& a, const Value& b) {
  // By encoding: NaNs of equal bits are equal, and sets compare without order.
  return EncodeValue(a) == EncodeValue(b);
}

std::string EncodeValue(const Value& value) {
  Bytes buffer;
  ByteWriter out(&buffer);
  Encode(value, &out, &buffer);
  return buffer;
}

Result<Value> DecodeValue(std::string_view data) {
  Value value;
  VARVE_RETURN_IF_ERROR(DecodeAll(data, &value));
  return value;
}

Status CheckEncodedValue(std::string_view data) { return DecodeAll(data, nullptr); }

}  // namespace varve
