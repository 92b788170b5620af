/// Whether a checkpoint that is to be replaced is a step that a later job of the run has saved.
#pragma once

#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Refuses to replace a step that a later job of the run has saved. `files` are the side files that
/// the save brings; one without a note of a step is of no run. This job has lost the run and does
/// not know it yet: where there are no locks, a job that stood still may go on after that. Errors:
/// FailedPrecondition; those of reading the other step's note.
Status CheckIsNotOfALaterJob(Storage& storage, const std::string& path,
                             const std::vector<SideFile>& files, Overwrite overwrite);

}  // namespace varve
