/// Pins: files in checkpoints' directories that keep them from being pruned.
#pragma once

#include <optional>
#include <string>

#include "varve/storage.h"

namespace varve {

/// Returns why a checkpoint is pinned; nothing where it is not. A pin that cannot be read counts.
std::optional<std::string> ReadPin(Storage& storage, const std::string& path);

}  // namespace varve
