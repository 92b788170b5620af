/// Saving without talking: every rank writes and publishes its own file.
#pragma once

#include <string>

#include "varve/checkpoint.h"

namespace varve {

/// See SaveOptions::coordinate. `options.save_id` is required when world_size > 1. The account of
/// the steps is at the top of save_local.cc.
Result<SaveReport> SaveRankLocal(const State& state, const std::string& path,
                                 const SaveOptions& options, int rank, int world_size);

}  // namespace varve
