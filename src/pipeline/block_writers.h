/// Threads that write blocks of a file, several at once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/pace.h"
#include "pipeline/buffer_pool.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// How a file's bytes are written.
struct WriteSegmentsOptions {
  std::uint64_t block_bytes = std::uint64_t{1} << 20;  ///< Size of the blocks that have checksums.
  /// Whether WriteSegments returns checksums and hashes. Without them it only copies: for files
  /// that sum what they are given by themselves.
  bool sums = true;
  /// Number of concurrent writes. Measured: one or two reach 0.55-0.8 of a disk, four to eight all.
  int writes_in_flight = 6;
  std::uint64_t max_bytes_per_second = 0;         ///< 0: as fast as the storage takes them.
  std::function<void(std::uint64_t)> on_written;  ///< Bytes just written; from writer threads.
  /// The tensor with that number, for messages; may be empty.
  std::function<std::string(std::uint32_t owner)> name_of{};
  std::stop_token stop;
};

/// A block on its way to the file. `data` is readable up to the next multiple of kDirectAlignment
/// behind `bytes`.
struct BlockToWrite {
  const std::byte* data = nullptr;
  std::uint64_t offset = 0;  ///< In the file.
  std::uint64_t bytes = 0;
  BufferPool::Lease memory{};  ///< Given back once written; empty for memory that the pool does not
                               ///< own.
  /// The writing thread calls this with the result; may be empty; must not throw. After an error
  /// the blocks behind it may stay unwritten; this is then not called for them.
  std::function<void(const Status&)> ended{};
};

/// Takes blocks from a short queue and writes them. The first error stops everything.
class BlockWriters {
 public:
  /// Starts at most `block_count` threads, and fewer where the system starts no more. `file` and
  /// `options` must outlive this.
  BlockWriters(WritableFile& file, const WriteSegmentsOptions& options, std::uint64_t block_count);
  BlockWriters(const BlockWriters&) = delete;
  BlockWriters& operator=(const BlockWriters&) = delete;
  ~BlockWriters() { Join(); }

  /// Queues a block; waits while two are queued already. Where no thread could be started, writes
  /// it on the calling thread. Returns false after an error.
  bool Push(BlockToWrite block);

  /// Waits for all queued blocks and returns the first error. The last call.
  Status Finish();

  void Fail(Status status);

 private:
  void Join();
  void Run();
  /// Writes a block and reports to its `ended`. Returns false after an error, which stops all
  /// writers.
  bool Handle(const BlockToWrite& block);
  Status WriteOne(const BlockToWrite& block);
  /// Waits until the bandwidth allows a write of that size. Returns false when stopped meanwhile.
  bool WaitForTurn(std::uint64_t bytes);

  WritableFile& file_;
  const WriteSegmentsOptions& options_;
  std::mutex mutex_;  // Guards all below.
  std::condition_variable_any changed_;
  std::deque<BlockToWrite> queue_;
  Pace pace_;
  bool done_ = false;
  Status status_;
  std::vector<std::jthread> threads_;
};

}  // namespace varve
