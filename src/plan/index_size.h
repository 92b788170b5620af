/// How large the index of a settled save will be, before anything has been written.
#pragma once

#include <cstdint>
#include <vector>

#include "format/manifest.h"
#include "plan/file_plan.h"
#include "plan/save_plan.h"
#include "varve/status.h"

namespace varve {

/// Counts what the manifest of a native save will hold. `settled` is of `plans`, which may be
/// folded; then `hidden` has FoldedPlans::hidden.
ManifestCounts CountIndex(const std::vector<LocalPlan>& plans, const SettledPlan& settled,
                          std::uint64_t block_bytes, const std::vector<SharedSpec>& hidden = {});

/// Returns a number of bytes that every header of this assignment exceeds.
std::uint64_t HeaderBytesAtLeast(const LocalPlan& plan, const RankAssignment& assignment);

/// Checks at once, by a lower bound and before the ranks' plans are exchanged, that data files can
/// have what one rank brings, where `writers` ranks may share it. (EncodeHeader checks what a rank
/// is given, before it writes.) Errors: InvalidArgument with the counts.
Status CheckOwnHeaderSize(const LocalPlan& plan, int writers);

}  // namespace varve
