/// The parts of a save in the native format, for a save that keeps such files of its own for a
/// while. `identity` is that of the files: SettledSave::identity, but for what the caller changes.
#pragma once

#include <string>
#include <vector>

#include "save/written_format.h"

namespace varve {

/// As WrittenFormat::check.
Status CheckNative(const SettledSave& settled, const FileIdentity& identity);

/// As WrittenFormat::lay_out.
Result<RankFile> LayOutNative(const State* state, const SettledSave& settled,
                              const FileIdentity& identity);

/// As WrittenFormat::make_index. The rank in `identity` does not matter.
Result<CheckpointIndex> MakeNativeIndex(const SettledSave& settled,
                                        const std::vector<std::string>& receipts,
                                        FileIdentity identity);

}  // namespace varve
