/// The files of OLMo's checkpoints that hold whole states: those of the full layout, and the
/// trainer's in all layouts.
#pragma once

#include <cstdint>

#include "interop/decoded.h"
#include "interop/safetensors/decode.h"
#include "interop/state_tree.h"
#include "varve/status.h"

namespace varve {

/// Reads a state from a torch.save file, or from one of OLMo's safetensors dialect if the name says
/// so. `number` is the file's number in Metadata::files; `name` begins the FQNs, for messages. Adds
/// the checksums of the file's storages to `*records`. Errors: as the readers of those files.
Result<StateNode> ReadWholeState(const NamedFile& file, std::uint32_t number,
                                 const std::string& name, std::vector<RecordCrc>* records);

/// Cleans the names of a model's state dict.
void CleanModelNames(StateNode* model);

}  // namespace varve
