// Blocks get memory in file order, so that the blocks that are written next never lack memory that
// later ones hold. The writer follows in the same order. It hashes content, which must go front to
// back, and sums each block again. That second pass over the copy runs in the background; the pass
// that training waits for only copies and sums, and what a device copies to its place is summed
// right after it (SumInBackground).
//
// Shared memory in small pages is copied once more in that pass, into a block of the buffer pool:
// the system pins pages one by one for a direct write, which takes longer than the copy. Measured:
// 1 GiB written in 0.56 s from it, in 0.31 s from huge pages.

#include "pipeline/staged_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/checksum.h"
#include "base/guarded.h"
#include "base/run_threads.h"
#include "base/threads.h"
#include "base/time_source.h"
#include "base/trace.h"

namespace varve {
namespace {

// A step that is hashed and then summed stays in the cache.
constexpr std::uint64_t kInspectedStepBytes = std::uint64_t{128} << 10;

/// Threads that sum what devices have copied. The file is written more slowly than one of them
/// sums.
constexpr int kSumThreads = 4;

std::uint64_t BytesOf(std::span<const FileSegment> segments) {
  std::uint64_t bytes = 0;
  for (const FileSegment& segment : segments) {
    bytes += segment.bytes;
  }
  return bytes;
}

}  // namespace

/// Goes through the staged bytes front to back: hashes content and sums checksum blocks again.
class StagedFile::Inspector {
 public:
  Inspector(const std::vector<StagedPart>& parts, std::uint64_t checksum_block_bytes)
      : parts_(parts), checksum_block_bytes_(checksum_block_bytes) {
    PassEmpty();
  }

  /// Inspects the next bytes: whole checksum blocks except at the end of the file, and their sums
  /// when they were staged. Copies them to `copy` on the way, if that is not null.
  Status Inspect(std::span<const std::byte> bytes, std::span<const std::uint32_t> sums,
                 std::byte* copy) {
    for (const std::uint32_t wanted : sums) {
      const std::uint64_t size = std::min<std::uint64_t>(checksum_block_bytes_, bytes.size());
      const std::uint64_t begin = at_;
      std::uint32_t crc = 0;
      for (std::uint64_t done = 0; done < size;) {
        const std::uint64_t step =
            std::min({parts_[part_].end - at_, size - done, kInspectedStepBytes});
        std::span<const std::byte> part = bytes.subspan(done, step);
        if (copy != nullptr) {
          std::memcpy(copy, part.data(), step);
          part = {copy, step};  // The bytes to write are the bytes to sum, and are in the cache.
          copy += step;
        }
        crc = Crc32cExtend(crc, part);
        Hash(part);
        done += step;
      }
      if (crc != wanted) {
        return DataLoss("staged bytes [" + std::to_string(begin) + ", " + std::to_string(at_) +
                        ") are not those that were summed: a tensor was written to while it was "
                        "being staged, or something wrote to the staging memory");
      }
      result_.block_crc32c.push_back(crc);
      bytes = bytes.subspan(size);
    }
    return Status::Ok();
  }

  WrittenSegments Take() { return std::move(result_); }

 private:
  [[nodiscard]] std::uint64_t part_begin() const { return part_ == 0 ? 0 : parts_[part_ - 1].end; }

  /// Hashes bytes of the current part, at most to its end.
  void Hash(std::span<const std::byte> bytes) {
    const bool first = at_ == part_begin();
    at_ += bytes.size();
    const bool last = at_ == parts_[part_].end;
    if (parts_[part_].content && first && last) {
      result_.contents.push_back(Xxh3(bytes));
    } else if (parts_[part_].content) {
      if (first) {
        stream_.Reset();
      }
      stream_.Update(bytes);
      if (last) {
        result_.contents.push_back(stream_.Digest());
      }
    }
    if (last) {
      ++part_;
      PassEmpty();
    }
  }

  void PassEmpty() {
    for (; part_ < parts_.size() && parts_[part_].end == at_; ++part_) {
      if (parts_[part_].content) {
        result_.contents.push_back(Xxh3({}));
      }
    }
  }

