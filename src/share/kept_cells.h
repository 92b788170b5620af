/// The stretches of files that a rank has read for others, and keeps for a while.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "pipeline/buffer_pool.h"
#include "tensor/region.h"
#include "varve/status.h"

namespace varve {

/// A stretch of a file in memory, as far as it has been read: whole parts of `part_bytes`, the last
/// may be short. Threads: safe.
class Cell {
 public:
  /// Reads a range into memory, which is aligned as the range is.
  using Read = std::function<Status(ByteRange range, std::span<std::byte> memory)>;

  Cell(BufferPool::Lease memory, ByteRange range, std::uint64_t part_bytes);

  /// Reads those parts of `wanted` that are not there. One thread reads at a time, so that none
  /// reads what another one is reading.
  Status Fill(ByteRange wanted, const Read& read);
  /// Returns bytes that Fill has brought.
  [[nodiscard]] std::span<const std::byte> BytesOf(ByteRange range) const {
    return {memory_.data() + (range.begin - range_.begin), range.end - range.begin};
  }

 private:
  const BufferPool::Lease memory_;
  const ByteRange range_;
  const std::uint64_t part_bytes_;
  std::mutex mutex_;         // Guards `there_`, and held while reading.
  std::vector<bool> there_;  // By part.
};

/// The cells used last, at most `most`, each of at most kPoolBlockBytes. Its memory is its own: who
/// waits for it waits for users of these cells alone. Threads: safe.
class KeptCells {
 public:
  explicit KeptCells(std::size_t most);

  /// Returns the cell of a file that has this range, kept or new. It lives as long as the caller
  /// holds it. Waits for memory while callers hold many that are not kept any more.
  Result<std::shared_ptr<Cell>> Of(std::uint32_t file, ByteRange range, std::uint64_t part_bytes);

 private:
  std::shared_ptr<Cell> DropOne();

  using Id = std::pair<std::uint32_t, std::uint64_t>;  // File and begin.
  using Kept = std::list<std::pair<Id, std::shared_ptr<Cell>>>;

  const std::size_t most_;
  BufferPool pool_;
  std::mutex mutex_;  // Guards what follows.
  Kept kept_;         // The one used last first.
  std::map<Id, Kept::iterator> places_;
};

}  // namespace varve
