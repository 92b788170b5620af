/// The copy of one file from one storage to another, through blocks of the shared pool, with the
/// checksums that are known of it compared on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// What is known of a file.
struct CopiedFile {
  std::string from;
  std::string to;
  std::uint64_t size = 0;
  /// The entry in the checkpoint's index, with checksums of blocks; null where there is none, and
  /// must outlive the copy.
  const DataFile* index = nullptr;
  std::uint64_t block_bytes = 0;
  bool has_header = false;    ///< One of Varve's own data files: its header is checked too.
  bool is_exclusive = false;  ///< Fail where there is a file.
};

struct CopyTerms {
  int threads = 4;
  std::function<void(std::uint64_t)> on_copied{};  ///< Bytes just written; from several threads.
  std::stop_token stop{};
};

/// Copies a file. In an object store nothing is visible unless all of it was read and found good.
/// Archives of torch.save are checked by the sums that they hold. Errors: DataLoss, naming file and
/// bytes, for what is not what was written, another size, or a missing file; those of the storages;
/// Cancelled.
Status CopyFile(Storage& storage, const CopiedFile& file, const CopyTerms& terms);

}  // namespace varve
