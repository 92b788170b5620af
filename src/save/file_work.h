/// A data file of a save before it is written, whichever the format, and how it is written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "pipeline/file_writer.h"
#include "pipeline/staged_file.h"
#include "varve/options.h"
#include "varve/storage.h"

namespace varve {

/// The parts of a file that are known only once its data have been written.
struct FinishedFile {
  Bytes header;   ///< Exactly the bytes before the data; empty where there are none.
  Bytes receipt;  ///< This rank's receipt, which the coordinator reads.
};

struct FileWork {
  std::uint64_t size = 0;  ///< Of the whole file.
  std::uint64_t data_begin = 0;
  std::uint64_t block_bytes = 0;  ///< Size of the blocks that have checksums.
  /// Whether `finish` gets checksums and hashes; it may get them all the same.
  bool sums = true;
  /// The data. Regions refer to the state's memory; literals live in `keep` or the state.
  std::vector<FileSegment> segments;
  /// The tensor with that number, for messages.
  std::function<std::string(std::uint32_t owner)> name_of;
  /// Opens what the data are written to, in the staging directory; a new file of the work's name
  /// where there is no function. Called again when a failed write is repeated.
  std::function<Result<std::unique_ptr<WritableFile>>(Storage&, const std::string& directory,
                                                      bool direct)>
      open{};
  /// Makes header and receipt. May be called again, because a failed write can be repeated.
  std::function<Result<FinishedFile>(WrittenSegments)> finish;
  std::shared_ptr<const void> keep;
  /// The layout of the file in the format's own encoding, if plan and assignment do not determine
  /// it.
  Bytes layout;
};

struct WrittenShare {
  Bytes receipt;
  std::uint64_t bytes = 0;
  bool direct = false;
  std::uint64_t device_bytes = 0;  ///< As in SaveReport; of a copy that was staged they are 0.
  std::uint64_t pageable_bytes = 0;
};

/// The maker of the directory of a file.
enum class Directory : std::uint8_t {
  kOwn,
  /// Another node's, which on network file systems may take a while to be seen: the file is tried
  /// for some seconds.
  kOfAnotherRank,
};

/// Writes the file at `path`, which must not exist, and makes it durable. The data come from the
/// segments, or from `staged`, which is a copy of them. Adds "write" and "sync" to `phases`, unless
/// it is null. Errors: as WriteSegments and StagedFile::WriteTo; FailedPrecondition where another
/// rank's directory is not seen.
Result<WrittenShare> WriteFileWork(Storage& storage, const std::string& path, const FileWork& work,
                                   StagedFile* staged, const SaveOptions& options,
                                   std::vector<Phase>* phases = nullptr,
                                   Directory directory = Directory::kOwn);

}  // namespace varve
