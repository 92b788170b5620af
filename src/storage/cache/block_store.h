/// A directory of this host with blocks of remote files, which the processes of a node share.
///
/// The account, by what could go wrong:
///
///  1. A file was replaced. A block's name is the hash of the remote file's name, version (its
///     ETag) and size. Another content has other names; the old blocks are never asked for again. A
///     file whose server tells no version is not kept at all.
///  2. A process is killed while it writes a block. It writes under a temporary name (".new-") and
///     renames. Under the final name there is a whole block or nothing. Temporary files that are an
///     hour old are removed by step 6.
///  3. The host loses power. Nothing is synced: a block may come back torn, or empty. Its header
///     holds the checksums of the block and of itself, which every read compares.
///  4. A bit flips on the disk. As 3: the block is removed, an event says so, and it is fetched
///     again. A byte that came wrong from the server is kept wrong: these checksums are of what
///     came. A reader that compares the checkpoint's own checksums calls ReadableFile::Forget, and
///     reads again.
///  5. Several processes want one block. The first takes the flock of the block's group, looks
///     again, fetches and writes; the others wait for the lock and find the blocks. A lock ends
///     with its process. A process that has waited for `time_limit` fetches too: two writers of one
///     block rename two whole files of the same content. The lock files stay; there are 1024 of
///     them at most.
///  6. The directory grows. A process that has written 1/64 of the limit since it last looked adds
///     up all blocks; above 15/16 of the limit it removes those that were not used for longest,
///     down to 7/8. A flock lets one process at a time do that. A reader that has a removed block
///     open reads on. Eight processes that fill at once can pass the limit by a few hundredths.
///  7. The disk is full, or the directory cannot be written. The process stops using it, says so in
///     one event of the level WARNING, and reads from the server.
///  8. Another user prepares the directory. It is used only where it belongs to this user and no
///     other may write to it; otherwise as 7. It is made so.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/file_descriptor.h"
#include "storage/cache/block_file.h"
#include "varve/status.h"

namespace varve::cache {

struct CacheOptions {
  std::string directory;  ///< Made where it is not there; its parent must be.
  std::uint64_t max_bytes = std::uint64_t{64} << 30;   ///< Of all blocks with their headers.
  std::uint64_t block_bytes = std::uint64_t{1} << 20;  ///< The same for all users of a directory.
  std::uint64_t group_blocks = 8;  ///< So many blocks share a lock and are fetched at once at most.
  std::chrono::milliseconds time_limit{60'000};  ///< For another process that fetches.
};

/// A lock of the directory, as that of a group of blocks, kept until it is destroyed; movable, may
/// be empty. A child of a fork has the descriptor too, so that the lock is given back by name: a
/// close alone would leave it to the child.
class CacheLock {
 public:
  CacheLock() = default;
  /// Takes a file that this process holds the flock of.
  explicit CacheLock(FileDescriptor locked) : file_(std::move(locked)) {}
  CacheLock(CacheLock&&) = default;
  CacheLock& operator=(CacheLock&&) = default;
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;
  ~CacheLock();

 private:
  FileDescriptor file_;
};

/// Threads: safe to call concurrently.
class BlockStore {
 public:
  /// Makes the directory, and switches itself off where that fails.
  explicit BlockStore(CacheOptions options);
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;
  ~BlockStore() = default;

  [[nodiscard]] const CacheOptions& options() const { return options_; }
  /// Returns false once the directory could not be used.
  [[nodiscard]] bool usable() const { return usable_.load(std::memory_order_relaxed); }

  /// Fills `block` where the directory has it whole. Removes one that is damaged.
  bool Read(const BlockName& name, std::span<std::byte> block);

  /// Removes a block. Returns false where there is none.
  bool Remove(const BlockName& name);

  /// Keeps a block. A failure switches the store off and is reported once.
  void Write(const BlockName& name, std::span<const std::byte> block);

  /// The right to fetch the blocks of a group. Empty where another process had it for too long, or
  /// where the directory has no locks. Errors: Cancelled by the calling thread's CurrentStop.
  Result<CacheLock> LockGroup(const BlockName& name);

  /// Removes the blocks that were not used for longest where there are too many bytes (step 6).
  void Shrink();
  /// Returns false where another thread or process does so.
  bool ShrinkOnce();

 private:
  [[nodiscard]] std::string PathOf(const BlockName& name) const;
  [[nodiscard]] std::string FolderOf(const BlockName& name) const;
  void SwitchOff(const Status& why);

  const CacheOptions options_;
  const std::string root_;
  std::atomic<bool> usable_{true};
  std::atomic<std::uint64_t> written_;      // Since the last Shrink.
  std::atomic<std::uint64_t> requests_{0};  // To shrink.
  std::atomic<std::uint64_t> names_{0};
};

}  // namespace varve::cache
