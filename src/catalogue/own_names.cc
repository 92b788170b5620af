#include "catalogue/own_names.h"

#include <algorithm>
#include <utility>

#include "catalogue/foreign.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "format/commit_record.h"

namespace varve {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

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

bool IsNativeIndex(std::string_view name) {
  return name == kCommitRecordName || name == kManifestName;
}

bool IsNativeName(std::string_view name) { return IsNativeIndex(name) || IsWrittenDataFile(name); }

bool IsHfName(std::string_view name) {
  if (name == kHfIndexName || name == "model.safetensors") {
    return true;
  }
  return SkipNumbered("model-", &name) && name == ".safetensors";
}

/// Returns true for hidden names that only Varve makes, in a directory of any format.
bool IsHiddenName(std::string_view name) {
  if (name == kStagingMark || PartRank(name) || IsInnerLock(name)) {
    return true;
  }
  const auto part = ParseStaleName(name);
  return part && part->kind == StaleKind::kPart &&
         (IsNativeName(part->target) || part->target == kStagingMark);
}

}  // namespace

bool IsDcpName(std::string_view name) {
  if (name.ends_with(".tmp")) {  // An index is renamed from there, by torch too.
    name.remove_suffix(4);
    return IsDcpIndexName(name);
  }
  return IsDcpIndexName(name) || name.ends_with(".distcp");
}

std::optional<Format> ShownFormat(const std::vector<DirectoryEntry>& entries) {
  bool dcp = false;
  bool hf = false;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory) {
      continue;
    }
    if (entry.name == kCommitRecordName || IsWrittenDataFile(entry.name)) {
      return Format::kVarve;
    }
    dcp = dcp || IsDcpIndexName(entry.name);
    hf = hf || entry.name == kHfIndexName;
  }
  if (dcp) {
    return Format::kDcp;
  }
  return hf ? std::optional(Format::kSafetensors) : std::nullopt;
}

bool IsReservedFileName(std::string_view name) {
  return IsHiddenName(name) || IsNativeName(name) || IsDcpName(name) || IsHfName(name) ||
         name.starts_with(".varve") || ParseStaleName(name).has_value();
}

OwnNames::OwnNames(Storage& storage, const std::string& directory,
                   const std::vector<DirectoryEntry>& entries)
    : storage_(storage), directory_(directory), format_(ShownFormat(entries)) {}

bool OwnNames::IsIndex(std::string_view name) const {
  return IsNativeIndex(name) || IsDcpIndexName(name) || name == kHfIndexName;
}

bool OwnNames::FitsPattern(std::string_view name) const {
  if (name.find('/') != std::string_view::npos) {
    return false;  // Writers put nothing into folders; a copy of a checkpoint there is the user's.
  }
  if (IsHiddenName(name)) {
    return true;
  }
  if (!format_) {
    return IsNativeName(name) || IsDcpName(name) || IsHfName(name);
  }
  switch (*format_) {
    case Format::kVarve: return IsNativeName(name);
    case Format::kDcp: return IsDcpName(name);
    case Format::kSafetensors: return IsHfName(name);
    case Format::kTorchSave: return false;
  }
  return false;
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
      }
    } else if (format_ == Format::kDcp || format_ == Format::kSafetensors) {
      if (auto names = ForeignFileNames(storage_, directory_); names.ok()) {
        named_->insert(names->begin(), names->end());
      }
    }
  }
  return named_->contains(name);
}

bool HoldsCheckpoint(Storage& storage, const std::string& directory) {
  const auto entries = storage.List(directory);
  return entries.ok() && ShownFormat(*entries).has_value();
}

}  // namespace varve
