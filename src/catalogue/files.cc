#include "catalogue/files.h"

#include <algorithm>
#include <utility>

#include <sys/resource.h>

#include "base/checksum.h"
#include "base/run_threads.h"
#include "catalogue/scan.h"
#include "format/data_file.h"
#include "pipeline/kept_tail.h"

namespace varve {
namespace {

std::size_t MaxOpenFiles() {
  constexpr rlim_t kMost = 512;
  constexpr rlim_t kFewest = 8;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return kMost;
  }
  return std::clamp(limit.rlim_cur / 4, kFewest, kMost);
}

/// Compares the first bytes of a file with what the manifest says of them.
Status CheckHeaderAt(std::string_view header, const DataFile& expected) {
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t begin, HeaderBytesFromPrefix(header.substr(0, 8)));
  return begin != expected.data_begin
             ? DataLoss("data begins at byte " + std::to_string(begin) + ", the manifest says " +
                        std::to_string(expected.data_begin))
             : CheckHeader(header, expected.header_crc32c);
}

}  // namespace

std::uint64_t StoredBlockBytes(const Metadata& metadata) {
  constexpr std::uint64_t kForeignBlockBytes = std::uint64_t{256} << 10;
  return metadata.block_bytes == 0 ? kForeignBlockBytes : metadata.block_bytes;
}

BlockGeometry GeometryOf(const Metadata& metadata, std::uint32_t number) {
  const DataFile& file = metadata.files[number];
  return {file.data_begin, file.size, StoredBlockBytes(metadata)};
}

/// A file of the pool: open during each call only, as far as this object is concerned.
class CheckpointFiles::Pooled final : public ReadableFile {
 public:
  Pooled(CheckpointFiles& pool, std::uint32_t number) : pool_(pool), number_(number) {}

  void BeginTail(std::uint64_t max_bytes) { tail_.Begin(max_bytes); }

  [[nodiscard]] std::uint64_t size() const override {
    return pool_.index_.metadata.files[number_].size;
  }
  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    return ReadRest(offset, parts, tail_.Take(offset, parts),
                    [](ReadableFile& file, std::uint64_t begin, KeptTail::Parts rest) {
                      return file.ReadAt(begin, rest);
                    });
  }
  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t capacity) override {
    const std::span<std::byte> whole(buffer, size);
    const std::span parts(&whole, 1);
    const std::uint64_t taken = tail_.Take(offset, parts);
    return ReadRest(
        offset, parts, taken, [&](ReadableFile& file, std::uint64_t begin, KeptTail::Parts rest) {
          return taken % kDirectAlignment == 0
                     ? file.ReadUncached(begin, buffer + taken, size - taken, capacity - taken)
                     : file.ReadAt(begin, rest);
        });
  }
  Status ReadAndSum(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
                    std::uint32_t* crc) override {
    const std::uint64_t taken = tail_.Take(offset, parts);
    std::uint64_t left = taken;
    for (const std::span<std::byte> part : parts) {
      const std::uint64_t size = std::min<std::uint64_t>(left, part.size());
      *crc = Crc32cExtend(*crc, part.first(size));
      left -= size;
    }
    return ReadRest(offset, parts, taken,
                    [&](ReadableFile& file, std::uint64_t begin, KeptTail::Parts rest) {
                      return file.ReadAndSum(begin, rest, crc);
                    });
  }
  bool Forget(std::uint64_t offset, std::uint64_t size) override {
    const bool kept = tail_.Forget(offset, size);
    const auto file = pool_.Acquire(number_);
    return (file.ok() && (*file)->Forget(offset, size)) || kept;
  }
  [[nodiscard]] bool IsCached(std::uint64_t offset, std::uint64_t size) override {
    if (tail_.Has(offset, size)) {
      return true;
    }
    const auto file = pool_.Acquire(number_);
    return file.ok() && (*file)->IsCached(offset, size);
  }
  [[nodiscard]] bool IsRemote() const override {
    const auto file = pool_.Acquire(number_);
    return file.ok() && (*file)->IsRemote();
  }

 private:
  /// Calls `read` for what comes after the first `taken` bytes, and keeps the end of it.
  template <class Read>
  Status ReadRest(std::uint64_t offset, KeptTail::Parts parts, std::uint64_t taken, Read read) {
    const auto rest = WithoutFirst(parts, taken);
    if (rest.empty() && taken > 0) {
      return Status::Ok();
    }
    VARVE_ASSIGN_OR_RETURN(const auto file, pool_.Acquire(number_));
    VARVE_RETURN_IF_ERROR(read(*file, offset + taken, rest));
    tail_.Keep(offset, parts);
    return Status::Ok();
  }

  CheckpointFiles& pool_;
  const std::uint32_t number_;
  KeptTail tail_;
};

