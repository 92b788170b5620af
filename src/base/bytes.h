/// Little-endian encoding to and from byte strings. Used for everything ranks exchange and for the
/// value encoding on disk; nothing is ever memcpy'd as a struct.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "varve/status.h"

namespace varve {

/// An owned byte string. std::string is used for its small-size optimisation and cheap append;
/// the content is bytes, not text.
using Bytes = std::string;

inline std::span<const std::byte> AsByteSpan(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Appends encoded values to a byte string.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes* out) : out_(out) {}

  void U8(std::uint8_t value) { out_->push_back(static_cast<char>(value)); }
  void U32(std::uint32_t value) { Fixed(value); }
  void U64(std::uint64_t value) { Fixed(value); }
  void F64(double value) { Fixed(std::bit_cast<std::uint64_t>(value)); }

  /// Appends a LEB128 number: seven bits a byte, low first.
  void Varint(std::uint64_t value) {
    while (value >= 0x80) {
      U8(static_cast<std::uint8_t>(value | 0x80));
      value >>= 7;
    }
    U8(static_cast<std::uint8_t>(value));
  }

  void Raw(std::string_view bytes) { out_->append(bytes); }

  /// Appends a varint length, then the bytes.
  void String(std::string_view bytes) {
    Varint(bytes.size());
    Raw(bytes);
  }

  template <class Range>
  void StringList(const Range& values) {
    Varint(values.size());
    for (const auto& value : values) {
      String(value);
    }
  }

  template <class Range>
  void VarintList(const Range& values) {
    Varint(values.size());
    for (const auto value : values) {
      Varint(value);
    }
  }

 private:
  template <class T>
  void Fixed(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      U8(static_cast<std::uint8_t>(value >> (8 * i)));
    }
  }

  Bytes* out_;
};

/// Reads encoded values with every bound checked. After the first failure all reads return zero
/// values and `status()` holds the reason, so decoders check once at the end of each record.
class ByteReader {
 public:
  explicit ByteReader(std::string_view data) : data_(data) {}

  std::uint8_t U8() {
    if (!Need(1)) {
      return 0;
    }
    return static_cast<std::uint8_t>(data_[position_++]);
  }
  std::uint32_t U32() { return Fixed<std::uint32_t>(); }
  std::uint64_t U64() { return Fixed<std::uint64_t>(); }
  double F64() { return std::bit_cast<double>(U64()); }

  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = U8();
      if (shift == 63 && byte > 1) {
        Fail("varint exceeds 64 bits");
        return 0;
      }
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) {
        return value;
      }
    }
    Fail("varint exceeds 64 bits");
    return 0;
  }

  /// Returns a count of items that each take at least `min_item_bytes`; bounded by what is left, so
  /// that a hostile count cannot make the caller reserve more than the input justifies.
  std::uint64_t Count(std::uint64_t min_item_bytes = 1) {
    const std::uint64_t count = Varint();
    if (count > remaining() / (min_item_bytes == 0 ? 1 : min_item_bytes)) {
      Fail("count exceeds the input");
      return 0;
    }
    return count;
  }

  std::string_view Raw(std::uint64_t size) {
    if (!Need(size)) {
      return {};
    }
    const std::string_view bytes = data_.substr(position_, size);
    position_ += size;
    return bytes;
  }

  /// Returns a view into the input, valid as long as the input is.
  std::string_view String() { return Raw(Varint()); }

  template <class Vector>
  void StringList(Vector* values) {
    const std::uint64_t count = Count();
    values->clear();
    values->reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      values->emplace_back(String());
    }
  }

  template <class Vector>
  void VarintList(Vector* values) {
    const std::uint64_t count = Count();
    values->clear();
    values->reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      values->push_back(static_cast<typename Vector::value_type>(Varint()));
    }
  }

  [[nodiscard]] std::uint64_t remaining() const { return data_.size() - position_; }
  [[nodiscard]] std::uint64_t position() const { return position_; }
  [[nodiscard]] bool failed() const { return !status_.ok(); }
  [[nodiscard]] const Status& status() const { return status_; }

  /// Returns status(), or an error when bytes remain.
  [[nodiscard]] Status Finish() {
    if (!failed() && remaining() != 0) {
      Fail("trailing bytes");
    }
    return status_;
  }

  void Fail(std::string_view reason) {
    if (status_.ok()) {
      status_ = DataLoss(std::string(reason) + " at byte " + std::to_string(position_));
    }
    position_ = data_.size();
  }

 private:
  bool Need(std::uint64_t size) {
    if (remaining() < size) {
      Fail("input ends early");
      return false;
    }
    return true;
  }

  template <class T>
  T Fixed() {
    if (!Need(sizeof(T))) {
      return 0;
    }
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<T>(static_cast<std::uint8_t>(data_[position_ + i])) << (8 * i);
    }
    position_ += sizeof(T);
    return value;
  }

  std::string_view data_;
  std::uint64_t position_ = 0;
  Status status_;
};

}  // namespace varve
