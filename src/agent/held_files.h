/// The data files that an agent has in memory after they have been written.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/shared_memory.h"
#include "base/bytes.h"
#include "base/time_source.h"
#include "pipeline/staged_image.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// A data file in a pool's memory.
struct HeldFile {
  std::string path;  ///< Path of the checkpoint.
  std::string name;  ///< File name in the checkpoint's directory.
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint64_t data_begin = 0;  ///< Bytes before the data, which are not held.
  std::uint64_t pool_blocks = 0;
  StagedImage image;
};

Bytes EncodeHeldFile(const HeldFile& file);
/// Decodes a HeldFile. Errors: DataLoss.
Result<HeldFile> DecodeHeldFile(std::string_view bytes);

struct Held {
  HeldFile file;
  std::uint64_t session = 0;  ///< The session whose trainer made the memory.
  std::uint64_t ticket = 0;
  /// When the trainer exited; nothing while it lives.
  std::optional<TimePoint> orphan_since;
  std::shared_ptr<PoolMemory> pool;
  std::shared_ptr<ValidityPage> page;
  std::shared_ptr<ValidityPage> lease;  ///< Of the trainer's memory.
  TimePoint since = Now();              ///< When it was written.
};

/// Threads: safe.
class HeldFiles {
 public:
  /// Keeps the files of trainers that have exited for at least `orphans_stay`.
  explicit HeldFiles(std::chrono::milliseconds orphans_stay) : orphans_stay_(orphans_stay) {}

  /// Keeps a file. Gives up the files that exited trainers had saved as the same rank in the same
  /// directory: they are no longer the newest. Gives up all files of trainers that exited long ago.
  void Add(Held held);

  /// Gives one file up: its page is revoked, so that readers notice.
  void Forget(std::uint64_t session, std::uint64_t ticket);

  /// Gives up all files, or those of `session`.
  void ForgetAll(std::optional<std::uint64_t> session = std::nullopt);

  /// Marks the session's files as orphaned: only the agent has them from now on.
  void Orphan(std::uint64_t session);

  /// Returns all files of a checkpoint.
  [[nodiscard]] std::vector<Held> Find(const std::string& path);
  [[nodiscard]] std::vector<Held> All();

  /// Marks the blocks of a session's files in `wanted`.
  void MarkBlocks(std::uint64_t session, std::vector<bool>* wanted);

 private:
  const std::chrono::milliseconds orphans_stay_;
  std::mutex mutex_;
  std::vector<Held> files_;
};

}  // namespace varve
