/// Folders of Hugging Face's tools: files of safetensors, and what is beside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "interop/safetensors/hf_checksums.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

inline constexpr std::string_view kHfIndexName = "model.safetensors.index.json";

/// Reads model.varve-checksums.json, which is beside the index of the folder or, where the `files`
/// that the index names are in a data directory, in that. Errors: NotFound where there is none; as
/// DecodeHfChecksums.
Result<HfChecksums> ReadHfChecksums(Storage& storage, const std::string& directory,
                                    const std::vector<std::string>& files);

/// Looks for a file of a folder that Varve wrote in Hugging Face's layout which another program has
/// written since: it is whole, and neither its size and header nor its name are what
/// model.varve-checksums.json has. Damage never looks like that, but for a few bits of a header
/// that can still be read. Returns an empty name where there is none. Errors: as ReadHfChecksums.
Result<std::string> FindRewrittenHfFile(Storage& storage, const std::string& directory);

}  // namespace varve
