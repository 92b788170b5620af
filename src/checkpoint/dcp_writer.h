/// The layout of a `.distcp` file, and how it is written. WriteDcpFile of varve/dcp.h is this with
/// fewer answers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "varve/dcp.h"

namespace varve {

struct WrittenDcpFile {
  DcpFile file;
  /// Where each tensor's bytes begin in the file, row-major and packed; for other items, where the
  /// item does.
  std::vector<std::uint64_t> payload_begins;
};

/// Writes `items` one behind the other, each tensor as an archive of torch.save. A tensor of at
/// least kDirectAlignment bytes has its archive and its payload at multiples of that; what is
/// smaller lies packed without gaps, so that many small values cost what they hold. The same items
/// always give the same bytes. Beside the pipeline's blocks it takes about 1 KiB of memory for each
/// tensor. Errors: as WriteDcpFile; InvalidArgument naming the tensor for sizes that overflow, for
/// strides that do not fit the sizes, and where there is no memory to read.
Result<WrittenDcpFile> WriteDcpItems(Storage& storage, const std::string& path,
                                     std::span<const DcpItem> items, const SaveOptions& options);

}  // namespace varve
