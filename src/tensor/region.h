/// The correspondence between a stored chunk (row-major, packed) and strided memory, for the part
/// of the tensor both of them hold. The same map serves saving (memory to chunk) and loading
/// (chunk to memory). And the bytes that strided memory covers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "varve/tensor.h"

namespace varve {

/// Strided memory that holds `box` of a tensor. `data` addresses the element at `box.offsets`.
/// Non-owning: the memory must outlive every Region made from it.
struct StridedMemory {
  std::byte* data = nullptr;
  Box box;
  Strides strides;  ///< In elements.
  std::uint64_t item_size = 1;
};

/// Bytes [begin, end) of this process's memory.
struct MemoryRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

/// Returns the smallest range that holds all elements; empty when there are none.
MemoryRange SpanOf(const StridedMemory& memory);

/// Returns the bytes of all elements, as ranges in ascending order of their beginnings. Elements
/// that lie one after the other are one range; ranges overlap where elements share bytes. Cost: one
/// range per contiguous run.
std::vector<MemoryRange> RangesOf(const StridedMemory& memory);

/// Returns true when two elements share bytes, as in an expanded or unfolded tensor. Cost: constant
/// for memory that was cut, transposed or stepped out of an ordinary tensor; that of RangesOf for
/// other strides.
bool OverlapsItself(const StridedMemory& memory);

/// A half-open range of byte offsets.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

/// Elements that lie one after the other in the chunk: `count` of them from byte `chunk_begin`,
/// the i-th at `memory + i * memory_step` (bytes).
struct Run {
  std::uint64_t chunk_begin = 0;
  std::byte* memory = nullptr;
  std::uint64_t count = 0;
  std::int64_t memory_step = 0;
};

/// Rows of `row_bytes` that lie together in the chunk and in memory alike: row i is `i % inner`
/// inner and `i / inner` outer steps (bytes) from the first place of either. Those from `first` on
/// are meant, `count` of them.
struct Plane {
  std::uint64_t chunk_begin = 0;
  std::byte* memory = nullptr;
  std::uint64_t row_bytes = 0;
  std::uint64_t inner = 1;
  std::uint64_t first = 0;
  std::uint64_t count = 1;
  std::int64_t memory_inner = 0;
  std::int64_t memory_outer = 0;
  std::uint64_t chunk_inner = 0;
  std::uint64_t chunk_outer = 0;
};

/// Immutable after construction; safe to use from several threads, which may copy disjoint byte
/// ranges at the same time.
class Region {
 public:
  /// `common` is the box to map: a non-empty part of both `chunk` and `memory.box`.
  Region(const Box& chunk, const StridedMemory& memory, const Box& common);

  /// Returns bytes [first byte, last byte + 1) of the chunk that the region touches.
  [[nodiscard]] ByteRange extent() const { return extent_; }

  /// Returns the touched byte ranges of the chunk in ascending order, ranges at most `max_gap`
  /// bytes apart joined into one.
  [[nodiscard]] std::vector<ByteRange> TouchedRanges(std::uint64_t max_gap) const;

  /// Returns the bytes that the region copies in all.
  [[nodiscard]] std::uint64_t bytes() const;

  [[nodiscard]] std::uint64_t item_size() const { return item_size_; }

  /// Returns the bytes that lie together in the chunk and in memory alike, so that they could be
  /// read straight into place; one element's size when the memory is strided.
  [[nodiscard]] std::uint64_t contiguous_bytes() const {
    return inner_step_ == static_cast<std::int64_t>(item_size_) ? inner_count_ * item_size_
                                                                : item_size_;
  }

  /// Returns the memory of bytes [chunk_begin, chunk_begin + size) of the chunk; nothing where the
  /// region is several runs in the chunk, or in memory.
  [[nodiscard]] std::optional<std::span<const std::byte>> Contiguous(std::uint64_t chunk_begin,
                                                                     std::uint64_t size) const {
    if (run_count_ != 1 || inner_step_ != static_cast<std::int64_t>(item_size_)) {
      return std::nullopt;
    }
    return std::span<const std::byte>(memory_ + (chunk_begin - extent_.begin), size);
  }

  /// Calls `visit` for each run overlapping `range` of the chunk, in ascending order, clipped to
  /// the range. `range` must not cut an element.
  void ForEachRun(ByteRange range, const std::function<void(const Run&)>& visit) const;

  /// Calls `visit` with planes that make up the same bytes, in ascending order: far fewer than runs
  /// where memory is strided. Rows are whole runs where those lie together in memory, else single
  /// elements; a run that the range cuts is a plane of its own.
  void ForEachPlane(ByteRange range, const std::function<void(const Plane&)>& visit) const;

  /// Copies memory into `chunk_bytes`, which stands for the chunk's bytes from `chunk_begin`.
  void CopyFromMemory(std::uint64_t chunk_begin, std::span<std::byte> chunk_bytes) const;

  /// Copies `chunk_bytes` (the chunk's bytes from `chunk_begin`) into memory; bytes of the chunk
  /// outside the region are ignored.
  void CopyToMemory(std::uint64_t chunk_begin, std::span<const std::byte> chunk_bytes) const;

 private:
  struct Dim {
    std::uint64_t size = 0;
    std::uint64_t chunk_step = 0;  // Bytes.
    std::int64_t memory_step = 0;  // Bytes.
  };
  [[nodiscard]] Run RunAt(std::uint64_t index) const;
  [[nodiscard]] std::vector<Dim> RowDims() const;

  std::uint64_t item_size_;
  std::byte* memory_;
  ByteRange extent_;
  std::vector<Dim> outer_;         // Outermost first; the inner dimension is kept apart.
  std::uint64_t inner_count_ = 1;  // Elements per run.
  std::int64_t inner_step_ = 0;    // Bytes between a run's elements in memory.
  std::uint64_t run_count_ = 1;
};

}  // namespace varve
