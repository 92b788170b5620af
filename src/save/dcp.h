/// A rank's share of a save in PyTorch's format, and the index made from all shares. The exchanges
/// and the commit around them are those of every coordinated save (session.cc).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/save_plan.h"
#include "publish/commit.h"
#include "save/file_work.h"
#include "varve/checkpoint.h"
#include "varve/dcp.h"
#include "varve/options.h"

namespace varve {

/// What a rank tells the coordinator of its file: where each item lies, and the file's checksums.
struct DcpReceipt {
  std::uint64_t size = 0;
  std::vector<DcpExtent> chunks;   ///< As the assignment lists them.
  std::vector<DcpExtent> objects;  ///< As the assignment lists them.
  std::vector<std::uint32_t> block_crc32c;
};

Bytes EncodeDcpReceipt(const DcpReceipt& receipt);
Result<DcpReceipt> DecodeDcpReceipt(std::string_view bytes);

/// "__3_0.distcp".
std::string DcpFileName(std::uint32_t rank);

/// The rank's data file. The state must stay where it is until the data have been written or
/// staged. The receipt is an encoded DcpReceipt. Errors: as WriteDcpFile, without those of I/O;
/// Unimplemented for a value that only a pickle can hold, with its name.
Result<FileWork> PrepareDcpShare(const State& state, const RankAssignment& assignment,
                                 const SaveOptions& options);

/// The same without data, from the `layout` of a prepared one: for a process that has a copy of
/// them and not the state. Errors: DataLoss when `layout` is not one.
Result<FileWork> DescribeDcpShare(std::string_view layout, std::uint64_t block_bytes);

/// On the coordinator: `.metadata` and the files it counts on.
struct DcpIndexFiles {
  std::vector<DataFile> files;
  std::vector<IndexFile> index;
};
Result<DcpIndexFiles> MakeDcpIndex(const std::vector<LocalPlan>& plans,
                                   const std::vector<RankAssignment>& assignments,
                                   const std::vector<DcpReceipt>& receipts,
                                   std::vector<StoredFile> side_files, std::uint64_t block_bytes);

}  // namespace varve
