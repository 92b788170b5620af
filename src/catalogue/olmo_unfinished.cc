#include "catalogue/olmo_unfinished.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/ascii.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"

namespace varve {
namespace {

constexpr std::string_view kSuffix = "-tmp";
constexpr std::string_view kModelAndOptim = "model_and_optim";

bool IsNumber(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsDigit);
}

/// Returns true for `BEFORE` N `AFTER`.
bool IsNumbered(std::string_view name, std::string_view before, std::string_view after) {
  return name.size() > before.size() + after.size() && name.starts_with(before) &&
         name.ends_with(after) &&
         IsNumber(name.substr(before.size(), name.size() - before.size() - after.size()));
}

/// Returns true for a file of a whole state: `model.pt`, or its safetensors twin.
bool IsWholeState(std::string_view name) {
  constexpr std::array<std::string_view, 4> kParts{"model", "optim", "train", "other"};
  return std::any_of(kParts.begin(), kParts.end(), [&](std::string_view part) {
    return name.starts_with(part) &&
           (name.substr(part.size()) == ".pt" || name.substr(part.size()) == ".safetensors");
  });
}

bool IsRankFile(std::string_view name) { return IsNumbered(name, "rank", ".pt"); }

bool IsFolder(std::string_view name) {
  return name == "model" || name == "optim" || name == "train" || name == kModelAndOptim;
}

/// Returns the layout that a file belongs to; nothing for one that OLMo does not write. `folder` is
/// the one it lies in, empty for the checkpoint's own.
std::optional<Format> LayoutOf(std::string_view folder, std::string_view name) {
  if (folder.empty()) {
    return IsRankFile(name)     ? std::optional(Format::kOlmoLegacy)
           : IsWholeState(name) ? std::optional(Format::kOlmoFull)
                                : std::nullopt;
  }
  if (folder == kModelAndOptim) {
    return IsDcpName(name) ? std::optional(Format::kOlmoTorchNew) : std::nullopt;
  }
  if (folder != "train" && (name == "metadata.json" || IsNumbered(name, "rank_", ".safetensors"))) {
    return Format::kOlmoCore;
  }
  return IsRankFile(name) ? std::optional(Format::kOlmoLocal) : std::nullopt;
}

/// Takes the entries of one folder. Returns false when OLMo did not make one of them.
bool Take(Storage& storage, const std::string& directory, const std::string& folder,
          OlmoUnfinished* found) {
  const auto entries = storage.List(folder.empty() ? directory : JoinPath(directory, folder));
  if (!entries.ok()) {
    return false;
  }
  for (const DirectoryEntry& entry : *entries) {
    const std::string name = folder.empty() ? entry.name : JoinPath(folder, entry.name);
    found->modified_ns = std::max(found->modified_ns, entry.modified_ns);
    if (entry.is_link) {
      return false;
    }
    if (entry.is_directory) {
      if (!folder.empty() || !IsFolder(entry.name) ||
          !Take(storage, directory, entry.name, found)) {
        return false;
      }
      found->folders.push_back(name);
      continue;
    }
    const bool is_mark = folder.empty() && entry.name == kOlmoMark;
    const bool is_metadata = folder.empty() && entry.name == "metadata.yaml";
    const auto layout = LayoutOf(folder, entry.name);
    if (!is_mark && !is_metadata && !layout) {
      return false;
    }
    // All layouts but `full` may have `train/`.
    if (layout && (folder != "train" || found->format == Format::kOlmoFull)) {
      found->format = *layout;
    }
    found->has_mark = found->has_mark || is_mark;
    found->files.push_back(name);
    found->bytes += entry.size;
  }
  return true;
}

}  // namespace

std::optional<std::string> OlmoUnfinishedTarget(std::string_view name) {
  if (!name.ends_with(kSuffix)) {
    return std::nullopt;
  }
  name.remove_suffix(kSuffix.size());
  const bool is_olmos = IsNumbered(name, "step", "") || IsNumbered(name, "step", "-unsharded");
  return is_olmos ? std::optional(std::string(name)) : std::nullopt;
}

std::optional<OlmoUnfinished> ReadOlmoUnfinished(Storage& storage, const std::string& directory) {
  OlmoUnfinished found;
  return Take(storage, directory, "", &found) ? std::optional(std::move(found)) : std::nullopt;
}

}  // namespace varve
