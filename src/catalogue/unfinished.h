/// The directory in which other software writes a checkpoint before it gives it its name, as OLMo
/// does in `NAME-tmp`, beside NAME. A save that dies leaves it, and so does a live one until its
/// end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/metadata.h"
#include "varve/storage.h"

namespace varve {

/// Returns NAME of a directory of this name (KnownFormat::unfinished). Nothing for any other name:
/// it may be a user's.
std::optional<std::string> UnfinishedTarget(std::string_view name);

/// The content of such a directory.
struct Unfinished {
  Format format = Format::kOlmoFull;
  bool has_mark = false;           ///< What the software writes last is there.
  std::vector<std::string> files;  ///< Relative. All of them.
  std::vector<std::string> folders;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< The latest change below the directory; 0 where it is empty.
};

/// Returns what the directory holds if one format's writers made all of it, by the names: their
/// files and folders, or nothing at all. Nothing for a directory of another name, one that holds
/// anything else, a symbolic link among it, or that cannot be listed.
std::optional<Unfinished> ReadUnfinished(Storage& storage, const std::string& directory);

}  // namespace varve
