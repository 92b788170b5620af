/// The model to which a checkpoint of every format decodes: its tensors and objects, and the places
/// of their bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/hash.h"
#include "varve/tensor.h"

namespace varve {

/// Returns the library's version, "major.minor.patch".
std::string_view Version();

/// The newest version of the native format: of the manifests that this library writes. Readers
/// accept every version up to this one and refuse newer ones with a message; see docs/format.md.
inline constexpr std::uint32_t kFormatVersion = 5;

/// Identifies one save. All files of a checkpoint carry the same one.
struct SaveId {
  std::array<std::uint8_t, 16> bytes{};
  friend auto operator<=>(const SaveId&, const SaveId&) = default;
};

/// Returns 32 lower-case hex digits.
std::string ToString(const SaveId& id);

/// The software whose layout a checkpoint has.
enum class Format : std::uint8_t {
  kVarve,        ///< Ours: docs/format.md.
  kDcp,          ///< PyTorch Distributed Checkpoint: `.metadata` and `.distcp` files.
  kSafetensors,  ///< One safetensors file, or a folder of them as Hugging Face's tools write it.
  kTorchSave,    ///< One file of torch.save.
  kOlmoFull,  ///< OLMo, unsharded: `model.pt`, `optim.pt`, `train.pt`, or their safetensors twins.
  kOlmoTorchNew,  ///< OLMo's `torch_new`, and OLMo-core: DCP in `model_and_optim/`, `train/`.
  kOlmoLegacy,    ///< OLMo's `torch_legacy`: one `rank{R}.pt` a rank.
  kOlmoLocal,     ///< OLMo's `local`: shards of flat parameters.
  kOlmoCore,      ///< OLMo-core's first layout: slices of flattened tensors in safetensors.
  kHfai,          ///< Parts of hfai.checkpoint 2.0.0: a directory of `PART_000.pt` and so on.
};

/// Returns "varve", "dcp", "safetensors", "torch", "olmo-full", "olmo-torch-new",
/// "olmo-torch-legacy", "olmo-local", "olmo-core" or "hfai".
std::string_view FormatName(Format format);

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
  Hash128 content;    ///< XXH3-128 of the chunk's bytes; zero where the index does not have it.
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

  /// Sets Chunk::content of all chunks to zero.
  void ForgetHashes();

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

struct TensorMetadata {
  std::string fqn;
  DType dtype = DType::kUInt8;
  Dims shape;        ///< Of the whole tensor.
  ChunkList chunks;  ///< Disjoint; sorted by offsets.
  friend bool operator==(const TensorMetadata&, const TensorMetadata&) = default;
};

/// A plain value: an encoded Value (varve/value.h) at `extent`.
struct ObjectMetadata {
  std::string fqn;
  Extent extent;
  friend bool operator==(const ObjectMetadata&, const ObjectMetadata&) = default;
};

/// The ranks `first`, `first + step`, ... up to `last`.
struct RankRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::uint32_t step = 1;
  friend bool operator==(const RankRange&, const RankRange&) = default;
};

/// One more value of a tensor, or of a box of it: ranks held different values under one name when
/// they saved. TensorMetadata has the value of the lowest of these ranks.
struct TensorVariant {
  std::string fqn;
  Box box;                       ///< Of the whole tensor.
  std::vector<RankRange> ranks;  ///< The ranks that held this value, ascending.
  std::vector<Chunk> chunks;     ///< Tile `box`; as in TensorMetadata.
  friend bool operator==(const TensorVariant&, const TensorVariant&) = default;
};

/// One more value under the name of a plain value, as TensorVariant.
struct ObjectVariant {
  std::string fqn;
  std::vector<RankRange> ranks;
  Extent extent;
  friend bool operator==(const ObjectVariant&, const ObjectVariant&) = default;
};

/// A data file. Its first `data_begin` bytes are the header, covered by `header_crc32c`; data
/// follows in blocks of Metadata::block_bytes (the last may be short), each with its CRC-32C. Files
/// of other software have no header and no block checksums here.
struct DataFile {
  std::string name;  ///< Relative to the checkpoint's directory.
  std::uint32_t rank = 0;
  std::uint64_t size = 0;
  std::uint64_t data_begin = 0;
  std::uint32_t header_crc32c = 0;
  std::vector<std::uint32_t> block_crc32c;
  friend bool operator==(const DataFile&, const DataFile&) = default;
};

/// A side file: part of the checkpoint, but neither tensors nor values.
struct StoredFile {
  std::string name;  ///< Relative to the checkpoint's directory; may be in a folder.
  std::uint64_t size = 0;
  std::uint32_t crc32c = 0;  ///< Of all its bytes.
  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

/// Everything known about a checkpoint short of its content. A plain value; copy freely.
struct Metadata {
  Format format = Format::kVarve;
  SaveId save_id;  ///< Zero where the format has none.
  std::uint32_t world_size = 0;
  std::uint64_t block_bytes = 0;
  std::vector<DataFile> files;          ///< By rank; of other formats by name.
  std::vector<TensorMetadata> tensors;  ///< By fqn, bytewise.
  std::vector<ObjectMetadata> objects;  ///< By fqn, bytewise.
  std::vector<Extent> structures;       ///< Encoded container trees; merge for the whole state.
  std::vector<StoredFile> side_files;   ///< By name.
  /// Values of ranks that held others than the lowest one: by fqn, box and first rank. Empty where
  /// all ranks held the same under each name.
  std::vector<TensorVariant> tensor_variants{};
  std::vector<ObjectVariant> object_variants{};
  friend bool operator==(const Metadata&, const Metadata&) = default;

  /// Returns null when there is no such tensor or object. O(log n).
  [[nodiscard]] const TensorMetadata* FindTensor(std::string_view fqn) const;
  [[nodiscard]] const ObjectMetadata* FindObject(std::string_view fqn) const;

  /// Returns the names under which ranks held different values, each with the number of values; of
  /// a tensor, those of the box that has the most.
  [[nodiscard]] std::map<std::string, std::size_t, std::less<>> SeveralValues() const;

  /// Returns the bytes of all data files, headers included.
  [[nodiscard]] std::uint64_t TotalBytes() const;
};

}  // namespace varve
