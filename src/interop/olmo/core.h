/// OLMo-core's first layout, which OLMo calls `olmo_core`: each rank's slices of flattened tensors
/// in safetensors files. The model is in one folder, the optimizer in another, each with
/// `metadata.json` and `rank_{R}.safetensors`.
///
/// 1. `metadata.json` gives each tensor's whole shape and, by file, the elements that the file's
///    slice holds (DecodeCoreMetadata). There are three forms: `flattened_offsets_per_file` with
///    one range or a list of ranges a file, and `shard_spec_per_file` with ranges or with a box (of
///    a DTensor). Ends are exclusive. A tensor that is not sharded is in one file.
/// 2. A rank's file holds its slices as 1-d tensors: range behind range, a box in row-major order
///    (ReadCoreFile). It has no entry for a tensor of which it holds nothing, or an empty one.
/// 3. Slices of all ranks are put together: each element once. Equal replicas count once, unequal
///    ones are an error. Elements that no rank stores stay uncovered: nothing is filled in.
/// 4. The optimizer's state is flat: `state.NAME.__KEY`, `num_param_groups`, and as pickles in
///    uint8 tensors `param_group{i}` and `state_keys` (MergeCoreOptimizer). A group's
///    `_param_names` gives the names of its `params`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interop/olmo/pieces.h"
#include "interop/safetensors/decode.h"
#include "interop/state_tree.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

inline constexpr std::string_view kCoreMetadataName = "metadata.json";
inline constexpr std::string_view kCorePrefix = "rank_";
inline constexpr std::string_view kCoreSuffix = ".safetensors";

/// Elements of a tensor in one rank's file: a run of the flattened tensor, or a box.
struct CorePart {
  static constexpr std::uint32_t kRun = 0xFFFFFFFF;

  std::uint32_t rank = 0;
  std::uint32_t box = kRun;  ///< Place in CoreTensor::boxes. kRun: elements [begin, end).
  std::uint64_t begin = 0;   ///< Of a box 0.
  std::uint64_t end = 0;     ///< Of a box its volume.
};

struct CoreTensor {
  std::string name;
  Dims shape;
  std::uint64_t elements = 0;
  std::optional<DType> dtype;   ///< Nothing where the metadata have none that Varve knows.
  std::vector<CorePart> parts;  ///< By rank, of one rank in the order of its slice; none is empty.
  std::vector<Box> boxes;       ///< Those that are no run of the flattened tensor.
};

/// A folder's `metadata.json`.
struct CoreLayout {
  std::vector<CoreTensor> tensors;                         ///< In the order of the file.
  std::unordered_map<std::string, std::uint32_t> by_name;  ///< Looked up only.
  std::uint32_t ranks = 0;                                 ///< 1 + the greatest rank that it names.
};

/// A slice in a rank's file: bytes [begin, end).
struct CoreSlice {
  std::uint32_t tensor = 0;  ///< Place in CoreLayout::tensors.
  DType dtype = DType::kUInt8;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// One rank's file: its slices, by tensor.
using CoreFile = std::vector<CoreSlice>;

/// The files of one folder: that of rank R is data file `first` + R.
struct CoreFiles {
  std::uint32_t first = 0;
  std::vector<CoreFile> ranks;
};

/// Decodes `metadata.json`. Errors: DataLoss for anything that is not of one of the three forms, a
/// tensor or a file that is there twice, and elements outside a tensor's shape; the message names
/// tensor and file.
Result<CoreLayout> DecodeCoreMetadata(std::string_view json);

/// Reads the header of the file of rank `rank`. Errors: as ReadSafetensorsHeader; DataLoss for a
/// tensor of which the metadata give nothing to this file, for one that is missing, and for a slice
/// of another length or dtype than they say.
Result<CoreFile> ReadCoreFile(const NamedFile& file, std::uint32_t rank, const CoreLayout& layout);

/// Puts the model's slices together. Errors: as TensorOfPieces and ChunksOnce.
Result<StateNode> MergeCoreModel(const CoreLayout& layout, const CoreFiles& files,
                                 const ReplicaCheck& check);

/// Puts the optimizer's slices together: `state` by name, and `param_groups`, whose pickles it
/// reads through `read` and never runs. Errors: as MergeCoreModel; DataLoss for entries that are
/// none of an optimizer's state.
Result<StateNode> MergeCoreOptimizer(const CoreLayout& layout, const CoreFiles& files,
                                     const ReplicaCheck& check, const ExtentReader& read);

}  // namespace varve
