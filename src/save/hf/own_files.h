/// Files that are written whole by one rank each, for storages that take a file from one writer and
/// show it when it is whole.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "save/hf/layout.h"
#include "save/hf/scatter_file.h"
#include "save/settled.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Gives all chunks of each file to one rank that holds them, so that ranks write about the same
/// number of bytes. Returns the rank of each file; nothing, and changes nothing, where no rank
/// holds all of some file. Chunks of a tensor whose replicas differ stay with the rank that has
/// them.
std::optional<std::vector<std::uint32_t>> GiveFilesToHolders(const HfFolder& folder,
                                                             SettledSave* settled);

/// Finds a rank's share: its own files, header and tensors, one after the other, each beginning
/// with a page of the image. `placement` must outlive it. Errors: Internal where the chunks do not
/// fill the files.
Result<HfShare> ShareOfOwner(const LocalPlan& plan, const RankAssignment& assignment,
                             const HfPlacement& placement);

/// Opens an image of the files of `share`, which are made in `directory` when their first bytes
/// come, and made durable with their last. Writing fills `outcome`. Threads: as WritableFile.
/// Errors of writing: as Storage::OpenForWrite.
std::unique_ptr<WritableFile> OpenOwnFiles(Storage& storage, const std::string& directory,
                                           const std::vector<HfFileSize>& files,
                                           std::shared_ptr<const HfShare> share,
                                           std::uint64_t block_bytes,
                                           std::shared_ptr<ScatterOutcome> outcome);

}  // namespace varve
