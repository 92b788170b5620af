/// The place of a zip file's directory, and helpers for reading its records. Private to the zip
/// reader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "interop/zip/directory.h"
#include "varve/status.h"

namespace varve {

// "See the ZIP64 field."
inline constexpr std::uint64_t kZipFull16 = 0xFFFF;
inline constexpr std::uint64_t kZipFull32 = 0xFFFFFFFF;

/// The extra field that holds the sizes and the place of a large entry.
inline constexpr std::uint16_t kZip64Extra = 0x0001;

/// Bytes of an entry without its name, extra field and comment.
inline constexpr std::uint64_t kZipEntryBytes = 46;

/// Returns the little-endian number at byte `at`, which the caller knows to be there.
template <class T>
T ZipNumber(std::string_view bytes, std::uint64_t at) {
  const std::string_view digits = bytes.substr(at, sizeof(T));
  std::uint64_t value = 0;
  for (std::size_t i = digits.size(); i-- > 0;) {
    value = value << 8U | static_cast<unsigned char>(digits[i]);
  }
  return static_cast<T>(value);
}
inline std::uint16_t ZipU16(std::string_view bytes, std::uint64_t at) {
  return ZipNumber<std::uint16_t>(bytes, at);
}
inline std::uint32_t ZipU32(std::string_view bytes, std::uint64_t at) {
  return ZipNumber<std::uint32_t>(bytes, at);
}
inline std::uint64_t ZipU64(std::string_view bytes, std::uint64_t at) {
  return ZipNumber<std::uint64_t>(bytes, at);
}

/// Returns the bytes that `read` gives, or DataLoss when their size differs.
Result<std::string> ReadExactly(const RangeReader& read, std::uint64_t begin, std::uint64_t size);

/// The last bytes of the file, which are read several times.
class ZipTail {
 public:
  ZipTail(std::uint64_t size, const RangeReader& read) : read_(read), begin_(size), size_(size) {}

  /// Holds at least the last `count` bytes from now on, or the whole file.
  Status Hold(std::uint64_t count) {
    const std::uint64_t begin = size_ - std::min(size_, count);
    if (begin < begin_) {
      VARVE_ASSIGN_OR_RETURN(bytes_, ReadExactly(read_, begin, size_ - begin));
      begin_ = begin;
    }
    return Status::Ok();
  }

  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t begin() const { return begin_; }
  /// Returns all bytes that are held.
  [[nodiscard]] std::string_view held() const { return bytes_; }

  /// Returns bytes of the file, from the held ones where possible. `*space` keeps them otherwise.
  Result<std::string_view> Get(std::uint64_t begin, std::uint64_t count, std::string* space) const {
    if (begin >= begin_) {
      return held().substr(begin - begin_, count);
    }
    VARVE_ASSIGN_OR_RETURN(*space, ReadExactly(read_, begin, count));
    return std::string_view(*space);
  }

 private:
  const RangeReader& read_;
  std::string bytes_;
  std::uint64_t begin_;
  std::uint64_t size_;
};

struct ZipDirectoryPlace {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;  ///< Of records; at least kZipEntryBytes each lie in `bytes`.
};

/// Finds the directory. Errors: as ReadZipDirectory.
Result<ZipDirectoryPlace> FindZipDirectory(ZipTail* tail);

}  // namespace varve