  const std::vector<StagedPart>& parts_;
  const std::uint64_t checksum_block_bytes_;
  std::size_t part_ = 0;
  std::uint64_t at_ = 0;
  Xxh3Stream stream_;
  WrittenSegments result_;
};

StagedFile::StagedFile(std::span<const FileSegment> segments, std::uint64_t checksum_block_bytes,
                       StagingPool::Reservation memory)
    : checksum_block_bytes_(checksum_block_bytes),
      unit_bytes_(StagedUnitBytes(checksum_block_bytes)),
      copier_(segments, parts_, checksum_block_bytes),
      memory_(std::move(memory)),
      blocks_(BlocksFor(segments, checksum_block_bytes)),
      free_(memory_.blocks().rbegin(), memory_.blocks().rend()) {
  unsummed_.reserve(blocks_.size());
  parts_.reserve(segments.size());
  for (const FileSegment& segment : segments) {
    bytes_ += segment.bytes;
    parts_.push_back({bytes_, segment.is_content()});
  }
  in_waves_ = memory_.blocks().size() < blocks_.size();
}

StagedFile::StagedFile(const StagedImage& image, std::span<const std::byte* const> blocks,
                       BufferPool& through, std::function<bool()> intact)
    : through_(&through),
      intact_(std::move(intact)),
      checksum_block_bytes_(image.checksum_block_bytes),
      unit_bytes_(StagedUnitBytes(image.checksum_block_bytes)),
      parts_(image.parts),
      copier_({}, parts_, image.checksum_block_bytes),
      bytes_(image.bytes()),
      blocks_(blocks.size()),
      complete_(true) {
  const std::size_t sums_of_a_unit = unit_bytes_ / checksum_block_bytes_;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto first = image.crc32c.begin() + static_cast<std::ptrdiff_t>(i * sums_of_a_unit);
    const std::size_t sums = DivideUp(BlockSize(i), checksum_block_bytes_);
    blocks_[i] = {blocks[i], true, {first, first + static_cast<std::ptrdiff_t>(sums)}};
  }
  for (const std::uint64_t place : image.in_small_pages) {
    blocks_[place].in_small_pages = true;
  }
}

StagedImage StagedFile::Describe() {
  const std::scoped_lock lock(mutex_);
  StagedImage image{checksum_block_bytes_, parts_, {}, {}, {}};
  image.blocks.reserve(blocks_.size());
  for (const Block& block : blocks_) {
    if (!memory_.HasHugePages(block.memory)) {
      image.in_small_pages.push_back(image.blocks.size());
    }
    image.blocks.push_back(memory_.NumberOf(block.memory));
    image.crc32c.insert(image.crc32c.end(), block.crc32c.begin(), block.crc32c.end());
  }
  return image;
}

std::size_t StagedFile::BlocksFor(std::span<const FileSegment> segments,
                                  std::uint64_t checksum_block_bytes) {
  return DivideUp(BytesOf(segments), StagedUnitBytes(checksum_block_bytes));
}

std::uint64_t StagedFile::BlockSize(std::size_t index) const {
  return std::min(unit_bytes_, bytes_ - index * unit_bytes_);
}

Status StagedFile::Fill(int threads, const std::stop_token& stop,
                        const std::function<Status()>& check) {
  const auto fill_one = [&](std::size_t i) -> Status {
    VARVE_ASSIGN_OR_RETURN(std::byte* const memory, TakeMemory(i, stop));
    std::vector<std::uint32_t> sums;
    const Slice slice("copy block", BlockSize(i));
    VARVE_RETURN_IF_ERROR(FillBlock(i, memory, &sums));
    const std::scoped_lock lock(mutex_);
    blocks_[i].memory = memory;
    if (sums.empty()) {
      unsummed_.push_back(i);
      return Status::Ok();
    }
    blocks_[i].crc32c = std::move(sums);
    blocks_[i].filled = true;
    changed_.notify_all();
    return Status::Ok();
  };
  const auto fill = [&](std::size_t i) -> Status {
    Status filled = Guarded([&] { return fill_one(i); });
    if (!filled.ok()) {
      Abandon(CopyOf(filled));  // In waves others wait for memory, and WriteTo for this block.
    }
    return filled;
  };
  // Whatever happens in it, WriteTo must learn that no more blocks come.
  Status status = Guarded([&] {
    VARVE_RETURN_IF_ERROR(RunThreads(blocks_.size(), threads, stop, fill));
    return check ? check() : Status::Ok();
  });
  if (!status.ok()) {
    Abandon(CopyOf(status));
    return status;
  }
  const std::scoped_lock lock(mutex_);
  complete_ = unsummed_.empty();
  changed_.notify_all();
  return status;
}

void StagedFile::SumInBackground() {
  {
    const std::scoped_lock lock(mutex_);
    if (unsummed_.empty()) {
      return;
    }
  }
  const auto start = [&] {
    summing_ = StartThread<std::jthread>([this](const std::stop_token& stop) { SumRest(stop); });
    return Status::Ok();
  };
  if (IsSimulated() || !Guarded(start).ok()) {
    SumRest({});
  }
}

void StagedFile::SumRest(const std::stop_token& stop) {
  std::sort(unsummed_.begin(), unsummed_.end());  // Fill has ended: they are this thread's.
  const auto sum = [&](std::size_t i) -> Status {
    Block& block = blocks_[unsummed_[i]];
    const std::uint64_t size = BlockSize(unsummed_[i]);
    const Slice slice("sum block", size);
    std::vector<std::uint32_t> sums;
    copier_.Sum({block.memory, size}, &sums);
    const std::scoped_lock lock(mutex_);
    block.crc32c = std::move(sums);
    block.filled = true;
    changed_.notify_all();
    return Status::Ok();
  };
  Status status = Guarded([&] { return RunThreads(unsummed_.size(), kSumThreads, stop, sum); });
  if (!status.ok()) {
    Abandon(std::move(status));
    return;
  }
  const std::scoped_lock lock(mutex_);
  complete_ = true;
  changed_.notify_all();
}

