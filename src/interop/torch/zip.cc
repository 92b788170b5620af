// The container of torch >= 1.6: a zip file with one folder, in it the pickle `data.pkl`, the
// storages `data/KEY` and a few small records. Nothing is compressed.

#include "base/bytes.h"
#include "base/checksum.h"
#include "interop/torch/parts.h"

namespace varve {
namespace {

/// Returns the folder that all records are in, with its slash; torch takes that of the first one.
Result<std::string> FolderOf(const std::vector<ZipRecord>& records) {
  const std::size_t slash = records.empty() ? std::string::npos : records[0].name.find('/');
  if (slash == std::string::npos) {
    return DataLoss("a zip file without data.pkl in a folder");
  }
  return records[0].name.substr(0, slash + 1);
}

constexpr std::string_view kStorageFolder = "data/";

/// The records of the folder that have a meaning of their own.
struct Records {
  const ZipRecord* pickle = nullptr;
  const ZipRecord* byte_order = nullptr;
  bool script = false;
  std::vector<const ZipRecord*> storages;
};

Records Sorted(const std::vector<ZipRecord>& records, std::string_view folder) {
  Records sorted;
  for (const ZipRecord& record : records) {
    std::string_view name = record.name;
    if (!name.starts_with(folder)) {
      continue;
    }
    name.remove_prefix(folder.size());
    if (name == "data.pkl") {
      sorted.pickle = &record;
    } else if (name == "byteorder") {
      sorted.byte_order = &record;
    } else if (name == "constants.pkl" || name.starts_with("code/")) {
      sorted.script = true;
    } else if (name.starts_with(kStorageFolder)) {
      sorted.storages.push_back(&record);
    }
  }
  return sorted;
}

Status CheckByteOrder(const ZipRecord* record, std::uint64_t size, const RangeReader& read) {
  constexpr std::string_view kLittle = "little";
  if (record == nullptr) {
    return Status::Ok();  // Before torch 2.1.
  }
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t begin, FindRecordContent(*record, size, read));
  if (record->size <= kLittle.size()) {
    VARVE_ASSIGN_OR_RETURN(const std::string order, read(begin, record->size));
    if (order == kLittle) {
      return Status::Ok();
    }
    if (order == "big") {
      return Unimplemented("it was written by a big-endian machine, which is not supported");
    }
  }
  return DataLoss("its byte order is neither little nor big");
}

Result<ArchiveStorage> Located(const ZipRecord& record, std::string_view key, std::uint64_t size,
                               const RangeReader& read) {
  ArchiveStorage place{.key = std::string(key), .bytes = record.size};
  VARVE_ASSIGN_OR_RETURN(place.begin, FindRecordContent(record, size, read));
  // Writers may leave checksums out; then all of them are 0.
  if (record.crc32 != 0 || record.size == 0) {
    place.crc32 = record.crc32;
  }
  return place;
}

}  // namespace

Result<TorchContainer> ReadZipContainer(std::uint64_t size, const RangeReader& read) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<ZipRecord> all, ReadZipDirectory(size, read));
  VARVE_ASSIGN_OR_RETURN(const std::string folder, FolderOf(all));
  const Records records = Sorted(all, folder);
  if (records.script) {
    return Unimplemented("it is a TorchScript program, not a saved state");
  }
  if (records.pickle == nullptr) {
    return DataLoss("there is no record \"" + folder + "data.pkl\"");
  }
  if (records.pickle->size > kMaxTorchPickleBytes) {
    return Unimplemented("its pickle has " + std::to_string(records.pickle->size) +
                         " bytes; at most " + std::to_string(kMaxTorchPickleBytes) + " are read");
  }
  VARVE_RETURN_IF_ERROR(CheckByteOrder(records.byte_order, size, read));

  TorchContainer container;
  VARVE_ASSIGN_OR_RETURN(container.pickle_record, Located(*records.pickle, "", size, read));
  const ArchiveStorage& place = container.pickle_record;
  VARVE_ASSIGN_OR_RETURN(std::string pickle, read(place.begin, place.bytes));
  if (place.crc32 && Crc32ZipExtend(0, AsByteSpan(pickle)) != *place.crc32) {
    return DataLoss("the checksum of its pickle does not match");
  }
  VARVE_ASSIGN_OR_RETURN(container.pickle, ReadOwnedPickle(std::move(pickle)));

  for (const ZipRecord* record : records.storages) {
    const std::size_t prefix = folder.size() + kStorageFolder.size();
    const std::string_view key = std::string_view(record->name).substr(prefix);
    VARVE_ASSIGN_OR_RETURN(ArchiveStorage storage, Located(*record, key, size, read));
    container.storages.push_back(std::move(storage));
  }
  return container;
}

}  // namespace varve
