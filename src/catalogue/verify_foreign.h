/// Verification of other software's checkpoints.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "catalogue/open.h"
#include "varve/catalogue.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Threads that read and check data.
inline constexpr int kVerifyThreads = 8;

/// Returns the names of the tensors and objects that have bytes in [begin, end) of a file.
std::vector<std::string> NamesIn(const Metadata& metadata, std::uint32_t file, std::uint64_t begin,
                                 std::uint64_t end);

/// See Verify. `opened` is of another format than ours. Errors: Cancelled.
Result<VerifyReport> VerifyForeign(Storage& storage, const OpenedIndex& opened,
                                   const ProgressFunction& progress, const std::stop_token& stop,
                                   std::vector<Damage> damages = {});

}  // namespace varve
