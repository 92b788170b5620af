/// The data files of an open checkpoint: opened when first needed, checked once, kept open.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "catalogue/open.h"
#include "pipeline/file_reader.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Threads: safe to call concurrently. `index` must outlive it.
class CheckpointFiles {
 public:
  CheckpointFiles(Storage& storage, const OpenedIndex& index)
      : storage_(storage), index_(index), files_(index.metadata.files.size()) {}

  /// Opens a file, or returns the open one. Errors: DataLoss naming the file when it is missing, of
  /// another size or has a damaged header; FailedPrecondition when an overwrite has put another
  /// save in its place.
  Result<ReadableFile*> Open(std::uint32_t number);

  /// Returns a file as the read pipeline wants it, without targets. Errors: as Open.
  Result<FileReads> Reads(std::uint32_t number);

  [[nodiscard]] Storage& storage() const { return storage_; }

 private:
  Result<std::unique_ptr<ReadableFile>> OpenChecked(const DataFile& expected);

  Storage& storage_;
  const OpenedIndex& index_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ReadableFile>> files_;  // Guarded by mutex_; never replaced once set.
};

}  // namespace varve
