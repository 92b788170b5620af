#include "catalogue/own_names.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/ascii.h"
#include "catalogue/foreign.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "format/commit_record.h"
#include "interop/hfai/names.h"
#include "interop/safetensors/hf_checksums.h"

namespace varve {
namespace {

constexpr std::string_view kOlmoModel = "model.pt";
constexpr std::string_view kOlmoMetadata = "metadata.yaml";

/// Takes a run of digits off the front; false when there is none.
bool SkipDigits(std::string_view* text) {
  const auto end = std::find_if_not(text->begin(), text->end(), IsDigit);
  const auto count = static_cast<std::size_t>(end - text->begin());
  text->remove_prefix(count);
  return count > 0;
}

bool Skip(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) {
    return false;
  }
  text->remove_prefix(prefix.size());
  return true;
}

/// Takes "PREFIX-00001-of-00002" off the front of `*name`; false when it is not there.
bool SkipNumbered(std::string_view prefix, std::string_view* name) {
  return Skip(prefix, name) && SkipDigits(name) && Skip("-of-", name) && SkipDigits(name);
}

/// Returns true for "data-R-of-N.safetensors" and "data-R-of-N-ID.safetensors".
bool IsWrittenDataFile(std::string_view name) {
  if (!SkipNumbered("data-", &name)) {
    return false;
  }
  if (Skip("-", &name)) {
    const std::size_t id = std::min(name.find_first_not_of("0123456789abcdef"), name.size());
    name.remove_prefix(id);
  }
  return name == ".safetensors";
}

bool IsNativeIndex(std::string_view name) { return RecordNumber(name) || name == kManifestName; }

bool IsNativeName(std::string_view name) { return IsNativeIndex(name) || IsWrittenDataFile(name); }

bool IsHfName(std::string_view name) {
  return name == kHfIndexName || name == kHfChecksumsName || IsHfDataName(name);
}

/// Returns the layout that a removal has noted before it began.
std::optional<Format> NotedFormat(std::string_view name) {
  if (!Skip(kReplacedMark, &name)) {
    return std::nullopt;
  }
  constexpr std::array kFormats{Format::kOlmoFull, Format::kOlmoTorchNew, Format::kOlmoLegacy,
                                Format::kOlmoLocal, Format::kOlmoCore};
  const auto* const found = std::find_if(kFormats.begin(), kFormats.end(),
                                         [&](Format format) { return FormatName(format) == name; });
  return found == kFormats.end() ? std::nullopt : std::optional(*found);
}

/// Returns true for hidden names that only Varve makes, in a directory of any format.
bool IsHiddenName(std::string_view name) {
  if (name == kStagingMark || name == kUploadClaim || name == kUploadMark || NotedFormat(name) ||
      PartRank(name) || IsInnerLock(name)) {
    return true;
  }
  const auto part = ParseStaleName(name);
  return part && part->kind == StaleKind::kPart &&
         (IsNativeName(part->target) || part->target == kStagingMark);
}

/// Returns true for "rank12.pt".
bool IsOlmoRankFile(std::string_view name) {
  return Skip("rank", &name) && SkipDigits(&name) && name == ".pt";
}

bool IsFolderOfOlmo(std::string_view name) {
  return name == "model" || name == "optim" || name == "train";
}

/// Returns true for the files in the folders of OLMo-core's first layout.
bool IsOlmoCoreFile(std::string_view name) {
  return name == "metadata.json" ||
         (Skip("rank_", &name) && SkipDigits(&name) && name == ".safetensors");
}

/// Returns which of OLMo's sharded layouts a directory with the mark has. OLMo-core's has no file
/// of its own beside the mark: it is one with all three folders.
std::optional<Format> OlmoSharded(const std::vector<DirectoryEntry>& entries) {
  int folders = 0;
  for (const DirectoryEntry& entry : entries) {
    folders += entry.is_directory && IsFolderOfOlmo(entry.name) ? 1 : 0;
    if (entry.is_directory && entry.name == "model_and_optim") {
      return Format::kOlmoTorchNew;
    }
    if (!entry.is_directory && entry.name == kOlmoMetadata) {
      return Format::kOlmoLocal;
    }
    if (!entry.is_directory && IsOlmoRankFile(entry.name)) {
      return Format::kOlmoLegacy;
    }
  }
  return folders == 3 ? std::optional(Format::kOlmoCore) : std::nullopt;
}

bool IsOlmo(std::optional<Format> format) {
  return format == Format::kOlmoFull || format == Format::kOlmoTorchNew ||
         format == Format::kOlmoLegacy || format == Format::kOlmoLocal ||
         format == Format::kOlmoCore;
}

/// Returns true for the files of OLMo's sharded layouts, by their paths in the checkpoint.
bool IsOlmoShardedName(Format format, std::string_view name) {
  if (name == kOlmoMark || (format == Format::kOlmoLocal && name == kOlmoMetadata)) {
    return true;
  }
  if (format == Format::kOlmoLegacy) {
    return IsOlmoRankFile(name);
  }
  if (Skip("train/", &name)) {
    return IsOlmoRankFile(name);
  }
  if (format == Format::kOlmoTorchNew) {
    return Skip("model_and_optim/", &name) && IsDcpName(name);
  }
  if (!Skip("model/", &name) && !Skip("optim/", &name)) {
    return false;
  }
  return format == Format::kOlmoCore ? IsOlmoCoreFile(name) : IsOlmoRankFile(name);
}

/// Returns true for the files that an unshard writes. The directory is one of OLMo's if it has the
/// model and a mark that is written last, OLMo's or Varve's; with the model in safetensors the
/// optimizer too, because a folder with a model.safetensors and a config.yaml may be anyone's.
bool IsOlmoFullName(std::string_view name) {
  return name == kOlmoModel || name == "optim.pt" || name == "train.pt" || name == kOlmoMark ||
         name == "model.safetensors" || name == "optim.safetensors";
}

}  // namespace

