/// The few kinds of objects that a DCP `.metadata` repeats by the million, as small records: a
/// record takes 64 bytes here, 170 in the pickle and 600 in a tree.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interop/pickle/tree.h"
#include "varve/tensor.h"

namespace varve {

/// A torch.Size. Up to four dimensions share 64 bits if they fit, the outermost in the highest, so
/// that equal counts compare like the sizes; others lie in the list that DcpRecords has for them.
struct PackedDims {
  static constexpr std::uint32_t kPooled = 1U << 16;
  static constexpr std::uint32_t kNone = 1U << 17;
  std::uint32_t count =
      0;  ///< Dimensions, plus kPooled when `bits` is a place in the list; or kNone.
  std::array<std::uint32_t, 2> half{};

  [[nodiscard]] std::uint64_t bits() const { return std::uint64_t{half[1]} << 32 | half[0]; }
  [[nodiscard]] bool IsNone() const { return count == kNone; }
  static PackedDims Of(std::uint32_t count, std::uint64_t bits) {
    return {count, {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)}};
  }
};

/// A ChunkStorageMetadata.
struct DcpChunk {
  PackedDims offsets;
  PackedDims sizes;
};

/// The key of a MetadataIndex, without its hint `index`.
struct DcpKey {
  std::uint32_t name = 0;  ///< Number of the fqn.
  PackedDims offsets;      ///< None for a plain value.
};

/// A _StorageInfo. Ranges are checked: neither negative nor beyond 2^63.
struct DcpStorage {
  std::uint32_t path = 0;       ///< Number of the relative_path.
  std::uint32_t transform = 0;  ///< Number of the transforms, joined by ", "; 0 for none.
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// Numbers strings by first appearance.
class DcpStrings {
 public:
  /// Strings that do not lie in `stable` are copied.
  explicit DcpStrings(std::string_view stable) : stable_(stable) {}
  std::uint32_t Number(std::string_view text);
  [[nodiscard]] std::optional<std::uint32_t> Find(std::string_view text) const;
  [[nodiscard]] std::string_view at(std::uint32_t number) const { return texts_[number]; }
  [[nodiscard]] std::size_t size() const { return texts_.size(); }

 private:
  std::string_view stable_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::vector<std::string_view> texts_;
  std::deque<std::string> copies_;
};

/// Classes and functions that say something about a checkpoint: torch's, or copies of them in other
/// software, whichever module they are in.
enum class DcpClass : std::uint8_t {
  kUnknown,  ///< Not looked up yet.
  kOther,
  kSize,
  kChunk,
  kKey,
  kStorage,
  kBytes,
  kTensor,
  kProperties,
  kEnum,  ///< A member of _MEM_FORMAT_ENCODING, which says nothing here.
  kLayout,
  kMetadata,
};

/// Makes records of objects, either while the pickle is read (as its folder) or afterwards. The
/// Read functions take a node in either form and return false when it is not what was asked for.
/// They go by an object's fields; what is folded is known by the name of its class.
class DcpRecords : public PickleFolder {
 public:
  /// `pickle` must outlive this.
  explicit DcpRecords(std::string_view pickle);

  bool Fold(const PickleTree& tree, PickleRef object, std::uint32_t* tag,
            std::int64_t* value) override;

  /// Returns the class that an object was made by, by its name. kOther may still have the fields of
  /// a known one.
  DcpClass ClassOf(const PickleTree& tree, PickleRef node);

  bool ReadDims(const PickleTree& tree, PickleRef node, PackedDims* dims);
  /// Reads a chunk; *chunk numbers its record, as *key and *storage do below.
  bool ReadChunk(const PickleTree& tree, PickleRef node, std::uint32_t* chunk);
  bool ReadKey(const PickleTree& tree, PickleRef node, std::uint32_t* key);
  bool ReadStorage(const PickleTree& tree, PickleRef node, std::uint32_t* storage);
  /// Returns true for a BytesStorageMetadata: it has no fields, nor has what stands for it.
  bool IsBytes(const PickleTree& tree, PickleRef node);
  /// Return true for a TensorStorageMetadata, for a Metadata, and for other classes with the fields
  /// of these (Megatron's MCoreMetadata).
  bool IsTensor(const PickleTree& tree, PickleRef node);
  bool IsIndex(const PickleTree& tree, PickleRef node);
  /// Reads the dtype and layout of a TensorProperties. On false, *what is set if torch knows it and
  /// Varve does not.
  bool ReadProperties(const PickleTree& tree, PickleRef node, DType* dtype, std::string* what);

  [[nodiscard]] const DcpChunk& chunk(std::uint32_t number) const { return chunks_[number]; }
  [[nodiscard]] const DcpKey& key(std::uint32_t number) const { return keys_[number]; }
  [[nodiscard]] const DcpStorage& storage(std::uint32_t number) const { return storages_[number]; }

  [[nodiscard]] Dims Unpack(const PackedDims& dims) const;
  /// Less than zero, zero or more, in lexicographic order; none comes first.
  [[nodiscard]] int Compare(const PackedDims& a, const PackedDims& b) const {
    if (a.count == b.count && (a.count & PackedDims::kPooled) == 0) {
      return a.bits() < b.bits() ? -1 : a.bits() > b.bits() ? 1 : 0;
    }
    return CompareUnpacked(a, b);
  }
  [[nodiscard]] bool HasZero(const PackedDims& dims) const;

  DcpStrings names;
  DcpStrings paths;
  DcpStrings transforms;

 private:
  [[nodiscard]] int CompareUnpacked(const PackedDims& a, const PackedDims& b) const;
  std::optional<PackedDims> Pack(const PickleTree& tree, std::span<const PickleRef> items);
  bool ReadTransforms(const PickleTree& tree, PickleRef node, std::uint32_t* number);

  std::uint64_t pickle_bytes_;
  std::vector<DcpClass> classes_;  // By the number of a global.
  std::vector<std::uint64_t> pool_;
  std::vector<DcpChunk> chunks_;
  std::vector<DcpKey> keys_;
  std::vector<DcpStorage> storages_;
};

/// Returns the attributes of an object that BUILD gave (also in slots), or kNoPickle when they are
/// not a small dict. An object has a handful; a dict with more than 64 is no object's.
PickleRef DcpAttributes(const PickleTree& tree, PickleRef object);

}  // namespace varve
