/// The index of a DCP checkpoint from what the ranks have written.
#pragma once

#include <cstdint>
#include <vector>

#include "save/written_format.h"
#include "varve/protocol/metadata.h"
#include "varve/protocol/plan.h"
#include "varve/status.h"

namespace varve::protocol {

/// `results` by rank, as FileSystemWriter::WriteData gives them. Errors: Internal for a chunk or
/// value that no rank has written; InvalidArgument for planner_data that is not the structure of a
/// state, and for results of other writers or of different block sizes.
Result<CheckpointIndex> MakeIndex(const Metadata& metadata,
                                  const std::vector<std::vector<WriteResult>>& results,
                                  std::uint64_t block_bytes);

}  // namespace varve::protocol