bool IsDcpName(std::string_view name) {
  if (name.ends_with(".tmp")) {  // An index is renamed from there, by torch too.
    name.remove_suffix(4);
    return IsDcpIndexName(name);
  }
  return IsDcpIndexName(name) || name.ends_with(".distcp");
}

bool IsHfDataName(std::string_view name) {
  return name == "model.safetensors" || (SkipNumbered("model-", &name) && name == ".safetensors");
}

std::optional<Format> ShownFormat(const std::vector<DirectoryEntry>& entries) {
  bool dcp = false;
  bool hf = false;
  bool hfai = false;
  bool olmo_model = false;
  bool olmo_mark = false;
  bool varves_mark = false;
  int olmo_safetensors = 0;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory) {
      continue;
    }
    if (const auto noted = NotedFormat(entry.name)) {
      return noted;
    }
    if (RecordNumber(entry.name) || IsWrittenDataFile(entry.name)) {
      return Format::kVarve;
    }
    dcp = dcp || IsDcpIndexName(entry.name);
    hf = hf || entry.name == kHfIndexName;
    olmo_model = olmo_model || entry.name == kOlmoModel;
    olmo_mark = olmo_mark || entry.name == kOlmoMark;
    varves_mark = varves_mark || entry.name == kUploadMark;
    olmo_safetensors +=
        entry.name == "model.safetensors" || entry.name == "optim.safetensors" ? 1 : 0;
    hfai = hfai || HfaiPartNumber(entry.name).has_value();
  }
  if (hfai) {
    return Format::kHfai;
  }
  if (dcp) {
    return Format::kDcp;
  }
  if (hf) {
    return Format::kSafetensors;
  }
  if ((olmo_mark || varves_mark) && (olmo_model || olmo_safetensors == 2)) {
    return Format::kOlmoFull;
  }
  return olmo_mark ? OlmoSharded(entries) : std::nullopt;
}

bool IsReservedFileName(std::string_view name) {
  return IsHiddenName(name) || IsNativeName(name) || IsDcpName(name) || IsHfName(name) ||
         HfaiPartNumber(name) || name.starts_with(".varve") || ParseStaleName(name).has_value();
}

