/// Folders of Hugging Face's tools: files of safetensors, and what is beside them.
#pragma once

#include <string>
#include <string_view>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

inline constexpr std::string_view kHfIndexName = "model.safetensors.index.json";

/// Looks for a file of a folder that Varve wrote in Hugging Face's layout which another program has
/// written since: it is whole, and neither its size and header nor its name are what
/// model.varve-checksums.json has. Damage never looks like that, but for a few bits of a header
/// that can still be read. Returns an empty name where there is none. Errors: NotFound where there
/// are no checksums; as DecodeHfChecksums.
Result<std::string> FindRewrittenHfFile(Storage& storage, const std::string& directory);

}  // namespace varve
