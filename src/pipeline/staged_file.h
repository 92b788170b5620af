/// The content of a data file on its way from tensor memory through staging memory to the disk.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "pipeline/file_writer.h"
#include "pipeline/segment_copier.h"
#include "pipeline/staged_image.h"
#include "pipeline/staging_pool.h"

namespace varve {

/// One thread calls Fill, which copies everything once; another calls WriteTo, at the same time or
/// afterwards. If the reservation holds the whole file, it does so until this is destroyed, and
/// WriteTo may be called again after a failure. If not, the file goes through it in waves: blocks
/// are used again as soon as they are written, and Fill waits for that.
class StagedFile {
 public:
  /// `segments` must stay valid until Fill has returned. None of them may be produced.
  StagedFile(std::span<const FileSegment> segments, std::uint64_t checksum_block_bytes,
             StagingPool::Reservation memory);
  /// Takes a copy that has been made, maybe by another process: Fill is not called. `blocks` are
  /// those of the image, in its order, and must stay valid. `image` must have passed
  /// CheckStagedImage. Blocks in small pages are copied into blocks of `through` on the way to the
  /// file. `intact` returns true while the lease holds: the owner of the memory may revoke the
  /// lease and use the memory again.
  StagedFile(const StagedImage& image, std::span<const std::byte* const> blocks,
             BufferPool& through, std::function<bool()> intact);
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  ~StagedFile() = default;

  /// Returns the number of blocks of staging memory that a file of these segments fills.
  static std::size_t BlocksFor(std::span<const FileSegment> segments,
                               std::uint64_t checksum_block_bytes);

  /// Sets how Fill reads segments on devices; see SegmentCopier::SetUp. With `sums_later` the
  /// caller must call SumInBackground after a Fill that returned Ok. Not for another process.
  void SetUpDevices(std::function<std::string(std::uint32_t owner)> name_of, BufferPool* through,
                    bool sums_later = false) {
    copier_.SetUp(std::move(name_of), through, sums_later && !in_waves_);
  }
  [[nodiscard]] const SegmentCopier& copier() const { return copier_; }

  /// Returns true when the memory is smaller than the file.
  [[nodiscard]] bool in_waves() const { return in_waves_; }

  /// Returns the description of the copy for another process that sees the same memory. Requires:
  /// Fill has returned Ok, and not in waves.
  [[nodiscard]] StagedImage Describe();

  /// Moves the memory of the copy out, so that it outlives this. WriteTo must not be called any
  /// more.
  StagingPool::Reservation TakeMemory() { return std::move(memory_); }

  /// Copies all segments, taking the checksums of blocks in the same pass (but see
  /// SumInBackground), on the calling thread and up to `threads` - 1 others. Then calls `check`,
  /// which may refuse the copy. Errors:
  /// Cancelled on `stop` or when the writing of an earlier wave has failed; `check`'s; those of
  /// reading a device.
  Status Fill(int threads, const std::stop_token& stop, const std::function<Status()>& check = {});

  /// Starts a thread that makes the sums which Fill has left out; WriteTo waits for them. Makes
  /// them itself where the system starts no thread. A sum cannot find a write to its block that
  /// came before it. Must be called before the caller reports the copy as made: the writing thread
  /// may destroy this object from then on.
  void SumInBackground();

  /// Reports that Fill is not called, or does not go on, so that WriteTo does not wait for it.
  void Abandon(Status reason);

  /// Reports that WriteTo is not called (again), so that Fill does not wait for it.
  void Discard(Status reason);

  /// Writes the copy at `data_begin` of `file`, hashing content on the way; waits for what Fill has
  /// not copied yet. Each block is compared with the checksum taken when or after it was staged.
  /// Errors: the first I/O error; the error that Fill or Abandon reported; DataLoss naming the
  /// segment when a block no longer matches, because the source changed while it was copied or
  /// something else wrote to the memory, also where borrowed memory is not intact; Cancelled.
  Result<WrittenSegments> WriteTo(WritableFile& file, std::uint64_t data_begin,
                                  const WriteSegmentsOptions& options);

 private:
  /// unit_bytes_ of the file, in order; the last may be shorter.
  struct Block {
    const std::byte* memory = nullptr;  // Null while it has none.
    bool filled = false;                // And summed.
    std::vector<std::uint32_t> crc32c;
    bool in_small_pages = false;  // Borrowed, and to be copied on the way.
  };

  [[nodiscard]] std::uint64_t BlockSize(std::size_t index) const;
  Result<std::byte*> TakeMemory(std::size_t index, const std::stop_token& stop);
  Status FillBlock(std::size_t index, std::byte* memory, std::vector<std::uint32_t>* sums);
  void SumRest(const std::stop_token& stop);
  Status WaitComplete(const std::stop_token& stop);
  Result<const Block*> WaitFilled(std::size_t index, const std::stop_token& stop);
  void Written(std::size_t index);
  [[nodiscard]] Status CheckIntact() const;
  class Inspector;
  Status WriteBlocks(BlockWriters* writers, Inspector* inspector, std::uint64_t data_begin,
                     const std::stop_token& stop);

  BufferPool* const through_ = nullptr;
  const std::function<bool()> intact_;
  const std::uint64_t checksum_block_bytes_;
  const std::uint64_t unit_bytes_;  // Whole checksum blocks, at most kPoolBlockBytes.
  std::vector<StagedPart> parts_;
  SegmentCopier copier_;
  std::uint64_t bytes_ = 0;
  StagingPool::Reservation memory_;
  bool in_waves_ = false;

  std::mutex mutex_;  // Guards all below.
  std::condition_variable_any changed_;
  std::vector<Block> blocks_;
  std::vector<std::byte*> free_;
  std::size_t next_to_take_ = 0;
  bool complete_ = false;              // Everything is filled and checked.
  Status fill_status_;                 // The error, if it never will be.
  Status write_status_;                // The error, in waves, if no block will become free.
  std::vector<std::size_t> unsummed_;  // Blocks that Fill has copied and not summed.

  std::jthread summing_;  // Last: it uses all of the above.
};

}  // namespace varve
