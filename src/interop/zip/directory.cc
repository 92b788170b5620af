// Field names and layouts follow PKWARE's APPNOTE.TXT, sections 4.3.7 (local header), 4.3.12
// (directory) and 4.5.3 (ZIP64 extra field).

#include "interop/zip/directory.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "base/checked.h"
#include "interop/zip/end.h"

namespace varve {
namespace {

constexpr std::uint64_t kLocalBytes = 30;

constexpr std::uint32_t kEntrySignature = 0x02014b50;
constexpr std::uint32_t kLocalSignature = 0x04034b50;

// Flags: encrypted, patched, strongly encrypted, directory encrypted.
constexpr std::uint16_t kUnreadableFlags = 0x0001 | 0x0020 | 0x0040 | 0x2000;
constexpr std::uint16_t kSizesFollow = 0x0008;

std::string Named(std::string_view name) {
  constexpr std::size_t kMaxChars = 100;
  return "zip: record \"" + std::string(name.substr(0, kMaxChars)) + "\"";
}

/// Takes each of `fields` that says so from the ZIP64 extra field, in order.
Status ReadZip64Extra(std::string_view name, std::string_view extra,
                      std::initializer_list<std::uint64_t*> fields) {
  const auto is_full = [](const std::uint64_t* field) { return *field == kZipFull32; };
  if (std::none_of(fields.begin(), fields.end(), is_full)) {
    return Status::Ok();
  }
  while (extra.size() >= 4) {
    const std::uint16_t id = ZipU16(extra, 0);
    const std::uint16_t size = ZipU16(extra, 2);
    extra.remove_prefix(4);
    if (size > extra.size()) {
      break;
    }
    if (id != kZip64Extra) {
      extra.remove_prefix(size);
      continue;
    }
    std::string_view values = extra.substr(0, size);
    for (std::uint64_t* field : fields) {
      if (!is_full(field)) {
        continue;
      }
      if (values.size() < 8) {
        return DataLoss(Named(name) + " has too short a ZIP64 field");
      }
      *field = ZipU64(values, 0);
      values.remove_prefix(8);
    }
    return Status::Ok();
  }
  return DataLoss(Named(name) + " lacks the ZIP64 field with its size or place");
}

Status CheckReadable(std::string_view name, std::uint16_t flags, std::uint16_t method) {
  if ((flags & kUnreadableFlags) != 0) {
    return Unimplemented(Named(name) + " is encrypted or patched");
  }
  if (method != 0) {
    return Unimplemented(Named(name) + " is compressed (method " + std::to_string(method) + ")");
  }
  return Status::Ok();
}

/// Takes one entry from the front of `*left`.
Result<ZipRecord> ReadEntry(std::string_view* left) {
  const std::string_view entry = *left;
  if (entry.size() < kZipEntryBytes || ZipU32(entry, 0) != kEntrySignature) {
    return DataLoss("zip: the directory ends or breaks off within its records");
  }
  const std::uint64_t name_bytes = ZipU16(entry, 28);
  const std::uint64_t extra_bytes = ZipU16(entry, 30);
  const std::uint64_t comment_bytes = ZipU16(entry, 32);
  const std::uint64_t entry_bytes = kZipEntryBytes + name_bytes + extra_bytes + comment_bytes;
  if (entry.size() < entry_bytes) {
    return DataLoss("zip: the directory ends within a record");
  }
  left->remove_prefix(entry_bytes);

  ZipRecord record{.name = std::string(entry.substr(kZipEntryBytes, name_bytes)),
                   .header_begin = ZipU32(entry, 42),
                   .size = ZipU32(entry, 24),
                   .crc32 = ZipU32(entry, 16)};
  VARVE_RETURN_IF_ERROR(CheckReadable(record.name, ZipU16(entry, 8), ZipU16(entry, 10)));
  std::uint64_t stored_bytes = ZipU32(entry, 20);
  VARVE_RETURN_IF_ERROR(ReadZip64Extra(record.name,
                                       entry.substr(kZipEntryBytes + name_bytes, extra_bytes),
                                       {&record.size, &stored_bytes, &record.header_begin}));
  if (stored_bytes != record.size) {
    return DataLoss(Named(record.name) + " is said to be of " + std::to_string(record.size) +
                    " bytes, stored as they are in " + std::to_string(stored_bytes));
  }
  const std::uint16_t disk = ZipU16(entry, 34);
  if (disk != 0 && disk != kZipFull16) {
    return Unimplemented("zip: an archive in several files");
  }
  return record;
}

/// Gives each record its limit. Errors: DataLoss when records share bytes or reach the directory.
Status SetLimits(std::uint64_t directory_begin, std::vector<ZipRecord>* records) {
  std::vector<ZipRecord*> by_place;
  by_place.reserve(records->size());
  for (ZipRecord& record : *records) {
    by_place.push_back(&record);
  }
  const auto before = [](const ZipRecord* a, const ZipRecord* b) {
    return a->header_begin < b->header_begin;
  };
  if (!std::is_sorted(by_place.begin(), by_place.end(), before)) {
    std::sort(by_place.begin(), by_place.end(), before);
  }
  for (std::size_t i = 0; i < by_place.size(); ++i) {
    ZipRecord& record = *by_place[i];
    const bool last = i + 1 == by_place.size();
    record.limit = last ? directory_begin : by_place[i + 1]->header_begin;
    const auto end = CheckedAdd(record.header_begin, record.size);
    const auto whole = end ? CheckedAdd(*end, kLocalBytes + record.name.size()) : std::nullopt;
    if (!whole || *whole > record.limit || record.limit > directory_begin) {
      return DataLoss(Named(record.name) + ", " + std::to_string(record.size) +
                      " bytes with a header at byte " + std::to_string(record.header_begin) +
                      ", overlaps " +
                      (last ? "the directory" : "record \"" + by_place[i + 1]->name + "\""));
    }
  }
  return Status::Ok();
}

Status CheckNamesDiffer(const std::vector<ZipRecord>& records) {
  std::vector<std::string_view> names;
  names.reserve(records.size());
  for (const ZipRecord& record : records) {
    names.push_back(record.name);
  }
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  if (twin != names.end()) {
    return DataLoss(Named(*twin) + " is there twice");
  }
  return Status::Ok();
}

}  // namespace

RangeReader ReadFrom(std::string_view bytes) {
  return [bytes](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
    if (begin > bytes.size() || size > bytes.size() - begin) {
      return Internal("read of " + std::to_string(size) + " bytes from byte " +
                      std::to_string(begin) + " of " + std::to_string(bytes.size()));
    }
    return std::string(bytes.substr(begin, size));
  };
}

Result<std::vector<ZipRecord>> ReadZipDirectory(std::uint64_t size, const RangeReader& read) {
  ZipTail tail(size, read);
  VARVE_ASSIGN_OR_RETURN(const ZipDirectoryPlace directory, FindZipDirectory(&tail));
  std::string space;
  VARVE_ASSIGN_OR_RETURN(std::string_view left, tail.Get(directory.begin, directory.bytes, &space));
  std::vector<ZipRecord> records;
  records.reserve(directory.count);
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    VARVE_ASSIGN_OR_RETURN(ZipRecord record, ReadEntry(&left));
    records.push_back(std::move(record));
  }
  if (!left.empty()) {
    return DataLoss("zip: " + std::to_string(left.size()) +
                    " bytes of the directory belong to no record");
  }
  VARVE_RETURN_IF_ERROR(CheckNamesDiffer(records));
  VARVE_RETURN_IF_ERROR(SetLimits(directory.begin, &records));
  return records;
}

