/// The data files of an open checkpoint: opened and checked when first needed, and kept open as far
/// as the process may.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "catalogue/open.h"
#include "pipeline/file_reader.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns how many bytes are read and checked together at least. Files of other software have no
/// checksum blocks: small parts, so that few bytes are read without need.
std::uint64_t StoredBlockBytes(const Metadata& metadata);

/// Returns how the file of this number is checked.
BlockGeometry GeometryOf(const Metadata& metadata, std::uint32_t number);

/// At most a quarter of the descriptors that the process may have are in use, 512 at most: a
/// checkpoint of thousands of files is read with those. The file that was not used for the longest
/// time is closed, and opened and checked again when it is needed again. Files of servers have no
/// descriptors and stay open.
/// Threads: safe to call concurrently. `index` must outlive it.
class CheckpointFiles {
 public:
  CheckpointFiles(Storage& storage, const OpenedIndex& index);
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;
  ~CheckpointFiles();

  /// Opens a file, or returns the open one, which lives as long as this. Errors: DataLoss naming
  /// the file when it is missing, of another size or has a damaged header; FailedPrecondition when
  /// an overwrite has put another save in its place.
  Result<ReadableFile*> Open(std::uint32_t number);

  /// Opens files, several at once: all that a read needs, before it changes anything. Errors: as
  /// Open; Cancelled on `stop`.
  Status OpenAll(const std::set<std::uint32_t>& numbers, int threads, const std::stop_token& stop);

  /// Returns a file as the read pipeline wants it, without targets. It is opened when it is first
  /// read, if it is not open then: reads have the errors of Open.
  FileReads Reads(std::uint32_t number);

  /// Keeps the last block that is read of each file from now on, of as many files as `max_bytes`
  /// are for. Not during a read.
  void KeepTails(std::uint64_t max_bytes);

  [[nodiscard]] Storage& storage() const { return storage_; }

 private:
  class Pooled;

  ReadableFile* File(std::uint32_t number);
  void BeginTail(std::uint32_t number);

  Result<std::unique_ptr<ReadableFile>> OpenChecked(const DataFile& expected);
  /// Returns a file that stays open as long as the caller holds it. Errors: as Open.
  Result<std::shared_ptr<ReadableFile>> Acquire(std::uint32_t number);

  std::shared_ptr<ReadableFile> Opened(std::uint32_t number);
  std::pair<std::uint64_t, Status> Failed(std::uint32_t number);

  /// A file that is open, and its place in `used_`, where it has one.
  struct OpenFile {
    std::shared_ptr<ReadableFile> file;
    std::list<std::uint32_t>::iterator use;
  };

  Storage& storage_;
  const OpenedIndex& index_;
  const std::size_t max_open_;
  std::array<std::mutex, 64> opening_;          // Held while a file is opened, by its number.
  std::mutex mutex_;                            // Guards what follows.
  std::vector<std::unique_ptr<Pooled>> files_;  // Never replaced once set.
  std::list<std::uint32_t> used_;  // Open files with descriptors, the latest used first.
  std::vector<OpenFile> open_;     // Null where the file is closed.
  std::map<std::uint32_t, std::pair<std::uint64_t, Status>> failed_;
  std::uint64_t tail_bytes_ = 0;  // What KeepTails may still take.
};

}  // namespace varve
