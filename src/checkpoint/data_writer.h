/// Writing one rank's data file: from State and assignment to durable bytes and a receipt.
#pragma once

#include <string>

#include "plan/file_plan.h"
#include "plan/save_plan.h"
#include "varve/checkpoint.h"

namespace varve {

/// The state as a plan: names, geometry and sizes, no content. Checked on its own.
/// Errors: InvalidArgument naming the tensor or object.
Result<LocalPlan> MakeLocalPlan(const State& state);

struct WrittenFile {
  WriteReceipt receipt;
  std::uint64_t bytes = 0;
  bool direct = false;
};

/// Writes the file the plan describes at `path` (which must not exist) and makes it durable.
/// `structure` is what the assignment asks this rank to store; may be empty.
Result<WrittenFile> WriteDataFile(Storage& storage, const std::string& path, const State& state,
                                  FilePlan plan, std::string_view structure,
                                  const SaveOptions& options);

/// A new random id. Errors: the system gives no randomness.
Result<SaveId> RandomSaveId();

/// Unix time in nanoseconds.
std::uint64_t UnixTimeNs();

}  // namespace varve