Result<std::uint64_t> FindRecordContent(const ZipRecord& record, std::uint64_t size,
                                        const RangeReader& read) {
  const std::uint64_t fixed_bytes = kLocalBytes + record.name.size();
  if (record.limit > size || record.header_begin > record.limit ||
      record.limit - record.header_begin < fixed_bytes) {
    return DataLoss(Named(record.name) + " has no room for a header at byte " +
                    std::to_string(record.header_begin));
  }
  VARVE_ASSIGN_OR_RETURN(const std::string header,
                         ReadExactly(read, record.header_begin, fixed_bytes));
  if (ZipU32(header, 0) != kLocalSignature || ZipU16(header, 26) != record.name.size() ||
      std::string_view(header).substr(kLocalBytes) != record.name) {
    return DataLoss(Named(record.name) + " has no header of its own at byte " +
                    std::to_string(record.header_begin));
  }
  VARVE_RETURN_IF_ERROR(CheckReadable(record.name, ZipU16(header, 6), ZipU16(header, 8)));
  const bool sizes_follow = (ZipU16(header, 6) & kSizesFollow) != 0;
  const auto agrees = [&](std::uint64_t local, std::uint64_t full, std::uint64_t value) {
    return local == value || (local == full && full != 0) || (sizes_follow && local == 0);
  };
  if (!agrees(ZipU32(header, 14), 0, record.crc32) ||
      !agrees(ZipU32(header, 18), kZipFull32, record.size) ||
      !agrees(ZipU32(header, 22), kZipFull32, record.size)) {
    return DataLoss(Named(record.name) + ": its header and the directory disagree");
  }
  // The extra field is mostly padding (torch's `FB`); its ZIP64 sizes only repeat the directory's.
  const std::uint64_t header_bytes = fixed_bytes + ZipU16(header, 28);
  const std::uint64_t room = record.limit - record.header_begin;
  if (header_bytes > room || record.size > room - header_bytes) {
    return DataLoss(Named(record.name) + " ends beyond byte " + std::to_string(record.limit) +
                    ", where something else begins");
  }
  return record.header_begin + header_bytes;
}

}  // namespace varve
