// Rendering of values for people, in Python's notation.

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "varve/value.h"

namespace varve {
namespace {

std::string FloatToString(double number) {
  if (std::isnan(number)) {
    return "nan";
  }
  if (std::isinf(number)) {
    return number < 0 ? "-inf" : "inf";
  }
  // std::to_chars gives the shortest round-trip form, as Python's repr does; Python switches to
  // an exponent at the same 1e16 and 1e-4.
  std::array<char, 32> buffer{};
  const double magnitude = std::fabs(number);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);
  if (fixed && text.find('.') == std::string::npos) {
    text += ".0";
  }
  return text;
}

// Bytes escape everything outside ASCII; text is UTF-8 already.
std::string Quoted(const std::string& text, bool is_bytes = false) {
  std::string out = "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\'' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7F || (is_bytes && byte >= 0x80)) {
      static constexpr char kDigits[] = "0123456789abcdef";
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "'";
}

class Printer {
 public:
  explicit Printer(std::size_t max_chars) : max_chars_(max_chars) {}

  std::string Take() {
    if (out_.size() > max_chars_) {
      std::size_t cut = max_chars_;
      while (cut > 0 && (static_cast<unsigned char>(out_[cut]) & 0xC0) == 0x80) {
        --cut;  // Do not cut a UTF-8 sequence.
      }
      out_.resize(cut);
      out_ += "...";
    }
    return std::move(out_);
  }

  void Print(const Value& value) {
    if (out_.size() > max_chars_) {
      return;
    }
    switch (value.kind) {
      case ValueKind::kNone: out_ += "None"; return;
      case ValueKind::kFalse: out_ += "False"; return;
      case ValueKind::kTrue: out_ += "True"; return;
      case ValueKind::kInt:
        // Decimal digits take quadratic time; Python draws its own line at 4300 of them.
        out_ += value.text.size() <= kMaxIntBytes
                    ? IntToString(value)
                    : "<int of " + std::to_string(value.text.size()) + " bytes>";
        return;
      case ValueKind::kFloat: out_ += FloatToString(value.number); return;
      case ValueKind::kComplex:
        out_ +=
            "complex(" + FloatToString(value.number) + ", " + FloatToString(value.imaginary) + ")";
        return;
      case ValueKind::kStr: out_ += Quoted(value.text); return;
      case ValueKind::kBytes: out_ += "b" + Quoted(value.text, true); return;
      case ValueKind::kByteArray: out_ += "bytearray(b" + Quoted(value.text, true) + ")"; return;
      case ValueKind::kList: Sequence("[", value, "]"); return;
      case ValueKind::kTuple: Sequence("(", value, value.items.size() == 1 ? ",)" : ")"); return;
      case ValueKind::kDict: Mapping("{", value, "}"); return;
      case ValueKind::kOrderedDict: Mapping("OrderedDict({", value, "})"); return;
      case ValueKind::kCounter: Mapping("Counter({", value, "})"); return;
      case ValueKind::kDefaultDict:
        Mapping("defaultdict(" + (value.text.empty() ? "None" : value.text) + ", {", value, "})");
        return;
      case ValueKind::kSet:
        Sequence(value.items.empty() ? "set(" : "{", value, value.items.empty() ? ")" : "}");
        return;
      case ValueKind::kFrozenSet: Sequence("frozenset({", value, "})"); return;
      case ValueKind::kTorchSize: Sequence("torch.Size([", value, "])"); return;
      case ValueKind::kTorchDType: out_ += "torch." + value.text; return;
      case ValueKind::kTorchDevice: out_ += "device(" + Quoted(value.text) + ")"; return;
      case ValueKind::kDateTime: Call("datetime", value); return;
      case ValueKind::kDate: Call("date", value); return;
      case ValueKind::kTime: Call("time", value); return;
      case ValueKind::kTimeDelta: Sequence("timedelta(", value, ")"); return;
      case ValueKind::kTimeZone: Sequence("timezone(", value, ")"); return;
      case ValueKind::kZoneInfo: Call("ZoneInfo", value); return;
      case ValueKind::kPath:
        out_ += value.items.empty() ? "Path" : value.items[0].text;
        out_ += "(" + Quoted(value.text) + ")";
        return;
      case ValueKind::kNamedDict:
      case ValueKind::kWrapped: Mapping(std::string(ClassOf(value)) + "({", value, "})"); return;
      case ValueKind::kNamed:
        out_ += std::string(ClassOf(value)) + "(";
        if (value.items.size() > 1) {
          Print(value.items[1]);
        }
        out_ += ")";
        return;
      case ValueKind::kRange: Sequence("range(", value, ")"); return;
      case ValueKind::kSlice: Sequence("slice(", value, ")"); return;
      case ValueKind::kNumpyScalar: Sequence("numpy scalar(", value, ")"); return;
      case ValueKind::kNumpyArray: Sequence("numpy array(", value, ")"); return;
      case ValueKind::kTensor: Sequence("tensor(", value, ")"); return;
      case ValueKind::kPickle:
        out_ += "<pickle of " + std::to_string(value.text.size()) + " bytes>";
        return;
      case ValueKind::kTorchSave:
        out_ += "<torch.save of " + std::to_string(value.text.size()) + " bytes";
        for (const Value& item : value.items) {
          out_ += ", needs " + item.text;
        }
        out_ += ">";
        return;
      case ValueKind::kTensorLeaf: out_ += "<tensor>"; return;
      case ValueKind::kObjectLeaf: out_ += "<object>"; return;
    }
  }

