/// OLMo's `local` layout: each rank's shard of FSDP's flat parameters as it is in memory
/// (`model/rank{R}.pt`), the optimizer's state dict by parameter id (`optim/rank{R}.pt`).
///
/// 1. One model file says which parameters there are, in which shapes: every rank's says the same
///    (ReadLocalLayout). The other files are compared with it.
/// 2. Each rank's model file says which elements of which parameter its flat shard holds, in one of
///    two ways: by `_shard_param_infos` (torch 2.1 and newer) or by `_shard_indices` with
///    `_shard_param_offsets` (torch 2.0). Ends are inclusive in the file.
/// 3. A 1-d tensor of the optimizer's state holds the elements that the rank's model file has of
///    that parameter. Where there is no piece there is no such tensor. 0-d tensors and plain values
///    are the same on all ranks.
/// 4. All ranks' pieces are put together: each element once. Equal replicas count once
/// (HYBRID_SHARD
///    and NO_SHARD repeat them), unequal ones are an error. Elements that no rank stores stay
///    uncovered: nothing is filled in, and legitimate NaNs are values like others.
///
/// Alignment padding inside a flat parameter belongs to no parameter and may hold anything; padding
/// at the right end must be zero.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "interop/decoded.h"
#include "interop/olmo/pieces.h"
#include "interop/safetensors/decode.h"
#include "interop/state_tree.h"
#include "varve/status.h"

namespace varve {

struct LocalParameter {
  std::string name;
  Dims shape;
  std::uint64_t elements = 0;
  DType dtype = DType::kUInt8;
};

/// The parameters of the model, in the order of the files.
struct LocalLayout {
  std::vector<LocalParameter> parameters;
  std::unordered_map<std::string, std::uint32_t> by_name;  ///< Looked up only.
};

/// A piece of a parameter.
struct LocalPiece {
  std::uint32_t parameter = 0;
  FlatPiece piece;
};

/// One rank's model file.
struct LocalModel {
  std::vector<LocalPiece> pieces;  ///< By parameter.
  std::vector<RecordCrc> records;
};

/// An entry of the optimizer's state: `state[parameter][key]`.
struct LocalEntry {
  std::uint32_t file = 0;
  std::uint32_t parameter = 0;
  std::string key;
  /// A piece of a 1-d tensor, a 0-d tensor, or an encoded plain value.
  std::variant<FlatPiece, StoredTensor, std::string> content;
  std::string bytes;  ///< Of a 0-d tensor.
};

/// The groups of an optimizer file, which every rank's has alike.
struct LocalGroups {
  std::string encoded;                                 ///< `param_groups` as an encoded Value.
  StateNode state;                                     ///< `param_groups` as a tree.
  std::unordered_map<std::string, std::string> names;  ///< Id to name. Looked up only.
};

/// One rank's optimizer file.
struct LocalOptimizer {
  std::vector<LocalEntry> entries;
  std::map<std::uint32_t, std::string> ids;  ///< Parameter to the id in the file.
  std::vector<RecordCrc> records;
};

/// Reads the parameters that a model file describes. Errors: DataLoss for a file that is no model
/// file of this layout, and as TorchArchive::Open.
Result<LocalLayout> ReadLocalLayout(const NamedFile& file);

/// Reads one rank's model file, whose number in Metadata::files is `number`. Reads the padding at
/// the right end. Errors: as ReadLocalLayout; DataLoss for a file that describes other parameters
/// than `layout`, a piece outside its parameter or its flat shard, and padding that is not zero.
Result<LocalModel> ReadLocalModel(const NamedFile& file, std::uint32_t number,
                                  const LocalLayout& layout);

/// Reads the groups of an optimizer file, which the others are compared with. Errors: DataLoss for
/// a group that does not name its parameters.
Result<LocalGroups> ReadLocalGroups(const NamedFile& file);

/// Reads one rank's optimizer file. `model` is the same rank's. Errors: DataLoss for other groups
/// than `groups`, for state of a parameter that the model does not have, and for a tensor that does
/// not fit the rank's piece.
Result<LocalOptimizer> ReadLocalOptimizer(const NamedFile& file, std::uint32_t number,
                                          const LocalLayout& layout, const LocalGroups& groups,
                                          const LocalModel& model);

/// Puts the model files of all ranks together. Errors: as TensorOfPieces.
Result<StateNode> MergeLocalModel(const LocalLayout& layout, const std::vector<LocalModel>& ranks,
                                  const ReplicaCheck& check);

/// Puts the optimizer files of all ranks together: `state` by name, and `param_groups`. Errors: as
/// TensorOfPieces; DataLoss for 0-d tensors or values that differ between ranks.
Result<StateNode> MergeLocalOptimizer(const LocalLayout& layout, LocalGroups groups,
                                      std::vector<LocalOptimizer> ranks, const ReplicaCheck& check);

}  // namespace varve
