/// Whether the shards of all ranks can be written as whole-tensor safetensors files, and where.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "save/hf/layout.h"
#include "save/settled.h"
#include "varve/status.h"

namespace varve {

/// Lays out the files of a save.
HfFolder LayOutHfFolder(const SettledSave& settled);

/// Returns the placement of each rank, encoded. Where the storage takes a file from one writer, it
/// gives chunks to the ranks that write their files, if one holds all of each. Errors:
/// InvalidArgument, with what to do, where a header would be longer than readers take, and where
/// shards lie in so many pieces, or pieces of so many bytes, that they do not fit through the
/// coordinator's memory. That is found before memory for the pieces is taken.
Result<std::vector<Bytes>> PlaceHf(SettledSave* settled);

}  // namespace varve
