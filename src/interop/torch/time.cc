// Dates and times as Python pickles them: the fields, big-endian, one byte each but the year (two)
// and the microsecond (three).

#include <array>
#include <cstdlib>

#include "interop/torch/parts.h"
#include "interop/torch/values.h"

namespace varve {
namespace {

int Byte(std::string_view state, std::size_t at) { return static_cast<unsigned char>(state[at]); }

/// Returns `value` with zeros before it, `digits` wide.
std::string Padded(std::int64_t value, std::size_t digits) {
  const std::string text = std::to_string(value);
  return text.size() < digits ? std::string(digits - text.size(), '0') + text : text;
}

int DaysOf(int year, int month) {
  constexpr std::array<int, 12> kDays{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
  return kDays[static_cast<std::size_t>(month - 1)] + (leap && month == 2 ? 1 : 0);
}

// The bit that protocols from 4 on use for fold=1, in the month's byte or the hour's.
constexpr int kFold = 0x80;

std::optional<std::string> DateOf(int year, int month, int day) {
  if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1 || day > DaysOf(year, month)) {
    return std::nullopt;
  }
  return Padded(year, 4) + "-" + Padded(month, 2) + "-" + Padded(day, 2);
}

std::optional<std::string> ClockOf(int hour, std::string_view rest) {
  const int minute = Byte(rest, 0);
  const int second = Byte(rest, 1);
  const int microsecond = Byte(rest, 2) << 16 | Byte(rest, 3) << 8 | Byte(rest, 4);
  if (hour > 23 || minute > 59 || second > 59 || microsecond > 999'999) {
    return std::nullopt;
  }
  const std::string text = Padded(hour, 2) + ":" + Padded(minute, 2) + ":" + Padded(second, 2);
  return microsecond == 0 ? text : text + "." + Padded(microsecond, 6);
}

}  // namespace

std::optional<std::string> DateText(std::string_view state) {
  if (state.size() != 4) {
    return std::nullopt;
  }
  return DateOf(Byte(state, 0) << 8 | Byte(state, 1), Byte(state, 2), Byte(state, 3));
}

std::optional<std::string> ClockText(std::string_view state) {
  if (state.size() != 6) {
    return std::nullopt;
  }
  return ClockOf(Byte(state, 0) & ~kFold, state.substr(1));
}

std::optional<std::string> DateTimeText(std::string_view state) {
  if (state.size() != 10) {
    return std::nullopt;
  }
  const auto date =
      DateOf(Byte(state, 0) << 8 | Byte(state, 1), Byte(state, 2) & ~kFold, Byte(state, 3));
  const auto clock = ClockOf(Byte(state, 4), state.substr(5));
  if (!date || !clock) {
    return std::nullopt;
  }
  return *date + "T" + *clock;
}

std::optional<std::string> TimeZoneName(std::int64_t days, std::int64_t seconds,
                                        std::int64_t microseconds) {
  // A negative offset is days = -1 and a positive rest.
  constexpr std::int64_t kDay = 86'400;
  constexpr std::int64_t kMillion = 1'000'000;
  if (days < -1 || days > 0 || (days == -1 && seconds == 0 && microseconds == 0)) {
    return std::nullopt;
  }
  const std::int64_t total = (days * kDay + seconds) * kMillion + microseconds;
  if (total == 0) {
    return "UTC";
  }
  const std::int64_t size = std::abs(total);
  const std::int64_t whole = size / kMillion;
  std::string name = std::string("UTC") + (total < 0 ? "-" : "+") + Padded(whole / 3600, 2) + ":" +
                     Padded(whole / 60 % 60, 2);
  if (whole % 60 != 0 || size % kMillion != 0) {
    name += ":" + Padded(whole % 60, 2);
  }
  if (size % kMillion != 0) {
    name += "." + Padded(size % kMillion, 6);
  }
  return name;
}

bool TorchValues::ConvertClock(std::span<const PickleRef> arguments, ValueKind kind, int depth,
                               Value* out) {
  // (state) or (state, tzinfo); see time.cc.
  if (arguments.empty() || arguments.size() > (kind == ValueKind::kDate ? 1U : 2U)) {
    return false;
  }
  constexpr std::uint64_t kMaxStateBytes = 10;
  const auto state = BytesAt(tree_, arguments[0], kMaxStateBytes);
  if (!state) {
    return false;
  }
  if (kind == ValueKind::kDate) {
    return Text(kind, DateText(*state), out);
  }
  const bool day = kind == ValueKind::kDateTime;
  if (!Text(kind, day ? DateTimeText(*state) : ClockText(*state), out)) {
    return false;
  }
  Value zone;
  if (arguments.size() == 2 && !Convert(arguments[1], depth + 1, &zone)) {
    return false;
  }
  if (zone.kind != ValueKind::kNone && zone.kind != ValueKind::kTimeZone &&
      zone.kind != ValueKind::kZoneInfo) {
    return false;
  }
  const bool fold = ((*state)[day ? 2 : 0] & 0x80) != 0;
  out->items = {std::move(zone), Value::Int(fold ? 1 : 0)};
  return true;
}

bool TorchValues::ConvertTimeZone(std::span<const PickleRef> arguments, int depth, Value* out) {
  out->kind = ValueKind::kTimeZone;
  if (arguments.empty() || arguments.size() > 2 || !ConvertAll(arguments, depth, out) ||
      out->items[0].kind != ValueKind::kTimeDelta) {
    return false;
  }
  const std::span<const PickleRef> offset = ArgumentsOf(tree_, arguments[0]);
  const auto plain =
      TimeZoneName(tree_.integer(offset[0]), tree_.integer(offset[1]), tree_.integer(offset[2]));
  if (out->items.size() == 2) {
    if (out->items[1].kind != ValueKind::kStr) {
      return false;
    }
    if (out->items[1].text == plain) {
      out->items.pop_back();  // A name that says no more than the offset.
    }
  }
  return plain.has_value();
}

}  // namespace varve
