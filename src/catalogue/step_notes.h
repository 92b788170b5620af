/// What managers have noted of the checkpoints of a run.
#pragma once

#include <optional>
#include <string>

#include "varve/status.h"
#include "varve/step_note.h"
#include "varve/storage.h"

namespace varve {

/// Returns what a manager has noted of a checkpoint; nothing where none has. `displaced`: it stands
/// under its hidden name. Of a checkpoint whose record is damaged the note is taken unchecked: it
/// only tells the place of the step in the run. Errors: DataLoss for a note that is not what was
/// written; those of the storage, because without its note a step would be taken for an old one.
Result<std::optional<StepNote>> ReadStepNote(Storage& storage, const std::string& path,
                                             bool displaced = false);

}  // namespace varve