 private:
  static constexpr std::size_t kMaxIntBytes = 1024;

  void Sequence(const std::string& open, const Value& value, const std::string& close) {
    out_ += open;
    for (std::size_t i = 0; i < value.items.size() && out_.size() <= max_chars_; ++i) {
      out_ += i == 0 ? "" : ", ";
      Print(value.items[i]);
    }
    out_ += close;
  }

  void Mapping(const std::string& open, const Value& value, const std::string& close) {
    out_ += open;
    for (std::size_t i = 0; i + 1 < value.items.size() && out_.size() <= max_chars_; i += 2) {
      out_ += i == 0 ? "" : ", ";
      Print(value.items[i]);
      out_ += ": ";
      Print(value.items[i + 1]);
    }
    out_ += close;
  }

  void Call(const std::string& name, const Value& value) {
    out_ += name + "(" + Quoted(value.text) + ")";
  }

  std::size_t max_chars_;
  std::string out_;
};

}  // namespace

std::string IntToString(const Value& value) {
  if (value.text.size() <= 8) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < value.text.size(); ++i) {
      bits |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(value.text[i])) << (8 * i);
    }
    const std::size_t width = value.text.size() * 8;
    if (width > 0 && width < 64 && ((bits >> (width - 1)) & 1) != 0) {
      bits |= ~std::uint64_t{0} << width;
    }
    return std::to_string(static_cast<std::int64_t>(bits));
  }
  // Magnitude as bytes, then repeated division by ten.
  std::string digits = value.text;
  const bool negative = (static_cast<std::uint8_t>(digits.back()) & 0x80) != 0;
  if (negative) {
    unsigned carry = 1;
    for (char& byte : digits) {
      const unsigned sum = static_cast<std::uint8_t>(~byte) + carry;
      byte = static_cast<char>(sum);
      carry = sum >> 8;
    }
  }
  std::string text;
  while (!digits.empty()) {
    unsigned remainder = 0;
    for (std::size_t i = digits.size(); i-- > 0;) {
      const unsigned part = remainder * 256 + static_cast<std::uint8_t>(digits[i]);
      digits[i] = static_cast<char>(part / 10);
      remainder = part % 10;
    }
    text.insert(text.begin(), static_cast<char>('0' + remainder));
    while (!digits.empty() && digits.back() == 0) {
      digits.pop_back();
    }
  }
  return negative ? "-" + text : text;
}

std::string ToString(const Value& value, std::size_t max_chars) {
  Printer printer(max_chars);
  printer.Print(value);
  return printer.Take();
}

}  // namespace varve
