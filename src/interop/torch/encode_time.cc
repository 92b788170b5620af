// Dates and times as Python pickles them: the fields, big-endian, one byte each but the year (two)
// and the microsecond (three). The bit that says fold=1 is that of protocol 4: Python drops the
// fold at protocol 2, but understands it at any.

#include <algorithm>
#include <cstddef>

#include "interop/torch/encode_parts.h"
#include "interop/torch/values.h"

namespace varve {
namespace {

constexpr unsigned kFoldBit = 0x80;

/// Takes `digits` digits and one character behind them from the front of `*text`. Other characters
/// give any number: ClockState checks the whole text again.
unsigned TakeNumber(std::string_view* text, std::size_t digits) {
  unsigned number = 0;
  for (const char digit : text->substr(0, digits)) {
    number = number * 10 + static_cast<unsigned char>(digit) - '0';
  }
  text->remove_prefix(std::min(digits + 1, text->size()));
  return number;
}

void Append(unsigned number, unsigned bytes, Bytes* out) {
  while (bytes-- > 0) {
    out->push_back(static_cast<char>(number >> (8 * bytes)));
  }
}

void AppendDate(std::string_view* text, unsigned month_bits, Bytes* out) {
  Append(TakeNumber(text, 4), 2, out);
  Append(TakeNumber(text, 2) | month_bits, 1, out);
  Append(TakeNumber(text, 2), 1, out);
}

void AppendClock(std::string_view* text, unsigned hour_bits, Bytes* out) {
  Append(TakeNumber(text, 2) | hour_bits, 1, out);
  Append(TakeNumber(text, 2), 1, out);
  Append(TakeNumber(text, 2), 1, out);
  Append(TakeNumber(text, 6), 3, out);
}

/// Returns the state that datetime, date or time takes. Errors: InvalidArgument for text that
/// Python's isoformat() does not give.
Result<Bytes> ClockState(const Value& value) {
  unsigned fold = 0;
  if (value.kind != ValueKind::kDate) {
    if (value.items.size() != 2) {
      return InvalidArgument("a time without time zone and fold");
    }
    VARVE_ASSIGN_OR_RETURN(const std::int64_t given, IntOf(value.items[1], "the fold of a time"));
    fold = given != 0 ? kFoldBit : 0;
  }
  Bytes state;
  std::string_view text = value.text;
  if (value.kind == ValueKind::kTime) {
    AppendClock(&text, fold, &state);
  } else {
    AppendDate(&text, fold, &state);
  }
  if (value.kind == ValueKind::kDateTime) {
    AppendClock(&text, 0, &state);
  }
  // Python accepts nearly any state. This one must mean what the text says.
  const auto read_back = value.kind == ValueKind::kTime   ? ClockText(state)
                         : value.kind == ValueKind::kDate ? DateText(state)
                                                          : DateTimeText(state);
  if (read_back != value.text) {
    return InvalidArgument("no date or time: " + QuotedStart(value.text));
  }
  return state;
}

Status PickleClock(const Value& value, PickleWriter* pickle) {
  VARVE_ASSIGN_OR_RETURN(const Bytes state, ClockState(value));
  pickle->Global("datetime", value.kind == ValueKind::kDateTime ? "datetime"
                             : value.kind == ValueKind::kDate   ? "date"
                                                                : "time");
  pickle->BytesObject(state);
  if (value.kind == ValueKind::kDate || value.items[0].kind == ValueKind::kNone) {
    pickle->Tuple1();
  } else {
    const ValueKind zone = value.items[0].kind;
    if (zone != ValueKind::kTimeZone && zone != ValueKind::kZoneInfo) {
      return InvalidArgument("a time in a time zone that is none");
    }
    VARVE_RETURN_IF_ERROR(PickleTime(value.items[0], pickle));
    pickle->Tuple2();
  }
  pickle->Reduce();
  return Status::Ok();
}

struct Delta {
  std::int64_t days = 0;
  std::int64_t seconds = 0;
  std::int64_t microseconds = 0;
};

Result<Delta> DeltaOf(const Value& value) {
  constexpr std::string_view kWhat = "a part of a timedelta";
  if (value.kind != ValueKind::kTimeDelta || value.items.size() != 3) {
    return InvalidArgument("a timedelta that is not of three ints");
  }
  Delta delta;
  VARVE_ASSIGN_OR_RETURN(delta.days, IntOf(value.items[0], kWhat));
  VARVE_ASSIGN_OR_RETURN(delta.seconds, IntOf(value.items[1], kWhat));
  VARVE_ASSIGN_OR_RETURN(delta.microseconds, IntOf(value.items[2], kWhat));
  const auto in = [](std::int64_t number, std::int64_t low, std::int64_t high) {
    return number >= low && number <= high;
  };
  if (!in(delta.days, -999'999'999, 999'999'999) || !in(delta.seconds, 0, 86'399) ||
      !in(delta.microseconds, 0, 999'999)) {
    return InvalidArgument("a timedelta that is too large or not normalised");
  }
  return delta;
}

void PickleDelta(const Delta& delta, PickleWriter* pickle) {
  pickle->Global("datetime", "timedelta");
  pickle->Int(delta.days);
  pickle->Int(delta.seconds);
  pickle->Int(delta.microseconds);
  pickle->Tuple3();
  pickle->Reduce();
}

Status PickleTimeZone(const Value& value, PickleWriter* pickle) {
  const std::vector<Value>& items = value.items;
  const bool named = items.size() == 2;
  if (items.empty() || items.size() > 2 || (named && items[1].kind != ValueKind::kStr)) {
    return InvalidArgument("a timezone that is not an offset and a name");
  }
  VARVE_ASSIGN_OR_RETURN(const Delta offset, DeltaOf(items[0]));
  if (!TimeZoneName(offset.days, offset.seconds, offset.microseconds)) {
    return InvalidArgument("a timezone with an offset of a day or more");
  }
  pickle->Global("datetime", "timezone");
  PickleDelta(offset, pickle);
  if (named) {
    VARVE_RETURN_IF_ERROR(PickleText(items[1].text, pickle));
    pickle->Tuple2();
  } else {
    pickle->Tuple1();
  }
  pickle->Reduce();
  return Status::Ok();
}

/// Writes getattr(ZoneInfo, "_unpickle")(key, from_cache).
Status PickleZoneInfo(const Value& value, PickleWriter* pickle) {
  pickle->Global("__builtin__", "getattr");
  pickle->Global("zoneinfo", "ZoneInfo");
  pickle->Str("_unpickle");
  pickle->Tuple2();
  pickle->Reduce();
  VARVE_RETURN_IF_ERROR(PickleText(value.text, pickle));
  pickle->Bool(true);
  pickle->Tuple2();
  pickle->Reduce();
  return Status::Ok();
}

}  // namespace

Status PickleTime(const Value& value, PickleWriter* pickle) {
  switch (value.kind) {
    case ValueKind::kTimeDelta: {
      VARVE_ASSIGN_OR_RETURN(const Delta delta, DeltaOf(value));
      PickleDelta(delta, pickle);
      return Status::Ok();
    }
    case ValueKind::kTimeZone: return PickleTimeZone(value, pickle);
    case ValueKind::kZoneInfo: return PickleZoneInfo(value, pickle);
    default: return PickleClock(value, pickle);
  }
}

}  // namespace varve
