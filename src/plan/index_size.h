/// How large the index of a settled save will be, before anything has been written.
#pragma once

#include <cstdint>
#include <vector>

#include "format/manifest.h"
#include "plan/save_plan.h"

namespace varve {

/// Counts what the manifest of a native save will hold. `settled` is of `plans`.
ManifestCounts CountIndex(const std::vector<LocalPlan>& plans, const SettledPlan& settled,
                          std::uint64_t block_bytes);

}  // namespace varve
