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
#include "pipeline/staged_image.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// A data file in a pool's memory.
struct HeldFile {
  std::string path;  ///< Of the checkpoint.
  std::string name;  ///< In its directory.
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint64_t data_begin = 0;  ///< What stands before the data is not held.
  std::uint64_t pool_blocks = 0;
  StagedImage image;
};

Bytes EncodeHeldFile(const HeldFile& file);
/// Errors: DataLoss.
Result<HeldFile> DecodeHeldFile(std::string_view bytes);

struct Held {
  HeldFile file;
  std::uint64_t session = 0;  ///< Whose memory it is.
  std::uint64_t turn = 0;
  /// Since when the trainer is gone: nobody will ask for the memory.
  std::optional<std::chrono::steady_clock::time_point> orphan_since;
  std::shared_ptr<PoolMemory> pool;
  std::shared_ptr<ValidityPage> page;
  std::shared_ptr<ValidityPage> lease;  ///< Of the trainer's memory.
};

/// Threads: safe.
class HeldFiles {
 public:
  /// What trainers that are gone had saved is kept for at least `orphans_stay`.
  explicit HeldFiles(std::chrono::milliseconds orphans_stay) : orphans_stay_(orphans_stay) {}

  /// Keeps a file. What trainers that are gone had saved as the same rank in the same directory is
  /// no longer the newest, and is given up; and so is whatever they saved, if that was long ago.
  void Add(Held held);

  /// Gives one up: whoever reads from it learns that it is no longer there.
  void Forget(std::uint64_t session, std::uint64_t turn);

  /// Gives all of them up; or those of that session.
  void ForgetAll(std::optional<std::uint64_t> session = std::nullopt);

  /// From now on that session's files are nobody's but ours.
  void Orphan(std::uint64_t session);

  /// All files of a checkpoint.
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
