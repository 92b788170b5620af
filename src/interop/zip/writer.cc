// Field names and layouts follow PKWARE's APPNOTE.TXT, sections 4.3.7 (local header), 4.3.9
// (descriptor), 4.3.12 (directory), 4.3.14 to 4.3.16 (end records) and 4.5.3 (ZIP64 extra field).

#include "interop/zip/writer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>

#include "base/checked.h"
#include "base/checksum.h"
#include "interop/zip/end.h"

namespace varve {
namespace {

constexpr std::uint64_t kFull16 = 0xFFFF;
constexpr std::uint64_t kFull32 = 0xFFFFFFFF;

constexpr std::uint64_t kPlainVersion = 10;
constexpr std::uint64_t kZip64Version = 45;
constexpr std::uint64_t kUtf8Flag = 0x0800;
constexpr std::uint64_t kDescriptorFlag = 0x0008;
// The first day that DOS dates can say, 1 January 1980: none would be an invalid date.
constexpr std::uint64_t kDosDate = 0x0021;

constexpr std::uint64_t kPaddingExtra = 0x4246;  // "FB"
constexpr std::uint64_t kExtraHeaderBytes = 4;

/// Little-endian fields of a record of known size.
template <std::size_t Size>
class Fields {
 public:
  Fields& Put(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      bytes_[at_++] = static_cast<char>(value >> (8 * i));
    }
    return *this;
  }
  void AppendTo(Bytes* out) const {
    assert(at_ <= Size);
    out->append(bytes_.data(), at_);
  }
  [[nodiscard]] std::size_t size() const { return at_; }

 private:
  std::array<char, Size> bytes_{};
  std::size_t at_ = 0;
};

std::uint64_t Small(std::uint64_t value) { return std::min(value, kFull32); }
bool IsLarge(std::uint64_t value) { return value >= kFull32; }

/// Writes the fields that a local header and a directory entry share, from "version needed" to the
/// length of the name.
template <std::size_t Size>
void PutCommon(const ZipEntry& entry, bool zip64, std::uint32_t crc32, Fields<Size>* fields) {
  fields->Put(zip64 ? kZip64Version : kPlainVersion, 2)
      .Put(kUtf8Flag | (entry.descriptor ? kDescriptorFlag : 0), 2)
      .Put(0, 2)  // Stored.
      .Put(0, 2)
      .Put(kDosDate, 2)
      .Put(crc32, 4)
      .Put(Small(entry.bytes), 4)
      .Put(Small(entry.bytes), 4)
      .Put(entry.name.size(), 2);
}

struct LocalHeader {
  std::uint64_t bytes = 0;
  std::uint64_t filler = 0;  // At the end of them.
};

LocalHeader AppendLocalHeader(const ZipEntry& entry, std::uint64_t position, Bytes* out) {
  constexpr std::uint64_t kHeaderBytes = 30;
  Fields<20> sizes;
  if (IsLarge(entry.bytes)) {
    sizes.Put(kZip64Extra, 2).Put(16, 2).Put(entry.bytes, 8).Put(entry.bytes, 8);
  }
  const std::uint64_t fixed = kHeaderBytes + entry.name.size() + sizes.size();
  const std::uint64_t unfilled = position + fixed + kExtraHeaderBytes;
  const std::uint64_t filler = RoundUp(unfilled, entry.alignment) - unfilled;
  const std::uint64_t padding = entry.alignment == 1 ? 0 : kExtraHeaderBytes + filler;

  Fields<kHeaderBytes> header;
  header.Put(0x04034b50, 4);
  PutCommon(entry, sizes.size() > 0, entry.descriptor ? 0 : entry.crc32, &header);
  header.Put(sizes.size() + padding, 2).AppendTo(out);
  out->append(entry.name);
  sizes.AppendTo(out);
  if (padding > 0) {
    Fields<kExtraHeaderBytes>().Put(kPaddingExtra, 2).Put(filler, 2).AppendTo(out);
    out->append(filler, 'Z');
  }
  return {fixed + padding, padding > 0 ? filler : 0};
}

void AppendDirectoryEntry(const ZipEntry& entry, std::uint64_t position, Bytes* out) {
  // Only what did not fit its field, in this order.
  const std::uint64_t extra_bytes = (IsLarge(entry.bytes) ? 16 : 0) + (IsLarge(position) ? 8 : 0);
  Fields<28> extra;
  if (extra_bytes > 0) {
    extra.Put(kZip64Extra, 2).Put(extra_bytes, 2);
  }
  if (IsLarge(entry.bytes)) {
    extra.Put(entry.bytes, 8).Put(entry.bytes, 8);
  }
  if (IsLarge(position)) {
    extra.Put(position, 8);
  }
  Fields<46> fields;
  fields.Put(0x02014b50, 4).Put(kZip64Version, 2);  // "Made by".
  PutCommon(entry, extra_bytes > 0, entry.crc32, &fields);
  fields.Put(extra.size(), 2)
      .Put(0, 2)  // No comment.
      .Put(0, 2)  // The first disk.
      .Put(0, 2)
      .Put(0, 4)
      .Put(Small(position), 4)
      .AppendTo(out);
  out->append(entry.name);
  extra.AppendTo(out);
}

}  // namespace

Bytes ZipDescriptor(std::uint32_t crc32, std::uint64_t bytes) {
  const std::size_t width = IsLarge(bytes) ? 8 : 4;
  Bytes out;
  Fields<24>().Put(0x08074b50, 4).Put(crc32, 4).Put(bytes, width).Put(bytes, width).AppendTo(&out);
  return out;
}

std::uint64_t ZipWriter::AddHeader(const ZipEntry& entry, Bytes* out) {
  AppendDirectoryEntry(entry, position_, &directory_);
  const LocalHeader header = AppendLocalHeader(entry, position_, out);
  position_ += header.bytes + entry.bytes;
  if (entry.descriptor) {
    position_ += ZipDescriptor(entry.crc32, entry.bytes).size();
  }
  ++count_;
  return header.filler;
}

void ZipWriter::AddRecord(std::string_view name, std::string_view content, std::uint64_t alignment,
                          Bytes* out) {
  AddHeader({.name = name,
             .bytes = content.size(),
             .crc32 = Crc32ZipExtend(0, AsByteSpan(content)),
             .alignment = alignment},
            out);
  out->append(content);
}

void ZipWriter::Finish(Bytes* out) {
  out->append(directory_);
  Fields<56>()
      .Put(0x06064b50, 4)
      .Put(44, 8)  // Of this record, from here on.
      .Put(kZip64Version, 2)
      .Put(kZip64Version, 2)
      .Put(0, 4)  // The first disk.
      .Put(0, 4)
      .Put(count_, 8)
      .Put(count_, 8)
      .Put(directory_.size(), 8)
      .Put(position_, 8)
      .AppendTo(out);
  Fields<20>()
      .Put(0x07064b50, 4)
      .Put(0, 4)
      .Put(position_ + directory_.size(), 8)
      .Put(1, 4)  // Disks.
      .AppendTo(out);
  Fields<22>()
      .Put(0x06054b50, 4)
      .Put(0, 2)  // The first disk.
      .Put(0, 2)
      .Put(std::min(count_, kFull16), 2)
      .Put(std::min(count_, kFull16), 2)
      .Put(Small(directory_.size()), 4)
      .Put(Small(position_), 4)
      .Put(0, 2)  // No comment.
      .AppendTo(out);
}

}  // namespace varve
