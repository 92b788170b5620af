/// CRC-32C (Castagnoli; detects damage), the CRC-32 of zip files, and XXH3-128 (identifies
/// content).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "varve/hash.h"

namespace varve {

/// Returns the CRC-32C as in RFC 3720 (iSCSI): reflected, initial and final value all ones.
/// `Crc32c` of one buffer equals `Crc32cExtend(Crc32c(a), b)` of its two halves.
std::uint32_t Crc32c(std::span<const std::byte> data);
std::uint32_t Crc32cExtend(std::uint32_t crc, std::span<const std::byte> data);

/// Returns the CRC-32C of a and b one after the other, from those of each and b's length.
std::uint32_t Crc32cJoin(std::uint32_t a, std::uint32_t b, std::uint64_t b_bytes);

/// Copies `source` to `target` (same size, no overlap) and returns the CRC extended over it. The
/// bytes go through the cache once: 16 KiB steps stay in L1 between copy and checksum.
std::uint32_t CopyAndCrc32c(std::uint32_t crc, std::span<const std::byte> source,
                            std::byte* target);

/// Copies past the cache: the bytes of `target`, which are not read soon, do not push others out of
/// the cache, and are not fetched first only to be overwritten. The checksum is of `source`, in
/// steps that stay in L1 until they are copied. A source that changes meanwhile gives a copy that
/// does not match its checksum.
std::uint32_t StreamAndCrc32c(std::uint32_t crc, std::span<const std::byte> source,
                              std::byte* target);

/// Copies past the cache like StreamAndCrc32c, without a checksum.
void StreamCopy(std::span<const std::byte> source, std::byte* target);

/// Returns the CRC-32 of zip files (IEEE 802.3), extended like Crc32cExtend.
std::uint32_t Crc32ZipExtend(std::uint32_t crc, std::span<const std::byte> data);

/// Returns the Crc32Zip of a and b one after the other, from those of each and b's length.
std::uint32_t Crc32ZipJoin(std::uint32_t a, std::uint32_t b, std::uint64_t b_bytes);

Hash128 Xxh3(std::span<const std::byte> data);
/// Returns a number for tables in memory; never stored.
std::uint64_t XxhOfName(std::string_view name);

/// XXH3-128 over data that arrives in pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;

  void Reset();
  void Update(std::span<const std::byte> data);
  [[nodiscard]] Hash128 Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns lower-case hex of fixed width.
std::string Hex(std::span<const std::uint8_t> bytes);
void AppendHex(std::span<const std::uint8_t> bytes, std::string* out);
std::string HexU32(std::uint32_t value);
/// Returns false when `text` is not exactly lower-case hex of the output's width.
bool ParseHex(std::string_view text, std::span<std::uint8_t> out);
bool ParseHexU32(std::string_view text, std::uint32_t* out);

}  // namespace varve
