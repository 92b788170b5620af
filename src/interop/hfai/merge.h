/// All parts of a checkpoint of hfai.checkpoint 2.0.0, to the one metadata model.
#pragma once

#include <string>
#include <vector>

#include "interop/decoded.h"
#include "interop/hfai/part.h"
#include "varve/status.h"

namespace varve {

/// Checks that the parts are exactly those of one save: 0 to `__nshards__` - 1, and all say the
/// same number. `parts` are in the order of their numbers, no two with one number; there may be
/// none. `odd` are names that look like those of parts and are none. Errors: FailedPrecondition
/// when parts are missing, DataLoss when some belong to another save; the message names all of
/// them, up to ten.
Status CheckHfaiParts(const std::vector<HfaiPart>& parts, const std::vector<std::string>& odd);

/// Merges the parts, file by file of the checkpoint. Names are `model.I.NAME`,
/// `optimizer.I.state.ID.KEY`, `optimizer.I.param_groups...`, and the caller's own. Requires:
/// CheckHfaiParts accepts them; part I was decoded as file I. Errors: DataLoss, naming tensor and
/// part, for one that is both whole and in pieces, or whole in two parts; for a piece that is
/// missing, or of another size, shape or type than the format gives it; for a large optimizer
/// tensor whose parameter has no small entry; and where parts have different numbers of models or
/// optimizers. InvalidArgument where the pieces would take many times the memory of the files.
Result<Decoded> MergeHfaiParts(std::vector<HfaiPart> parts);

}  // namespace varve
