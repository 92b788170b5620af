/// What a rank tells the coordinator of the `.distcp` file that it writes: where each item lies,
/// and the file's checksums. Before the file is written, the same without checksums is its layout.
#pragma once

#include <string_view>

#include "base/bytes.h"
#include "varve/dcp.h"
#include "varve/status.h"

namespace varve {

/// `direct` is not part of it.
Bytes EncodeDcpFile(const DcpFile& file);
/// Errors: DataLoss; an item never ends beyond 2^64.
Result<DcpFile> DecodeDcpFile(std::string_view bytes);

}  // namespace varve
