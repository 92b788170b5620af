/// Side files: files that a caller saves with a checkpoint beside its tensors and values, as a
/// `config.json` or a tokenizer. They are part of the checkpoint: its index names them with size
/// and CRC-32C, and an overwrite replaces them with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Side files of a save are held in memory until they are written.
inline constexpr std::uint64_t kMaxSideBytes = std::uint64_t{256} << 20;

/// Returns true for the name of a file that Hugging Face's tools read beside the weights: the
/// model's configuration, or a tokenizer's.
bool IsModelConfiguration(std::string_view name);

/// Checks names and sizes. Errors: InvalidArgument for a name that is absolute or empty, or has
/// empty, "." or ".." components or control characters; for a name that a file of a checkpoint or a
/// hidden file of Varve has; for a name that is given twice or is another's folder; and for more
/// bytes than the limits above.
Status CheckSideFiles(const std::vector<SideFile>& files);

/// Returns the index entries of the files, by name.
std::vector<StoredFile> DescribeSideFiles(const std::vector<SideFile>& files);

/// Writes the files into `directory`, which has none of them, with the folders they are in; all is
/// durable then but names in `directory` itself.
Status WriteSideFiles(Storage& storage, const std::string& directory,
                      const std::vector<SideFile>& files);

/// Reads a file and checks it. Errors: DataLoss.
Result<std::string> ReadSideFile(Storage& storage, const std::string& directory,
                                 const StoredFile& file);

}  // namespace varve
