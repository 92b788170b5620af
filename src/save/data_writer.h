/// One rank's data file: from State and assignment to durable bytes and a receipt.
#pragma once

#include <string>

#include "plan/file_plan.h"
#include "plan/save_plan.h"
#include "save/file_work.h"
#include "varve/checkpoint.h"

namespace varve {

/// Returns the plan of a state: names, geometry and sizes, no content. Checked on its own. Errors:
/// InvalidArgument naming the tensor or object.
Result<LocalPlan> MakeLocalPlan(const State& state);

/// Prepares the file that the plan describes. `structure` is what the assignment asks this rank to
/// store; may be empty. The state's memory and objects must stay where they are until the data have
/// been written or staged. The receipt is an encoded WriteReceipt.
Result<FileWork> PrepareDataFile(const State& state, const FilePlan& plan, std::string structure);

/// Prepares the same file without data, for a process that has a copy of them and not the state.
Result<FileWork> DescribeDataFile(const FilePlan& plan);

}  // namespace varve
