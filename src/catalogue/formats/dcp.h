/// The directory of a PyTorch Distributed Checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "catalogue/formats/known_format.h"
#include "interop/decoded.h"

namespace varve {

inline constexpr std::string_view kDcpIndexName = ".metadata";

/// Returns true for `.metadata` and for `__R.metadata`.
bool IsDcpIndexName(std::string_view name);

/// Returns true for a name that DCP's writers give: `.metadata`, `__R.metadata`, these two with
/// `.tmp` behind them while they are written, and `*.distcp`.
bool IsDcpName(std::string_view name);

/// Returns the names of the files that one index mentions, side files among them, whether they are
/// there or not. Errors: those of reading an index.
Result<std::vector<std::string>> NamesInDcpIndex(Storage& storage, const std::string& path);

/// Reads the index of a directory, without the sizes of its files.
Result<Decoded> ReadDcpIndex(Storage& storage, const std::string& directory);

/// Does OpenedWithSizes for the index of a directory, and finds which keys of optimizers' states
/// are ints.
Result<OpenedIndex> OpenedDcp(const ListedFolder& folder, Decoded decoded);

}  // namespace varve
