/// The event of a save's end.
#pragma once

#include <string>

#include "varve/options.h"
#include "varve/status.h"

namespace varve {

/// Reports how a save has ended, with the seconds of its phases. Of the ranks of a save only the
/// coordinator reports it at the level of information. Failures are no warnings: the caller has
/// them. `report` is null where it has failed.
void ReportOutcome(const std::string& what, int rank, const Status& status,
                   const SaveReport* report) noexcept;

}  // namespace varve
