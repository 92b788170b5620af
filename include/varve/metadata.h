/// The model to which a checkpoint of every format decodes: its tensors and objects, and the places
/// of their bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "varve/chunks.h"
#include "varve/tensor.h"

namespace varve {

/// Returns the library's version, "major.minor.patch".
std::string_view Version();

/// The newest version of the native format: of the manifests that this library writes. Readers
/// accept every version up to this one and refuse newer ones with a message; see docs/format.md.
inline constexpr std::uint32_t kFormatVersion = 4;

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
