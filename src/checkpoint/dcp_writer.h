/// The layout of a `.distcp` file, and how it is written.
#pragma once

#include <span>
#include <string>

#include "varve/dcp.h"

namespace varve {

/// Writes `items` one behind the other, each tensor as an archive of torch.save. A tensor of at
/// least kDirectAlignment bytes has its archive and its payload at multiples of that; what is
/// smaller lies packed without gaps, so that many small values cost what they hold. The same items
/// always give the same bytes. Beside the pipeline's blocks it takes about 1 KiB of memory for each
/// tensor. Errors: as WriteDcpFile; InvalidArgument naming the tensor for sizes that overflow, for
/// strides that do not fit the sizes, and where there is no memory to read.
Result<DcpFile> WriteDcpItems(Storage& storage, const std::string& path,
                              std::span<const DcpItem> items, const SaveOptions& options);

}  // namespace varve
