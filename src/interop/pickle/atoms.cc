// Opcodes that push a number or text.

#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "interop/pickle/machine.h"
#include "interop/pickle/text.h"

namespace varve {

// ---- numbers ----

bool PickleMachine::PushLong(std::string_view bytes, bool owned) {
  const auto sign = [&bytes](std::size_t i) { return static_cast<std::int8_t>(bytes[i]) < 0; };
  const char fill = !bytes.empty() && sign(bytes.size() - 1) ? '\xFF' : '\0';
  while (bytes.size() > 1 && bytes.back() == fill && sign(bytes.size() - 2) == (fill == '\xFF')) {
    bytes.remove_suffix(1);
  }
  if (bytes.size() > 8) {
    return owned ? PushOwned(PickleKind::kLong, std::string(bytes))
                 : PushText(PickleKind::kLong, bytes);
  }
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const char byte = i < bytes.size() ? bytes[i] : fill;
    value |= std::uint64_t{static_cast<std::uint8_t>(byte)} << (8 * i);
  }
  return PushInt(static_cast<std::int64_t>(value));
}

bool PickleMachine::BinaryFloat() {
  std::string_view bytes;
  if (!Take(8, &bytes)) {
    return false;
  }
  std::uint64_t bits = 0;
  for (const char byte : bytes) {
    bits = bits << 8 | static_cast<std::uint8_t>(byte);
  }
  return PushNew({PickleKind::kFloat, false, 0, bits});
}

bool PickleMachine::TextInt(bool is_long) {
  std::string_view line;
  if (!TakeLine(&line)) {
    return false;
  }
  if (!is_long && (line == "00" || line == "01")) {
    return PushOld(line == "01" ? kTrueNode : kFalseNode);
  }
  if (is_long && line.ends_with('L')) {
    line.remove_suffix(1);
  }
  const auto value = ParseDecimal(line);
  return value ? PushLong(*value, true) : Fail(ShownText(line) + " is no decimal number");
}

bool PickleMachine::TextFloat() {
  std::string_view line;
  if (!TakeLine(&line)) {
    return false;
  }
  const auto value = ParsePickleFloat(line);
  return value ? PushNew({PickleKind::kFloat, false, 0, std::bit_cast<std::uint64_t>(*value)})
               : Fail(ShownText(line) + " is no float");
}

// ---- text ----

bool PickleMachine::PushText(PickleKind kind, std::string_view text) {
  if (kind == PickleKind::kStr && !IsPickleUtf8(text)) {
    return Fail("a str that is not UTF-8");
  }
  if (text.size() > std::numeric_limits<std::uint32_t>::max()) {
    tree_.texts_.push_back(text);
    return PushNew({kind, true, 0, tree_.texts_.size() - 1});
  }
  const auto begin = static_cast<std::uint64_t>(text.data() - input_.data());
  return PushNew({kind, false, static_cast<std::uint32_t>(text.size()), begin});
}

bool PickleMachine::PushOwned(PickleKind kind, std::string text) {
  if (kind == PickleKind::kStr && !IsPickleUtf8(text)) {
    return Fail("a str that is not UTF-8");
  }
  tree_.texts_.push_back(tree_.owned_.emplace_back(std::move(text)));
  return PushNew({kind, true, 0, tree_.texts_.size() - 1});
}

bool PickleMachine::TextUnicode() {
  std::string_view line;
  if (!TakeLine(&line)) {
    return false;
  }
  auto text = ParseRawUnicodeEscape(line);
  return text ? PushOwned(PickleKind::kStr, std::move(*text)) : Fail("a bad \\u escape");
}

bool PickleMachine::TextString() {
  std::string_view line;
  if (!TakeLine(&line)) {
    return false;
  }
  auto text = ParseStringRepr(line);
  if (!text) {
    return Fail("a str that is not quoted as repr() does");
  }
  const PickleKind kind = IsPickleUtf8(*text) ? PickleKind::kStr : PickleKind::kBytes;
  return PushOwned(kind, std::move(*text));
}

bool PickleMachine::PushPython2Str(std::string_view bytes) {
  return PushText(IsPickleUtf8(bytes) ? PickleKind::kStr : PickleKind::kBytes, bytes);
}

}  // namespace varve
