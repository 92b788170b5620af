#include "catalogue/foreign.h"

#include <algorithm>
#include <array>
#include <utility>

#include "catalogue/foreign/layout.h"
#include "catalogue/names.h"
#include "catalogue/unlisted.h"

namespace varve {
namespace {

/// The layouts, in the order in which they are tried: what wraps another comes before it, and what
/// an index names before what common names of files suggest (a model exported beside a checkpoint).
constexpr std::array kLayouts{&kHfaiLayout,        &kOlmoTorchNewLayout, &kOlmoLocalLayout,
                              &kOlmoCoreLayout,    &kDcpLayout,          &kDcpRankLocalLayout,
                              &kHfLayout,          &kOlmoLegacyLayout,   &kOlmoFullLayout,
                              &kSafetensorsLayout, &kHfTorchLayout};

Result<OpenedIndex> OpenForeignDirectory(const ForeignFolder& folder) {
  for (const ForeignLayout* const layout : kLayouts) {
    if (layout->recognises(folder)) {
      if (layout->has_no_index && folder.HasFile(kUploadClaim) && !folder.HasFile(kUploadMark)) {
        return FailedPrecondition(
                   folder.path +
                   ": an upload or save is under way there, or has died: files may be "
                   "missing. If it has died, repeat it in place, or remove the "
                   "directory")
            .With({.reason = ErrorReason::kIncomplete});
      }
      return layout->open(folder);
    }
  }
  return NotFound(folder.path + " holds no checkpoint that Varve knows");
}

}  // namespace

Result<OpenedIndex> OpenForeignUnlisted(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, KnownEntries(storage, path));
  return OpenForeignDirectory({storage, path, entries});
}

Result<OpenedIndex> OpenForeign(Storage& storage, const std::string& path) {
  const auto entries = storage.List(path);
  if (entries.ok()) {
    return OpenForeignDirectory({storage, path, *entries});
  }
  return entries.status().code() == StatusCode::kNotFound ? entries.status()
                                                          : OpenForeignFile(storage, path);
}

Result<OpenedIndex> OpenForeignOfOwnRanks(Storage& storage, const std::string& path,
                                          std::uint32_t world_size) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  const ForeignFolder folder{storage, path, entries, world_size};
  for (const ForeignLayout* const layout : kLayouts) {
    if (layout->recognises(folder)) {
      return layout->opens_own_ranks
                 ? layout->open(folder)
                 : InvalidArgument(path +
                                   " is no checkpoint of which each rank needs its own "
                                   "files only");
    }
  }
  return NotFound(path + " holds no checkpoint that Varve knows");
}

std::optional<Format> ForeignFormat(Storage& storage, const std::string& path,
                                    const std::vector<DirectoryEntry>& entries) {
  for (const ForeignLayout* const layout : kLayouts) {
    if (layout->recognises({storage, path, entries})) {
      return layout->format;
    }
  }
  return std::nullopt;
}

Result<std::vector<std::string>> ForeignFileNames(Storage& storage, const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  std::vector<std::string> names;
  bool is_dcp = false;  // Its index may name nothing; the other one is then the user's.
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory && IsDcpIndexName(entry.name)) {
      is_dcp = true;
      VARVE_ASSIGN_OR_RETURN(const auto named,
                             NamesInDcpIndex(storage, JoinPath(directory, entry.name)));
      names.insert(names.end(), named.begin(), named.end());
    }
  }
  if (!is_dcp && HasHfIndex(entries)) {
    VARVE_ASSIGN_OR_RETURN(names, NamesInHfIndex(storage, JoinPath(directory, kHfIndexName)));
    const std::string data = names.empty() ? "" : DataDirectoryOf(names.front());
    // Where the checksums cannot be read, side files count as the user's.
    const auto sums = ReadHfChecksums(storage, directory, names);
    if (!data.empty()) {
      names.push_back(JoinPath(data, kHfChecksumsName));
    }
    if (sums.ok()) {
      for (const StoredFile& file : sums->side_files) {
        names.push_back(file.name);
      }
    }
  }
  return names;
}

bool HasHfIndex(const std::vector<DirectoryEntry>& entries) {
  return std::any_of(entries.begin(), entries.end(),
                     [](const DirectoryEntry& entry) { return entry.name == kHfIndexName; });
}

}  // namespace varve
