/// The event of a save's end, and the ranks' phases in its report.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "varve/options.h"
#include "varve/status.h"

namespace varve {

/// Reports how a save has ended, with the seconds of its phases. Of the ranks of a save only the
/// coordinator reports it at the level of information. Failures are no warnings: the caller has
/// them. `report` is null where it has failed; `ends_as` says what
/// it is otherwise, such as "is durable".
void ReportOutcome(const std::string& what, int rank, const Status& status,
                   const SaveReport* report, std::string_view ends_as) noexcept;

/// Notes in `phases` which rank took longest for each of them, so far.
void NoteSlowest(std::uint32_t rank, const std::vector<Phase>& theirs, std::vector<Phase>* phases);

}  // namespace varve
