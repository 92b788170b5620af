#include "catalogue/files.h"

#include <utility>

#include "catalogue/scan.h"
#include "format/data_file.h"

namespace varve {
namespace {

// Other software's files have no checksum blocks; small enough that few bytes are read without
// need.
constexpr std::uint64_t kForeignBlockBytes = std::uint64_t{256} << 10;

}  // namespace

Result<std::unique_ptr<ReadableFile>> CheckpointFiles::OpenChecked(const DataFile& expected) {
  const std::string path = JoinPath(index_.directory, expected.name);
  auto file = storage_.OpenForRead(path);
  if (!file.ok()) {
    return file.status().code() == StatusCode::kNotFound ? DataLoss(path + " is missing")
                                                         : file.status();
  }
  if ((*file)->size() != expected.size) {
    return DataLoss(path + ": " + std::to_string((*file)->size()) + " bytes instead of " +
                    std::to_string(expected.size));
  }
  if (index_.metadata.format != Format::kVarve || index_.headers_checked) {
    return file;
  }
  // Extents come from the manifest; the header is checked so that no damaged byte goes unnoticed.
  auto header = ReadHeaderBytes(**file);
  Status status = header.status();
  if (header.ok()) {
    status = header->size() != expected.data_begin
                 ? DataLoss("data begins at byte " + std::to_string(header->size()) +
                            ", the manifest says " + std::to_string(expected.data_begin))
                 : CheckHeader(*header, expected.header_crc32c);
  }
  if (!status.ok()) {
    return status.Annotate(path + " [0, " + std::to_string(expected.data_begin) + ")");
  }
  return file;
}

Result<ReadableFile*> CheckpointFiles::Open(std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  if (files_[number] == nullptr) {
    auto file = OpenChecked(index_.metadata.files[number]);
    // An open file stays readable whatever happens to its name. A file that is not open yet may by
    // now belong to another save.
    if (file.status().code() == StatusCode::kDataLoss &&
        WasReplaced(storage_, index_.directory, index_.metadata.save_id)) {
      return FailedPrecondition(index_.directory +
                                " was overwritten by another save while it was being read; "
                                "open it again");
    }
    VARVE_ASSIGN_OR_RETURN(files_[number], std::move(file));
  }
  return files_[number].get();
}

Result<FileReads> CheckpointFiles::Reads(std::uint32_t number) {
  const Metadata& metadata = index_.metadata;
  const DataFile& file = metadata.files[number];
  FileReads reads;
  VARVE_ASSIGN_OR_RETURN(reads.file, Open(number));
  reads.name = JoinPath(index_.directory, file.name);
  reads.geometry = {file.data_begin, file.size,
                    metadata.block_bytes == 0 ? kForeignBlockBytes : metadata.block_bytes};
  reads.block_crc32c = file.block_crc32c;
  return reads;
}

}  // namespace varve
