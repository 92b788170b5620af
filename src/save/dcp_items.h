/// The layout of a `.distcp` file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
/// Errors: as WriteDcpFile, without those of I/O.
Result<DcpWork> LayOutDcpItems(std::span<const DcpItem> items);

}  // namespace varve
