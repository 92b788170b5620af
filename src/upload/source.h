/// What there is to upload: a rank's view of the directory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "catalogue/opened.h"
#include "upload/copy_file.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"
#include "varve/upload.h"

namespace varve {

/// A checkpoint that is to be copied, as this rank sees it.
struct UploadSource {
  std::string directory;               ///< Where its files are.
  std::optional<OpenedIndex> index{};  ///< Nothing where this rank sees a part of it alone.
  bool native = false;                 ///< In Varve's own format.
  SaveId save_id{};                    ///< Of a native one.
  /// Files that ranks copy, with their sizes; of all ranks, or with UploadOptions::own_files of
  /// this one.
  std::map<std::string, std::uint64_t> files{};
  /// Files that the coordinator writes when all others are there, the mark last: kUploadMark where
  /// the layout has none. Empty for a native one, whose index is written anew.
  std::vector<std::string> last{};
  /// UploadReport::left_out.
  std::vector<std::string> left_out{};
  bool marked = false;  ///< It has kUploadMark, without which readers may not know it.

  /// Returns what is known of a file.
  [[nodiscard]] CopiedFile File(const std::string& name, std::uint64_t size) const;
};

/// Looks at the checkpoint `from`. Errors: those of OpenIndex.
Result<UploadSource> LookAtSource(Storage& storage, const std::string& from,
                                  const UploadOptions& options);

}  // namespace varve
