#include "interop/torch/encode_parts.h"

#include <algorithm>

#include "interop/pickle/text.h"

namespace varve {

std::string QuotedStart(std::string_view text) {
  constexpr std::size_t kMaxChars = 40;
  return "\"" + std::string(text.substr(0, kMaxChars)) + "\"";
}

Status PickleText(std::string_view text, PickleWriter* pickle) {
  if (!IsPickleUtf8(text)) {
    return InvalidArgument("text that is not UTF-8: " + QuotedStart(text));
  }
  pickle->Str(text);
  return Status::Ok();
}

Status PickleRange(const Value& value, PickleWriter* pickle) {
  const auto is_int = [](const Value& item) { return item.kind == ValueKind::kInt; };
  if (value.items.size() != 3 || !std::all_of(value.items.begin(), value.items.end(), is_int)) {
    return InvalidArgument("a range that is not of three ints");
  }
  const std::string& step = value.items[2].text;
  if (step.find_first_not_of('\0') == std::string::npos) {
    return InvalidArgument("a range of step 0");
  }
  pickle->Global("__builtin__", "xrange");
  for (const Value& item : value.items) {
    pickle->Int(item.text);
  }
  pickle->Tuple3();
  pickle->Reduce();
  return Status::Ok();
}

Result<std::int64_t> IntOf(const Value& value, std::string_view what) {
  if (value.kind != ValueKind::kInt || value.text.size() > sizeof(std::int64_t)) {
    return InvalidArgument(std::string(what) + " is no int of 64 bits");
  }
  const bool negative = !value.text.empty() && (value.text.back() & 0x80) != 0;
  std::uint64_t bits = negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = value.text.size(); i-- > 0;) {
    bits = bits << 8 | static_cast<unsigned char>(value.text[i]);
  }
  return static_cast<std::int64_t>(bits);
}

Result<Dims> ShapeOf(const Value& value, std::string_view what) {
  if (value.kind != ValueKind::kTuple) {
    return InvalidArgument(std::string(what) + " is no tuple");
  }
  Dims shape;
  shape.reserve(value.items.size());
  for (const Value& item : value.items) {
    VARVE_ASSIGN_OR_RETURN(const std::int64_t size, IntOf(item, what));
    if (size < 0) {
      return InvalidArgument(std::string(what) + " has a negative size");
    }
    shape.push_back(static_cast<std::uint64_t>(size));
  }
  return shape;
}

}  // namespace varve
