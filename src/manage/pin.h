/// Pins: files in checkpoints' directories that keep them from being pruned.
#pragma once

#include <optional>
#include <string>

#include "varve/storage.h"

namespace varve {

/// Returns why the checkpoint at `path` is pinned, also where it is displaced; nothing where it is
/// not. A pin that cannot be read counts.
std::optional<std::string> ReadPin(Storage& storage, const std::string& path);

}  // namespace varve
