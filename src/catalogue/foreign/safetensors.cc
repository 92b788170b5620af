// A folder of safetensors files, with or without `model.safetensors.index.json`.

#include <utility>

#include "catalogue/foreign.h"
#include "catalogue/foreign/layout.h"
#include "catalogue/names.h"
#include "interop/safetensors/decode.h"
#include "interop/safetensors/hf_checksums.h"

namespace varve {
namespace {

bool HasSafetensorsIndex(const ForeignFolder& folder) { return HasHfIndex(folder.entries); }

Result<OpenedIndex> OpenHfFolder(const ForeignFolder& folder) {
  const std::string& directory = folder.path;
  const std::string path = JoinPath(directory, kHfIndexName);
  VARVE_ASSIGN_OR_RETURN(const std::string json,
                         ReadWholeFile(folder.storage, path, kMaxJsonBytes));
  auto index = DecodeHfIndex(json);
  if (!index.ok()) {
    return index.status().Annotate(path);
  }
  VARVE_ASSIGN_OR_RETURN(const auto files, OpenAll(folder.storage, directory, index->FileNames()));
  auto decoded = DecodeHfFolder(*index, files);
  if (!decoded.ok()) {
    return decoded.status().Annotate(directory);
  }
  if (FindEntry(folder.entries, kHfChecksumsName) != nullptr) {
    const std::string sums = JoinPath(directory, kHfChecksumsName);
    VARVE_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(folder.storage, sums, kMaxJsonBytes));
    VARVE_RETURN_IF_ERROR(DecodeHfChecksums(text, &decoded->metadata).Annotate(directory));
  }
  return Opened(directory, std::move(*decoded));
}

/// Returns the names of the visible safetensors files.
std::vector<std::string> SafetensorsNames(const ForeignFolder& folder) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : folder.entries) {
    if (!entry.is_directory && entry.name.ends_with(".safetensors") && entry.name[0] != '.') {
      names.push_back(entry.name);
    }
  }
  return names;
}

bool HasSafetensors(const ForeignFolder& folder) { return !SafetensorsNames(folder).empty(); }

Result<OpenedIndex> OpenSafetensorsFiles(const ForeignFolder& folder) {
  VARVE_ASSIGN_OR_RETURN(const auto files,
                         OpenAll(folder.storage, folder.path, SafetensorsNames(folder)));
  auto decoded = DecodeSafetensors(files);
  if (!decoded.ok()) {
    return decoded.status().Annotate(folder.path);
  }
  return Opened(folder.path, std::move(*decoded));
}

}  // namespace

const ForeignLayout kHfLayout{HasSafetensorsIndex, OpenHfFolder};
const ForeignLayout kSafetensorsLayout{HasSafetensors, OpenSafetensorsFiles};

}  // namespace varve
