#include "catalogue/own_names.h"

#include <algorithm>
#include <utility>

#include "base/ascii.h"
#include "catalogue/formats.h"
#include "catalogue/formats/known_format.h"
#include "catalogue/names.h"
#include "varve/step_note.h"

namespace varve {
namespace {

/// Returns the format that a removal has noted before it began, or null.
const KnownFormat* NotedFormat(std::string_view name) {
  if (!TakeText(&name, kReplacedMark)) {
    return nullptr;
  }
  for (const KnownFormat* const known : KnownFormats()) {
    if (known->has_common_names && FormatName(known->format) == name) {
      return known;
    }
  }
  return nullptr;
}

/// Returns the format by which the files in a directory are told from the user's, or null.
const KnownFormat* Shown(const ListedFolder& folder) {
  for (const DirectoryEntry& entry : folder.entries) {
    if (const KnownFormat* const noted = entry.is_directory ? nullptr : NotedFormat(entry.name)) {
      return noted;
    }
  }
  const KnownFormat* const known = Recognise(folder);
  if (known == nullptr || known->is_plain_model) {
    return nullptr;
  }
  return known->is_replaceable == nullptr || known->is_replaceable(folder) ? known : nullptr;
}

/// Returns true for names that only writers of some format give.
bool IsOfSomeFormat(std::string_view name) {
  const auto known = KnownFormats();
  return std::any_of(known.begin(), known.end(), [&](const KnownFormat* one) {
    return !one->has_common_names && one->Owns(name);
  });
}

/// Returns true for hidden names that only Varve makes, in a directory of any format.
bool IsHiddenName(std::string_view name) {
  if (name == kStagingMark || name == kUploadClaim || name == kUploadMark ||
      NotedFormat(name) != nullptr || PartRank(name) || IsInnerLock(name)) {
    return true;
  }
  const auto part = ParseStaleName(name);
  return part && part->kind == StaleKind::kPart &&
         (kVarveKnown.Owns(part->target) || part->target == kStagingMark);
}

}  // namespace

bool IsReservedFileName(std::string_view name) {
  return IsHiddenName(name) || IsOfSomeFormat(name) || name.starts_with(".varve") ||
         ParseStaleName(name).has_value();
}

OwnNames::OwnNames(Storage& storage, const std::string& directory,
                   const std::vector<DirectoryEntry>& entries)
    : storage_(storage),
      directory_(directory),
      entries_(entries),
      known_(Shown({storage, directory, entries, 0, {}, &failed_})) {}

bool OwnNames::IsIndex(std::string_view name) const {
  const auto known = KnownFormats();
  return std::any_of(known.begin(), known.end(), [&](const KnownFormat* one) {
    return (!one->has_common_names || one == known_) && one->IsIndex(name);
  });
}

bool OwnNames::FitsPattern(std::string_view name) const {
  const bool has_folders = known_ != nullptr && known_->has_common_names;
  if (name.find('/') != std::string_view::npos && !has_folders) {
    return false;  // A copy of a checkpoint in a folder there is the user's.
  }
  return IsHiddenName(name) || name == kStepNoteName ||
         (known_ != nullptr ? known_->Owns(name) : IsOfSomeFormat(name));
}

bool OwnNames::OwnsFolder(std::string_view name) const {
  return known_ != nullptr && known_->OwnsFolder(name);
}

std::string OwnNames::NoteOfRemoval() const {
  return known_ != nullptr && known_->has_common_names
             ? std::string(kReplacedMark) + std::string(FormatName(known_->format))
             : "";
}

bool OwnNames::Contains(const std::string& name) {
  if (FitsPattern(name)) {
    return true;
  }
  if (!named_) {
    named_.emplace();
    if (known_ != nullptr) {
      const auto names = NamesInIndexes({storage_, directory_, entries_}, *known_);
      if (names.ok()) {
        named_->insert(names->begin(), names->end());
      }
    }
  }
  return named_->contains(name);
}

std::optional<Format> ShownFormat(Storage& storage, const std::string& directory,
                                  const std::vector<DirectoryEntry>& entries) {
  const KnownFormat* const known = Shown({storage, directory, entries});
  return known != nullptr ? std::optional(known->format) : std::nullopt;
}

bool IsCheckpoint(Storage& storage, const std::string& directory,
                  const std::vector<DirectoryEntry>& entries) {
  return Shown({storage, directory, entries}) != nullptr;
}

bool HoldsCheckpoint(Storage& storage, const std::string& directory) {
  const auto entries = storage.List(directory);
  return entries.ok() && IsCheckpoint(storage, directory, *entries);
}

}  // namespace varve
