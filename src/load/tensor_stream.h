/// The bytes of many tensors of an open checkpoint, one after the other, in bounded memory: a
/// thread reads ahead in batches while the caller uses what has been read.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// A tensor to be streamed whole, row-major, as `dtype`: the stored one, or one that it is cast to
/// (see CanCast).
struct StreamItem {
  const TensorMetadata* tensor = nullptr;
  DType dtype = DType::kUInt8;
  [[nodiscard]] std::uint64_t bytes() const;
};

class TensorStream {
 public:
  /// What is read at once, at most. Larger batches are no faster.
  static constexpr std::uint64_t kMaxBatchBytes = std::uint64_t{32} << 20;

  /// Holds at most `max_bytes`, or one element's row where that is more. `reader` and what the
  /// items point to must outlive the stream. After `stop` reads return Cancelled.
  TensorStream(CheckpointReader& reader, std::vector<StreamItem> items, std::uint64_t max_bytes,
               std::stop_token stop = {});
  ~TensorStream();
  TensorStream(const TensorStream&) = delete;
  TensorStream& operator=(const TensorStream&) = delete;

  [[nodiscard]] const std::vector<StreamItem>& items() const { return items_; }

  /// Reads the next bytes: `out.size()` of item `item` from `at` on. Must follow the last read
  /// (items without bytes may be left out). Errors: as CheckpointReader::ReadTensors; Internal out
  /// of turn.
  Status Read(std::size_t item, std::uint64_t at, std::span<std::byte> out);

 private:
  /// A run of an item's rows.
  struct Piece {
    std::size_t item = 0;
    std::uint64_t begin = 0;  ///< Byte of the item.
    Box box;
    std::span<std::byte> bytes;  ///< In the batch's memory.
  };
  struct Batch {
    std::vector<Piece> pieces;
    std::vector<std::byte> memory;
  };

  void ReadAhead();  // The thread's.
  void Run();
  Status Load(Batch* batch);
  std::vector<std::byte> TakeMemory();

  CheckpointReader& reader_;
  std::stop_token stop_requested_;
  std::vector<StreamItem> items_;
  std::uint64_t batch_bytes_;

  Batch current_;  // The caller's; read from `piece_` on.
  std::size_t piece_ = 0;
  std::vector<std::byte> stored_;  // The thread's: what is read before it is cast.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;  // The rest is guarded by mutex_.
  // Memory of used batches. Fresh memory would cost more than all other work here.
  std::vector<std::vector<std::byte>> spare_;
  Status status_;
  bool done_ = false;
  bool stop_ = false;
  std::thread thread_;
};

/// Cuts a box of elements of `item_size` bytes into boxes of whole rows of some dimension, in
/// row-major order, of at most `max_bytes` (or one element). None for an empty box.
std::vector<Box> Slabs(const Box& box, std::uint64_t item_size, std::uint64_t max_bytes);

}  // namespace varve