OwnNames::OwnNames(Storage& storage, const std::string& directory,
                   const std::vector<DirectoryEntry>& entries)
    : storage_(storage), directory_(directory), format_(ShownFormat(entries)) {}

bool OwnNames::IsIndex(std::string_view name) const {
  return IsNativeIndex(name) || IsDcpIndexName(name) || name == kHfIndexName ||
         (name == kOlmoMark && IsOlmo(format_));
}

bool OwnNames::FitsPattern(std::string_view name) const {
  if (name.find('/') != std::string_view::npos && !IsOlmo(format_)) {
    return false;  // No other writer uses folders; a copy of a checkpoint there is the user's.
  }
  if (IsHiddenName(name)) {
    return true;
  }
  if (!format_) {
    return IsNativeName(name) || IsDcpName(name) || IsHfName(name) || HfaiPartNumber(name);
  }
  switch (*format_) {
    case Format::kVarve: return IsNativeName(name);
    case Format::kDcp: return IsDcpName(name);
    case Format::kSafetensors: return IsHfName(name);
    case Format::kOlmoFull: return IsOlmoFullName(name);
    case Format::kTorchSave: return false;
    case Format::kOlmoTorchNew:
    case Format::kOlmoLegacy:
    case Format::kOlmoLocal:
    case Format::kOlmoCore: return IsOlmoShardedName(*format_, name);
    case Format::kHfai: return HfaiPartNumber(name).has_value();
  }
  return false;
}

bool OwnNames::OwnsFolder(std::string_view name) const {
  if (format_ == Format::kOlmoTorchNew) {
    return name == "model_and_optim" || name == "train";
  }
  const bool three = format_ == Format::kOlmoLocal || format_ == Format::kOlmoCore;
  return three && IsFolderOfOlmo(name);
}

std::string OwnNames::NoteOfRemoval() const {
  return IsOlmo(format_) ? std::string(kReplacedMark) + std::string(FormatName(*format_)) : "";
}

bool OwnNames::Contains(const std::string& name) {
  if (FitsPattern(name)) {
    return true;
  }
  if (!named_) {
    named_.emplace();
    if (format_ == Format::kVarve) {
      if (const auto record = ReadCommitRecord(storage_, directory_); record.ok()) {
        for (const StoredFile& file : record->side_files) {
          named_->insert(file.name);
        }
        below_ = record->directory.empty() ? "" : record->directory + "/";
      }
    } else if (format_ == Format::kDcp || format_ == Format::kSafetensors) {
      if (auto names = ForeignFileNames(storage_, directory_); names.ok()) {
        named_->insert(names->begin(), names->end());
      }
    }
  }
  if (!below_.empty() && name.starts_with(below_)) {
    const std::string rest = name.substr(below_.size());
    return IsNativeName(rest) || named_->contains(rest);
  }
  return below_.empty() && named_->contains(name);
}

bool IsCheckpoint(Storage& storage, const std::string& directory,
                  const std::vector<DirectoryEntry>& entries) {
  const auto format = ShownFormat(entries);
  // A user's project has config.yaml and such folders too.
  std::string folder;
  bool (*is_part)(std::string_view) = nullptr;
  if (format == Format::kOlmoTorchNew) {
    folder = "model_and_optim";
    is_part = IsDcpName;
  } else if (format == Format::kOlmoLocal) {
    folder = "model";
    is_part = IsOlmoRankFile;
  } else if (format == Format::kOlmoCore) {
    folder = "model";
    is_part = IsOlmoCoreFile;
  } else {
    return format.has_value();
  }
  const auto inside = storage.List(JoinPath(directory, folder));
  return inside.ok() && std::any_of(inside->begin(), inside->end(), [&](const auto& entry) {
           return !entry.is_directory && is_part(entry.name);
         });
}

bool HoldsCheckpoint(Storage& storage, const std::string& directory) {
  const auto entries = storage.List(directory);
  return entries.ok() && IsCheckpoint(storage, directory, *entries);
}

}  // namespace varve
