// Side files of a conversion.

#include "catalogue/side_files.h"

#include <algorithm>

#include "catalogue/formats/hf.h"
#include "convert/writers.h"
#include "varve/catalogue.h"
#include "varve/step_note.h"

namespace varve {

Result<std::vector<SideFile>> ReadSideFiles(CheckpointReader& reader) {
  std::vector<SideFile> files;
  for (const StoredFile& file : reader.metadata().side_files) {
    if (file.name == kHfIndexName) {
      continue;  // It names the data files of the source.
    }
    if (file.name == kStepNoteName) {
      continue;  // It gives the source its place in its run, and the target is no step of it.
    }
    VARVE_ASSIGN_OR_RETURN(std::string content, reader.ReadFile(file.name));
    files.push_back({file.name, std::move(content)});
  }
  return files;
}

Result<std::vector<SideFile>> ReadHfConfig(const std::string& directory, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  std::vector<SideFile> files;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory && IsModelConfiguration(entry.name)) {
      VARVE_ASSIGN_OR_RETURN(
          std::string content,
          ReadWholeFile(storage, JoinPath(directory, entry.name), kMaxSideBytes));
      files.push_back({entry.name, std::move(content)});
    }
  }
  if (files.empty()) {
    return NotFound(directory + " has no configuration of a Hugging Face model, no config.json");
  }
  VARVE_RETURN_IF_ERROR(CheckSideFiles(files).Annotate(directory));
  return files;
}

std::vector<std::string> NamesOf(const std::vector<SideFile>& files) {
  std::vector<std::string> names;
  names.reserve(files.size());
  for (const SideFile& file : files) {
    names.push_back(file.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace varve
