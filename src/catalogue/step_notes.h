/// Reads the note that a manager wrote beside a checkpoint.
#pragma once

#include <optional>
#include <string>

#include "varve/status.h"
#include "varve/step_note.h"
#include "varve/storage.h"

namespace varve {

/// Returns the note of a checkpoint; nothing where no manager has saved it. `displaced`: the
/// checkpoint stands under its hidden name. A damaged commit record has no checksum of the note.
/// The note is then not checked: it only tells the place of the step in the run. Errors: DataLoss
/// for a note that is not what was written; those of an object store, because a step without its
/// note would be taken for an old one.
Result<std::optional<StepNote>> ReadStepNote(Storage& storage, const std::string& path,
                                             bool displaced = false);

}  // namespace varve