void StagedFile::Abandon(Status reason) {
  const std::scoped_lock lock(mutex_);
  if (fill_status_.ok()) {
    fill_status_ = std::move(reason);
  }
  changed_.notify_all();
}

void StagedFile::Discard(Status reason) {
  const std::scoped_lock lock(mutex_);
  if (write_status_.ok()) {
    write_status_ = std::move(reason);
  }
  changed_.notify_all();
}

Result<std::byte*> StagedFile::TakeMemory(std::size_t index, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  Wait(changed_, lock, stop, [&] {
    return !fill_status_.ok() || !write_status_.ok() || (next_to_take_ == index && !free_.empty());
  });
  if (stop.stop_requested()) {
    // A caller that cancels a save may free the tensors soon: nothing more is copied, even if
    // memory is free.
    return Status(StatusCode::kCancelled, "staging cancelled");
  }
  VARVE_RETURN_IF_ERROR(fill_status_);
  VARVE_RETURN_IF_ERROR(write_status_);
  std::byte* const memory = free_.back();
  free_.pop_back();
  ++next_to_take_;
  changed_.notify_all();
  return memory;
}

Status StagedFile::FillBlock(std::size_t index, std::byte* memory,
                             std::vector<std::uint32_t>* sums) {
  const std::uint64_t size = BlockSize(index);
  memory_.TakeSharedPages(memory);
  VARVE_RETURN_IF_ERROR(copier_.Copy(index * unit_bytes_, {memory, size}, sums));
  // Direct writes go out in whole pages: what follows the data in its last page must be zero.
  std::memset(memory + size, 0, RoundUp(size, kDirectAlignment) - size);
  return Status::Ok();
}

Result<const StagedFile::Block*> StagedFile::WaitFilled(std::size_t index,
                                                        const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const bool ready =
      Wait(changed_, lock, stop, [&] { return blocks_[index].filled || !fill_status_.ok(); });
  if (!ready) {
    return Status(StatusCode::kCancelled, "write cancelled");
  }
  if (!blocks_[index].filled) {
    return fill_status_;
  }
  return &blocks_[index];
}

Status StagedFile::WaitComplete(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const bool known = Wait(changed_, lock, stop, [&] { return complete_ || !fill_status_.ok(); });
  return known ? fill_status_ : Status(StatusCode::kCancelled, "write cancelled");
}

void StagedFile::Written(std::size_t index) {
  const std::scoped_lock lock(mutex_);
  // Memory of our reservation, which Fill may write to again.
  free_.push_back(const_cast<std::byte*>(std::exchange(blocks_[index].memory, nullptr)));
  changed_.notify_all();
}

Status StagedFile::WriteBlocks(BlockWriters* writers, Inspector* inspector,
                               std::uint64_t data_begin, const std::stop_token& stop) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(const Block* const block, WaitFilled(i, stop));
    if (block->memory == nullptr) {
      return Internal("a file that was staged in waves cannot be written twice");
    }
    const std::uint64_t size = BlockSize(i);
    BlockToWrite out{.data = block->memory, .offset = data_begin + i * unit_bytes_, .bytes = size};
    std::byte* copy = nullptr;
    if (block->in_small_pages) {
      VARVE_ASSIGN_OR_RETURN(out.memory, through_->Acquire());
      copy = out.memory.data();
      std::memset(copy + size, 0, RoundUp(size, kDirectAlignment) - size);
      out.data = copy;
    }
    VARVE_RETURN_IF_ERROR(inspector->Inspect({block->memory, size}, block->crc32c, copy));
    if (in_waves()) {
      // This thread may wait for a block that Fill has no memory for. A failed write never gives
      // its memory back, so Fill must learn of it, and this thread through Fill.
      out.ended = [this, i](const Status& status) {
        status.ok() ? Written(i) : Discard(CopyOf(status));
      };
    }
    if (!writers->Push(std::move(out))) {
      return Status::Ok();  // The writers know why.
    }
  }
  return WaitComplete(stop);
}

Status StagedFile::CheckIntact() const {
  return !intact_ || intact_() ? Status::Ok()
                               : DataLoss("the trainer uses the memory again that the copy was in");
}

Result<WrittenSegments> StagedFile::WriteTo(WritableFile& file, std::uint64_t data_begin,
                                            const WriteSegmentsOptions& options) {
  Inspector inspector(parts_, checksum_block_bytes_);
  BlockWriters writers(file, options, blocks_.size());
  const auto write = [&] { return WriteBlocks(&writers, &inspector, data_begin, options.stop); };
  if (Status status = Guarded(write); !status.ok()) {
    writers.Fail(std::move(status));
  }
  if (Status status = writers.Finish(); !status.ok()) {
    VARVE_RETURN_IF_ERROR(CheckIntact());  // A revoked lease explains the mismatch.
    if (in_waves()) {
      Discard(CopyOf(status));
    }
    return status;
  }
  // A block is inspected before it is written. A write to it in between is not noticed there.
  VARVE_RETURN_IF_ERROR(CheckIntact());
  return inspector.Take();
}

}  // namespace varve
