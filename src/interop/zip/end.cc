// The end records of a zip file: PKWARE's APPNOTE.TXT, sections 4.3.14 to 4.3.16.

#include "interop/zip/end.h"

#include <optional>

namespace varve {
namespace {

constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kZip64LocatorBytes = 20;
constexpr std::uint64_t kZip64EndBytes = 56;

constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kZip64LocatorSignature = 0x07064b50;
constexpr std::uint32_t kZip64EndSignature = 0x06064b50;

// Nearly every archive of torch.save with one tensor has its end records and directory in here.
constexpr std::uint64_t kFirstTailBytes = 1024;
constexpr std::uint64_t kMaxCommentBytes = 0xFFFF;
// Two and a half million records of torch.save.
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{256} << 20;

/// Returns the beginning of the end record, if the held part of the file has one.
std::optional<std::uint64_t> FindEnd(const ZipTail& tail) {
  const std::string_view held = tail.held();
  for (std::uint64_t at = held.size() < kEndBytes ? 0 : held.size() - kEndBytes + 1; at-- > 0;) {
    // The comment is the last thing in the file.
    if (ZipU32(held, at) == kEndSignature &&
        at + kEndBytes + ZipU16(held, at + 20) == held.size()) {
      return tail.begin() + at;
    }
  }
  return std::nullopt;
}

/// Replaces the fields of the end record by those of the ZIP64 end record. `*end` is the beginning
/// of the end records and becomes that of the ZIP64 one.
Status ReadZip64End(const ZipTail& tail, std::uint64_t* end, ZipDirectoryPlace* directory) {
  std::string locator_space;
  if (*end < kZip64LocatorBytes) {
    return Status::Ok();
  }
  const std::uint64_t locator_begin = *end - kZip64LocatorBytes;
  VARVE_ASSIGN_OR_RETURN(const std::string_view locator,
                         tail.Get(locator_begin, kZip64LocatorBytes, &locator_space));
  if (ZipU32(locator, 0) != kZip64LocatorSignature) {
    return Status::Ok();
  }
  const std::uint64_t begin = ZipU64(locator, 8);
  if (ZipU32(locator, 4) != 0 || ZipU32(locator, 16) > 1) {
    return Unimplemented("zip: an archive in several files");
  }
  if (begin > locator_begin || locator_begin - begin < kZip64EndBytes) {
    return DataLoss("zip: the ZIP64 end record is said to be at byte " + std::to_string(begin));
  }
  std::string record_space;
  VARVE_ASSIGN_OR_RETURN(const std::string_view record,
                         tail.Get(begin, kZip64EndBytes, &record_space));
  // Its size counts what follows the size itself.
  if (ZipU32(record, 0) != kZip64EndSignature || ZipU64(record, 4) != locator_begin - begin - 12) {
    return DataLoss("zip: there is no ZIP64 end record at byte " + std::to_string(begin));
  }
  if (ZipU32(record, 16) != 0 || ZipU32(record, 20) != 0 ||
      ZipU64(record, 24) != ZipU64(record, 32)) {
    return Unimplemented("zip: an archive in several files");
  }
  const ZipDirectoryPlace large{
      .begin = ZipU64(record, 48), .bytes = ZipU64(record, 40), .count = ZipU64(record, 32)};
  const auto agree = [](std::uint64_t small, std::uint64_t full, std::uint64_t value) {
    return small == full || small == value;
  };
  if (!agree(directory->count, kZipFull16, large.count) ||
      !agree(directory->bytes, kZipFull32, large.bytes) ||
      !agree(directory->begin, kZipFull32, large.begin)) {
    return DataLoss("zip: the end record and the ZIP64 end record disagree");
  }
  *directory = large;
  *end = begin;
  return Status::Ok();
}

}  // namespace

Result<std::string> ReadExactly(const RangeReader& read, std::uint64_t begin, std::uint64_t size) {
  Result<std::string> bytes = read(begin, size);
  if (bytes.ok() && bytes->size() != size) {
    return DataLoss("[" + std::to_string(begin) + ", " + std::to_string(begin + size) + "): only " +
                    std::to_string(bytes->size()) + " bytes could be read");
  }
  return bytes;
}

Result<ZipDirectoryPlace> FindZipDirectory(ZipTail* tail) {
  if (tail->size() < kEndBytes) {
    return DataLoss("zip: " + std::to_string(tail->size()) + " bytes are too few for an archive");
  }
  VARVE_RETURN_IF_ERROR(tail->Hold(kFirstTailBytes));
  std::optional<std::uint64_t> end = FindEnd(*tail);
  if (!end) {
    VARVE_RETURN_IF_ERROR(tail->Hold(kEndBytes + kMaxCommentBytes));
    end = FindEnd(*tail);
  }
  if (!end) {
    return DataLoss("zip: there is no end record; the archive is cut off, or is none");
  }
  const std::string_view record = tail->held().substr(*end - tail->begin(), kEndBytes);
  ZipDirectoryPlace directory{
      .begin = ZipU32(record, 16), .bytes = ZipU32(record, 12), .count = ZipU16(record, 10)};
  const std::uint16_t disk = ZipU16(record, 4);
  if ((disk != 0 && disk != kZipFull16) || ZipU16(record, 6) != disk ||
      ZipU16(record, 8) != ZipU16(record, 10)) {
    return Unimplemented("zip: an archive in several files");
  }
  std::uint64_t limit = *end;
  VARVE_RETURN_IF_ERROR(ReadZip64End(*tail, &limit, &directory));
  if (directory.begin > limit || limit - directory.begin != directory.bytes) {
    return DataLoss("zip: the directory is said to be " + std::to_string(directory.bytes) +
                    " bytes from byte " + std::to_string(directory.begin) +
                    ", which does not end where the end records begin, at byte " +
                    std::to_string(limit));
  }
  if (directory.bytes > kMaxDirectoryBytes) {
    return Unimplemented("zip: a directory of " + std::to_string(directory.bytes) +
                         " bytes; at most " + std::to_string(kMaxDirectoryBytes) + " are read");
  }
  if (directory.count > directory.bytes / kZipEntryBytes) {
    return DataLoss("zip: " + std::to_string(directory.count) + " records in a directory of " +
                    std::to_string(directory.bytes) + " bytes");
  }
  return directory;
}

}  // namespace varve
