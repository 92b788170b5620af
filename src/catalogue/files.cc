#include "catalogue/files.h"

#include <algorithm>
#include <utility>

#include <sys/resource.h>

#include "catalogue/scan.h"
#include "format/data_file.h"

namespace varve {
namespace {

// Other software's files have no checksum blocks; small enough that few bytes are read without
// need.
constexpr std::uint64_t kForeignBlockBytes = std::uint64_t{256} << 10;

std::size_t MaxOpenFiles() {
  constexpr rlim_t kMost = 512;
  constexpr rlim_t kFewest = 8;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return kMost;
  }
  return std::clamp(limit.rlim_cur / 4, kFewest, kMost);
}

}  // namespace

/// A file of the pool: open during each call only, as far as this object is concerned.
class CheckpointFiles::Pooled final : public ReadableFile {
 public:
  Pooled(CheckpointFiles& pool, std::uint32_t number) : pool_(pool), number_(number) {}

  [[nodiscard]] std::uint64_t size() const override {
    return pool_.index_.metadata.files[number_].size;
  }
  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    VARVE_ASSIGN_OR_RETURN(const auto file, pool_.Acquire(number_));
    return file->ReadAt(offset, parts);
  }
  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t capacity) override {
    VARVE_ASSIGN_OR_RETURN(const auto file, pool_.Acquire(number_));
    return file->ReadUncached(offset, buffer, size, capacity);
  }
  Status ReadAndSum(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
                    std::uint32_t* crc) override {
    VARVE_ASSIGN_OR_RETURN(const auto file, pool_.Acquire(number_));
    return file->ReadAndSum(offset, parts, crc);
  }
  bool Forget(std::uint64_t offset, std::uint64_t size) override {
    const auto file = pool_.Acquire(number_);
    return file.ok() && (*file)->Forget(offset, size);
  }
  [[nodiscard]] bool IsCached(std::uint64_t offset, std::uint64_t size) override {
    const auto file = pool_.Acquire(number_);
    return file.ok() && (*file)->IsCached(offset, size);
  }

 private:
  CheckpointFiles& pool_;
  std::uint32_t number_;
};

CheckpointFiles::CheckpointFiles(Storage& storage, const OpenedIndex& index)
    : storage_(storage),
      index_(index),
      max_open_(MaxOpenFiles()),
      files_(index.metadata.files.size()),
      open_(index.metadata.files.size()) {}

CheckpointFiles::~CheckpointFiles() = default;

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
    (*file)->Forget(0, expected.data_begin);  // The next load fetches it anew.
    return status.Annotate(path + " [0, " + std::to_string(expected.data_begin) + ")");
  }
  return file;
}

Result<std::shared_ptr<ReadableFile>> CheckpointFiles::Acquire(std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  OpenFile& wanted = open_[number];
  if (wanted.file != nullptr) {
    used_.splice(used_.begin(), used_, wanted.use);
    return wanted.file;
  }
  if (used_.size() >= max_open_) {
    open_[used_.back()].file.reset();  // A reader that holds it finishes first.
    used_.pop_back();
  }
  auto file = OpenChecked(index_.metadata.files[number]);
  // An open file stays readable whatever happens to its name. A file that is not open yet may by
  // now belong to another save.
  if (file.status().code() == StatusCode::kDataLoss && WasReplaced(storage_, index_)) {
    return FailedPrecondition(index_.home() +
                              " was overwritten by another save, or removed, while it was being "
                              "read; open it again");
  }
  VARVE_ASSIGN_OR_RETURN(wanted.file, std::move(file));
  used_.push_front(number);
  wanted.use = used_.begin();
  return wanted.file;
}

Result<ReadableFile*> CheckpointFiles::Open(std::uint32_t number) {
  VARVE_RETURN_IF_ERROR(Acquire(number).status());
  const std::scoped_lock lock(mutex_);
  if (files_[number] == nullptr) {
    files_[number] = std::make_unique<Pooled>(*this, number);
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
