/// The directory in which OLMo writes a checkpoint before it gives it its name: `NAME-tmp`, beside
/// NAME. A save that dies leaves it, and so does a live one until its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/metadata.h"
#include "varve/storage.h"

namespace varve {

/// Returns NAME of `NAME-tmp`, where NAME is one that OLMo's trainer gives: `stepN` or
/// `stepN-unsharded`. Nothing for any other name: it may be a user's.
std::optional<std::string> OlmoUnfinishedTarget(std::string_view name);

/// The content of such a directory.
struct OlmoUnfinished {
  Format format = Format::kOlmoFull;
  bool has_mark = false;           ///< config.yaml is there, which OLMo writes last.
  std::vector<std::string> files;  ///< Relative. All of them.
  std::vector<std::string> folders;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< The latest change below the directory; 0 where it is empty.
};

/// Returns what the directory holds if OLMo's savers made all of it, by the names: files of OLMo's
/// layouts in their folders, or nothing at all. Nothing for a directory that holds anything else, a
/// symbolic link among it, or that cannot be listed.
std::optional<OlmoUnfinished> ReadOlmoUnfinished(Storage& storage, const std::string& directory);

}  // namespace varve
