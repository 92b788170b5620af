/// One list of a struct's fields for both directions. A struct that is sent between processes lists
/// its fields once, in the order of the bytes:
///
///   template <class Archive>
///   void Fields(Archive& archive, FieldsOf<Archive, Point>& point) {
///     archive(point.x, point.y, point.name);
///     archive.Check([&] { return point.x <= kMost; }, "a point outside of the map");
///   }
///
/// EncodeFields and DecodeFields do the rest, so no two functions have to agree about an order.
/// `Fields` stands in the namespace of the struct, where argument-dependent lookup finds it (it
/// does not look into unnamed namespaces).
///
/// Bytes: a bool is 0 or 1; an unsigned number is a LEB128 varint, a std::uint8_t one byte, a
/// double eight; a string, a list and a map begin with their count; an optional with a bool; an
/// array of octets is as it is. `Fixed` gives numbers their full width, which is smaller for
/// checksums and other numbers that look random.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "varve/status.h"

namespace varve {

/// `const T` for an archive that writes, `T` for one that reads.
template <class Archive, class T>
using FieldsOf = std::conditional_t<Archive::kWrites, const T, T>;

/// A std::vector, or another list that grows at its end.
template <class List>
concept GrowingList = requires(List list) {
  typename List::value_type;
  list.emplace_back();
};

/// Appends fields to a byte string.
class FieldWriter {
 public:
  static constexpr bool kWrites = true;
  explicit FieldWriter(Bytes* out) : out_(out) {}

  template <class... T>
  void operator()(const T&... fields) {
    (Put(fields), ...);
  }

  template <std::unsigned_integral T>
  void Fixed(T number) {
    if constexpr (sizeof(T) == 4) {
      out_.U32(number);
    } else {
      out_.U64(number);
    }
  }
  template <class T>
  void Fixed(const std::vector<T>& numbers) {
    out_.Varint(numbers.size());
    for (const T number : numbers) {
      Fixed(number);
    }
  }

  /// Appends one byte; the reader refuses a number outside of [first, last].
  template <class T>
  void Enum(T value, T /*first*/, T /*last*/, std::string_view /*reason*/) {
    out_.U8(static_cast<std::uint8_t>(value));
  }

  /// Does nothing: a writer's own values are valid.
  template <class Holds>
  void Check(const Holds& /*holds*/, std::string_view /*reason*/) {}

 private:
  void Put(bool flag) { out_.U8(flag ? 1 : 0); }
  void Put(std::uint8_t number) { out_.U8(number); }
  void Put(std::uint32_t number) { out_.Varint(number); }
  void Put(std::uint64_t number) { out_.Varint(number); }
  void Put(double number) { out_.F64(number); }
  void Put(const std::string& text) { out_.String(text); }
  void Put(std::string_view text) { out_.String(text); }
  template <std::size_t kSize>
  void Put(const std::array<std::uint8_t, kSize>& octets) {
    out_.Raw({reinterpret_cast<const char*>(octets.data()), kSize});
  }
  template <class T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value) {
      Put(*value);
    }
  }
  template <GrowingList List>
  void Put(const List& list) {
    out_.Varint(list.size());
    for (const auto& item : list) {
      Put(item);
    }
  }
  template <class Key, class T, class Less>
  void Put(const std::map<Key, T, Less>& map) {
    out_.Varint(map.size());
    for (const auto& [key, value] : map) {
      Put(key);
      Put(value);
    }
  }
  template <class T>
  void Put(const T& value) {
    Fields(*this, value);
  }

  ByteWriter out_;
};

/// Reads the same fields from untrusted bytes. The first malformed field fails the ByteReader, all
/// later ones get zeros; callers look once, at the end. Reserves no more memory than there are
/// bytes left.
class FieldReader {
 public:
  static constexpr bool kWrites = false;
  explicit FieldReader(ByteReader* in) : in_(*in) {}

  template <class... T>
  void operator()(T&... fields) {
    (Get(fields), ...);
  }

  template <std::unsigned_integral T>
  void Fixed(T& number) {
    if constexpr (sizeof(T) == 4) {
      number = in_.U32();
    } else {
      number = in_.U64();
    }
  }
  template <class T>
  void Fixed(std::vector<T>& numbers) {
    numbers.resize(in_.Count(sizeof(T)));
    for (T& number : numbers) {
      Fixed(number);
    }
  }

  template <class T>
  void Enum(T& value, T first, T last, std::string_view reason) {
    const std::uint8_t number = in_.U8();
    if (number < static_cast<std::uint8_t>(first) || number > static_cast<std::uint8_t>(last)) {
      in_.Fail(reason);
      return;
    }
    value = static_cast<T>(number);
  }

  /// Fails with `reason` unless `holds()`, which is called only when all fields so far could be
  /// read.
  template <class Holds>
  void Check(const Holds& holds, std::string_view reason) {
    if (!in_.failed() && !holds()) {
      in_.Fail(reason);
    }
  }

 private:
  void Get(bool& flag) {
    const std::uint8_t byte = in_.U8();
    if (byte > 1) {
      in_.Fail("a flag that is neither 0 nor 1");
    }
    flag = byte == 1;
  }
  void Get(std::uint8_t& number) { number = in_.U8(); }
  void Get(std::uint32_t& number) {
    const std::uint64_t wide = in_.Varint();
    if (wide > std::numeric_limits<std::uint32_t>::max()) {
      in_.Fail("a number that exceeds 32 bits");
    }
    number = in_.failed() ? 0 : static_cast<std::uint32_t>(wide);
  }
  void Get(std::uint64_t& number) { number = in_.Varint(); }
  void Get(double& number) { number = in_.F64(); }
  void Get(std::string& text) { text = in_.String(); }
  void Get(std::string_view& text) { text = in_.String(); }  // A view of what is decoded.
  template <std::size_t kSize>
  void Get(std::array<std::uint8_t, kSize>& octets) {
    const std::string_view bytes = in_.Raw(kSize);
    std::copy(bytes.begin(), bytes.end(), octets.begin());
  }
  template <class T>
  void Get(std::optional<T>& value) {
    bool has_value = false;
    Get(has_value);
    if (has_value) {
      T inner{};  // Not in place: g++ 12 would warn of an optional that is destroyed empty.
      Get(inner);
      value = std::move(inner);
    } else {
      value.reset();
    }
  }
  template <GrowingList List>
  void Get(List& list) {
    const std::uint64_t count = in_.Count();
    list.clear();
    list.reserve(std::min(count, in_.remaining() / sizeof(typename List::value_type)));
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) {
      Get(list.emplace_back());
    }
  }
  template <class Key, class T, class Less>
  void Get(std::map<Key, T, Less>& map) {
    const std::uint64_t count = in_.Count();
    map.clear();
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) {
      Key key;
      Get(key);
      const auto [found, is_new] = map.try_emplace(std::move(key));
      if (!is_new) {
        in_.Fail("a name that appears twice");
      }
      Get(found->second);
    }
  }
  template <class T>
  void Get(T& value) {
    Fields(*this, value);
  }

  ByteReader& in_;
};

template <class T>
Bytes EncodeFields(const T& value) {
  Bytes bytes;
  FieldWriter writer(&bytes);
  writer(value);
  return bytes;
}

/// Reads exactly one value. Errors: DataLoss.
template <class T>
Result<T> DecodeFields(std::string_view bytes) {
  ByteReader in(bytes);
  FieldReader reader(&in);
  T value{};
  reader(value);
  VARVE_RETURN_IF_ERROR(in.Finish());
  return value;
}

}  // namespace varve
