/// The layout of a `.distcp` file, and how it is written.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pipeline/file_writer.h"
#include "save/dcp_file.h"

namespace varve {

/// A `.distcp` file before it is written.
struct DcpWork {
  std::uint64_t size = 0;
  std::vector<FileSegment> segments;  ///< From the file's first byte on.
  std::vector<DcpExtent> items;       ///< Where each will lie.
  std::shared_ptr<const void> keep;   ///< Holds the bytes around the payloads.
};

/// Lays `items` out. They must stay where they are until the segments have been written or staged.
/// Errors: as WriteDcpItems, without those of I/O.
Result<DcpWork> LayOutDcpItems(std::span<const DcpItem> items);

/// Writes `items` one behind the other, each tensor as an archive of torch.save. A tensor of at
/// least kDirectAlignment bytes has its archive and its payload at multiples of that; what is
/// smaller lies packed without gaps, so that many small values cost what they hold. The same items
/// always give the same bytes. Beside the pipeline's blocks it takes about 1 KiB of memory for each
/// tensor. Errors: as WriteDcpFile; InvalidArgument naming the tensor for sizes that overflow, for
/// strides that do not fit the sizes, and where there is no memory to read.
Result<DcpFile> WriteDcpItems(Storage& storage, const std::string& path,
                              std::span<const DcpItem> items, const SaveOptions& options);

}  // namespace varve
