/// The files of OLMo's checkpoints that hold whole states: its safetensors dialect, a nested state
/// dict in one safetensors file, and torch.save files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "interop/decoded.h"
#include "interop/safetensors/decode.h"
#include "interop/state_tree.h"
#include "varve/status.h"
#include "varve/value.h"

namespace varve {

/// Reads a file of the dialect: a tensor's key is base64url of the pickle of (path, is_pickled); an
/// entry that is no tensor is a uint8 tensor that holds its pickle. Keys that are no such pickle
/// are names of tensors: a plain safetensors file is a flat state dict. `number` is the file's
/// number in Metadata::files. Runs no pickle: a value that no Value can be is opaque. Errors: as
/// ReadSafetensorsHeader; DataLoss for paths that contradict each other.
Result<StateNode> ReadOlmoSafetensors(const NamedFile& file, std::uint32_t number);

/// Reads a whole state from a torch.save file, or from one of the dialect if the name says so: the
/// files of the full layout, and the trainer's in all layouts. `number` is the file's number in
/// Metadata::files; `name` begins the FQNs, for messages. Adds the checksums of the file's storages
/// to `*records`. Errors: as the readers of those files.
Result<StateNode> ReadWholeState(const NamedFile& file, std::uint32_t number,
                                 const std::string& name, std::vector<RecordCrc>* records);

/// Cleans the names of a model's state dict.
void CleanModelNames(StateNode* model);

/// An entry of a file of the dialect that is to be written.
struct OlmoEntry {
  std::string key;                    ///< Its name in the file.
  std::optional<std::size_t> tensor;  ///< The number in its leaf; nothing for a value.
  Bytes pickle;                       ///< Of a value: the content of a uint8 tensor.
};

/// Returns the entries of a state, in its order: one for each tensor and each value that is no
/// mapping; an empty mapping is a value. `state` is a mapping as PickleState takes it, in which a
/// kTensorLeaf with a number stands for a tensor. Errors: as PickleState; InvalidArgument for a
/// state that is no mapping; Unimplemented for a tensor inside a list or another value, which only
/// running a pickle could give back.
Result<std::vector<OlmoEntry>> FlattenForOlmo(const Value& state);

}  // namespace varve
