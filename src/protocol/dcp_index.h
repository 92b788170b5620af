/// The index of a DCP checkpoint from what the ranks have written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "save/written_format.h"
#include "varve/protocol/metadata.h"
#include "varve/protocol/plan.h"
#include "varve/status.h"

namespace varve::protocol {

/// The data files of a list of results.
struct WrittenFiles {
  std::uint32_t first_rank = 0;  ///< The rank of the first result; the next rank has the second.
  std::uint64_t number = 0;      ///< Of each rank's file, see DcpFileName.
  std::uint64_t block_bytes = 0;
  std::string below{};  ///< Before their names in the index, see FilesCommit::below.
};

/// Makes the index. `results` by rank, as FileSystemWriter::WriteData returns them. Errors:
/// Internal for a chunk or value that no rank has written; InvalidArgument for planner_data that is
/// not the structure of a state, and for results of other writers or of different block sizes.
Result<CheckpointIndex> MakeIndex(const StateMetadata& metadata,
                                  const std::vector<std::vector<WriteResult>>& results,
                                  const WrittenFiles& files);

}  // namespace varve::protocol
