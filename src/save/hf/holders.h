/// Which ranks hold all of a file, for storages that take a file from one writer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "save/hf/layout.h"
#include "save/settled.h"

namespace varve {

/// Gives all chunks of each file to one rank that holds them, so that ranks write about the same
/// number of bytes. Returns the rank of each file; nothing, and changes nothing, where no rank
/// holds all of some file. Chunks of a tensor whose replicas differ stay with the rank that has
/// them.
std::optional<std::vector<std::uint32_t>> GiveFilesToHolders(const HfFolder& folder,
                                                             SettledSave* settled);

}  // namespace varve
