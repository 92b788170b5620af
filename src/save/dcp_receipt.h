/// The receipt that a rank sends to the coordinator for its `.distcp` file: the place of each item,
/// and the file's checksums. Before the file is written, the same without checksums is its layout.
#pragma once

#include <string_view>

#include "base/bytes.h"
#include "save/dcp_file.h"
#include "varve/status.h"

namespace varve {

/// Encodes a receipt, without `direct`.
Bytes EncodeDcpFile(const DcpFile& file);
/// Decodes a receipt. Errors: DataLoss, also for an item that ends beyond 2^64.
Result<DcpFile> DecodeDcpFile(std::string_view bytes);

}  // namespace varve
