/// The stored pieces of a tensor, and where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "varve/hash.h"
#include "varve/tensor.h"

namespace varve {

/// The encoding of an extent's bytes. Native checkpoints have only kPlain.
enum class Encoding : std::uint8_t {
  kPlain,          ///< A chunk's elements, laid out as Chunk::strides says; an encoded Value.
  kTorchItem,      ///< A torch.save archive that holds one tensor, or one object.
  kZstdTorchItem,  ///< The same as a zstd stream.
  kInline,         ///< `begin` numbers a value that is part of the index; no bytes of a file.
};

/// Bytes [begin, end) of a data file; `file` indexes Metadata::files.
struct Extent {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Encoding encoding = Encoding::kPlain;
  friend bool operator==(const Extent&, const Extent&) = default;
};

/// A stored piece of a tensor: `box` of the whole tensor, at `extent`.
struct Chunk {
  Box box;
  Extent extent;
  Hash128 content;    ///< XXH3-128 of the chunk's bytes; zero where none was read.
  Strides strides;    ///< In elements from the extent's begin; empty means row-major and packed.
  bool conj = false;  ///< The stored bytes are the complex conjugate of the values.
  bool neg = false;   ///< The stored bytes are the negative of the values.
  /// Bytes from the extent's begin to the elements of a kTorchItem, which lie row-major and packed.
  /// 0 where only the archive itself has this number.
  std::uint64_t payload = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

struct ChunkGrid;

/// The chunks of a tensor, sorted by offsets. It is read like a vector, but an element is made when
/// it is asked for: of a tensor that ranks have cut into equal boxes, the list keeps the size of a
/// box and runs of places, and no chunk. Copies share that. A value; threads may read one list.
class ChunkList {
 public:
  class Iterator;
  using value_type = Chunk;
  using size_type = std::size_t;
  using const_iterator = Iterator;

  ChunkList() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a vector of chunks is a list of them.
  ChunkList(std::vector<Chunk> chunks) : listed_(std::move(chunks)) {}
  ChunkList(std::initializer_list<Chunk> chunks) : listed_(chunks) {}
  explicit ChunkList(std::shared_ptr<const ChunkGrid> grid) : grid_(std::move(grid)) {}

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] bool empty() const { return size() == 0; }
  // NOLINTBEGIN(readability-const-return-type): a change of what is made here would be lost.
  [[nodiscard]] const Chunk operator[](std::size_t number) const;
  [[nodiscard]] const Chunk front() const { return (*this)[0]; }
  // NOLINTEND(readability-const-return-type)
  [[nodiscard]] Iterator begin() const;
  [[nodiscard]] Iterator end() const;

  /// Appends the numbers of the chunks that share an element with `box`, ascending.
  void AddOverlapping(const Box& box, std::vector<std::uint32_t>* numbers) const;

  /// Returns the list as a vector, for a change. Each chunk takes its full memory from then on.
  std::vector<Chunk>& Listed();

  /// Returns null where the list keeps chunks.
  [[nodiscard]] const ChunkGrid* grid() const { return grid_.get(); }

  friend bool operator==(const ChunkList& a, const ChunkList& b);

 private:
  std::vector<Chunk> listed_;  ///< Empty where there is a grid.
  std::shared_ptr<const ChunkGrid> grid_;
};

/// Makes the chunks of a list one after the other.
class ChunkList::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Chunk;
  using difference_type = std::ptrdiff_t;
  using pointer = const Chunk*;
  using reference = const Chunk;

  Iterator() = default;
  Iterator(const ChunkList* list, std::size_t number) : list_(list), number_(number) {}
  reference operator*() const { return (*list_)[number_]; }
  Iterator& operator++() {
    ++number_;
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++number_;
    return before;
  }
  friend bool operator==(const Iterator&, const Iterator&) = default;

 private:
  const ChunkList* list_ = nullptr;
  std::size_t number_ = 0;
};

inline ChunkList::Iterator ChunkList::begin() const { return {this, 0}; }
inline ChunkList::Iterator ChunkList::end() const { return {this, size()}; }

}  // namespace varve