CheckpointFiles::CheckpointFiles(Storage& storage, const OpenedIndex& index)
    : storage_(storage),
      index_(index),
      max_open_(MaxOpenFiles()),
      files_(index.metadata.files.size()),
      open_(index.metadata.files.size(), OpenFile{nullptr, used_.end()}) {}

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
  if (expected.data_begin > kMaxHeaderBytes + 8) {
    return DataLoss(path + ": the manifest says that its header has " +
                    std::to_string(expected.data_begin) + " bytes");
  }
  // In one read: in an object store each is a request.
  std::string header(expected.data_begin, '\0');
  Status status =
      (*file)->ReadAt(0, std::as_writable_bytes(std::span(header.data(), header.size())));
  if (status.ok()) {
    status = CheckHeaderAt(header, expected);
  }
  if (!status.ok()) {
    (*file)->Forget(0, expected.data_begin);  // The next load fetches it anew.
    return status.Annotate(path + " [0, " + std::to_string(expected.data_begin) + ")");
  }
  return file;
}

/// Returns an open file, as the one used last; null where it is closed.
std::shared_ptr<ReadableFile> CheckpointFiles::Opened(std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  const OpenFile& wanted = open_[number];
  if (wanted.file != nullptr && wanted.use != used_.end()) {
    used_.splice(used_.begin(), used_, wanted.use);
  }
  return wanted.file;
}

/// Returns how often a file could not be opened, and why the last time.
std::pair<std::uint64_t, Status> CheckpointFiles::Failed(std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  const auto found = failed_.find(number);
  return found == failed_.end() ? std::pair<std::uint64_t, Status>() : found->second;
}

Result<std::shared_ptr<ReadableFile>> CheckpointFiles::Acquire(std::uint32_t number) {
  if (auto file = Opened(number)) {
    return file;
  }
  // A file of a server is opened by requests: several files at once, but none twice. Those that
  // wait for it take its failure for theirs: each of them would wait for the server as long.
  const std::uint64_t failures = Failed(number).first;
  const std::scoped_lock opening(opening_[number % opening_.size()]);
  if (auto file = Opened(number)) {
    return file;
  }
  if (const auto failed = Failed(number); failed.first != failures) {
    return failed.second;
  }
  auto file = OpenChecked(index_.metadata.files[number]);
  // An open file stays readable whatever happens to its name. A file that is not open yet may by
  // now belong to another save.
  if (!file.ok()) {
    file = UnlessReplaced(file.status(), storage_, index_);
  }
  const bool has_descriptor = file.ok() && !(*file)->IsRemote();
  const std::scoped_lock lock(mutex_);
  if (!file.ok()) {
    auto& [times, status] = failed_[number];
    ++times;
    return status = file.status();
  }
  OpenFile& opened = open_[number];
  opened.file = *std::move(file);
  if (has_descriptor) {
    if (used_.size() >= max_open_) {
      open_[used_.back()].file.reset();  // A reader that holds it finishes first.
      used_.pop_back();
    }
    used_.push_front(number);
    opened.use = used_.begin();
  }
  return opened.file;
}

Status CheckpointFiles::OpenAll(const std::set<std::uint32_t>& numbers, int threads,
                                const std::stop_token& stop) {
  const std::vector<std::uint32_t> wanted(numbers.begin(), numbers.end());
  return RunThreads(wanted.size(), threads, stop,
                    [&](std::size_t i) { return Acquire(wanted[i]).status(); });
}

Result<ReadableFile*> CheckpointFiles::Open(std::uint32_t number) {
  VARVE_RETURN_IF_ERROR(Acquire(number).status());
  return File(number);
}

/// Returns a file that is opened when it is first used.
ReadableFile* CheckpointFiles::File(std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  if (files_[number] == nullptr) {
    files_[number] = std::make_unique<Pooled>(*this, number);
    BeginTail(number);
  }
  return files_[number].get();
}

void CheckpointFiles::KeepTails(std::uint64_t max_bytes) {
  const std::scoped_lock lock(mutex_);
  tail_bytes_ = max_bytes;
  for (std::uint32_t number = 0; number < files_.size(); ++number) {
    if (files_[number] != nullptr) {
      BeginTail(number);
    }
  }
}

/// Lets a file keep its tail while there is room. The caller has the lock.
void CheckpointFiles::BeginTail(std::uint32_t number) {
  const std::uint64_t block = StoredBlockBytes(index_.metadata);
  const std::uint64_t tail = tail_bytes_ >= block ? block : 0;
  tail_bytes_ -= tail;
  files_[number]->BeginTail(tail);
}

FileReads CheckpointFiles::Reads(std::uint32_t number) {
  const DataFile& file = index_.metadata.files[number];
  FileReads reads;
  reads.file = File(number);
  reads.number = number;
  reads.name = JoinPath(index_.directory, file.name);
  reads.geometry = GeometryOf(index_.metadata, number);
  reads.block_crc32c = file.block_crc32c;
  return reads;
}

}  // namespace varve
