#include "catalogue/unfinished.h"

#include <algorithm>
#include <utility>

#include "catalogue/formats/known_format.h"

namespace varve {
namespace {

using Candidates = std::vector<const KnownFormat*>;

/// Returns the formats whose writers use a directory of this name.
Candidates FormatsOf(std::string_view name) {
  Candidates formats;
  for (const KnownFormat* const known : KnownFormats()) {
    if (FitsAny(known->unfinished, name)) {
      formats.push_back(known);
    }
  }
  return formats;
}

/// Takes the entries of one folder, empty for the directory itself. Leaves those formats whose
/// writers make all of them; false where there is none.
bool Take(Storage& storage, const std::string& directory, const std::string& folder,
          Candidates* formats, Unfinished* found) {
  const auto entries = storage.List(folder.empty() ? directory : JoinPath(directory, folder));
  if (!entries.ok()) {
    return false;
  }
  for (const DirectoryEntry& entry : *entries) {
    const std::string name = folder.empty() ? entry.name : JoinPath(folder, entry.name);
    found->modified_ns = std::max(found->modified_ns, entry.modified_ns);
    std::erase_if(*formats, [&](const KnownFormat* known) {
      return entry.is_directory ? !known->OwnsFolder(name) : !known->Owns(name);
    });
    if (formats->empty() || entry.is_link) {
      return false;
    }
    if (entry.is_directory) {
      if (!Take(storage, directory, name, formats, found)) {
        return false;
      }
      found->folders.push_back(name);
      continue;
    }
    found->has_mark = found->has_mark || formats->front()->IsIndex(name);
    found->files.push_back(name);
    found->bytes += entry.size;
  }
  return true;
}

}  // namespace

std::optional<std::string> UnfinishedTarget(std::string_view name) {
  constexpr std::string_view kSuffix = "-tmp";
  return FormatsOf(name).empty()
             ? std::nullopt
             : std::optional(std::string(name.substr(0, name.size() - kSuffix.size())));
}

std::optional<Unfinished> ReadUnfinished(Storage& storage, const std::string& directory) {
  Unfinished found;
  Candidates formats = FormatsOf(BaseName(directory));
  if (formats.empty() || !Take(storage, directory, "", &formats, &found)) {
    return std::nullopt;
  }
  found.format = formats.front()->format;
  return found;
}

}  // namespace varve
