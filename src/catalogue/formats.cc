// The table of formats. A new one is a file in formats/ and a line in kFormats; one that saves
// write has an entry in save/written_format.cc too.

#include "catalogue/formats.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "catalogue/family.h"
#include "catalogue/formats/known_format.h"
#include "catalogue/names.h"
#include "format/commit_record.h"

namespace varve {
namespace {

/// The formats, in the order in which they are tried: a directory has the format of the first that
/// recognises it. A state of a training that its own index in the directory
/// names comes first, then one in folders below, then a model that was exported beside them, then
/// what common names suggest.
constexpr std::array kFormats{&kVarveKnown,        &kHfaiKnown,       &kDcpKnown,
                              &kOlmoTorchNewKnown, &kOlmoLocalKnown,  &kOlmoCoreKnown,
                              &kHfKnown,           &kOlmoLegacyKnown, &kOlmoFullKnown,
                              &kSafetensorsKnown,  &kHfTorchKnown};

Result<OpenedIndex> OpenFolder(const ListedFolder& folder) {
  Status failed;
  ListedFolder asked = folder;
  asked.failed = &failed;
  const KnownFormat* const known = Recognise(asked);
  VARVE_RETURN_IF_ERROR(failed);  // It may be a checkpoint, or one of another format.
  return known != nullptr ? known->open(folder)
                          : NotFound(folder.path + " holds no checkpoint that Varve knows");
}

}  // namespace

bool FitsAny(Patterns patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](std::string_view pattern) { return FitsName(pattern, name); });
}

bool KnownFormat::IsIndex(std::string_view name) const { return FitsAny(index, name); }

bool KnownFormat::Owns(std::string_view name) const {
  return IsIndex(name) || FitsAny(names, name);
}

bool KnownFormat::OwnsFolder(std::string_view name) const {
  return std::any_of(names.begin(), names.end(), [&](std::string_view pattern) {
    const std::size_t end = pattern.find('/');
    return end != std::string_view::npos && pattern.substr(0, end) == name;
  });
}

std::span<const KnownFormat* const> KnownFormats() { return kFormats; }

const KnownFormat* Recognise(const ListedFolder& folder) {
  const auto* const found =
      std::find_if(kFormats.begin(), kFormats.end(),
                   [&](const KnownFormat* known) { return known->recognises(folder); });
  return found == kFormats.end() ? nullptr : *found;
}

Result<std::vector<std::string>> NamesInIndexes(const ListedFolder& folder,
                                                const KnownFormat& known) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : folder.entries) {
    if (known.names_in_index != nullptr && !entry.is_directory && known.IsIndex(entry.name)) {
      VARVE_ASSIGN_OR_RETURN(
          auto named, known.names_in_index(folder.storage, JoinPath(folder.path, entry.name)));
      std::move(named.begin(), named.end(), std::back_inserter(names));
    }
  }
  return names;
}

Result<OpenedIndex> OpenKnown(Storage& storage, const std::string& path,
                              const std::stop_token& stop) {
  const auto entries = storage.List(path);
  if (entries.ok()) {
    return OpenFolder({storage, path, *entries, 0, stop});
  }
  if (entries.status().code() == StatusCode::kNotFound || IsForbidden(entries.status())) {
    return entries.status();
  }
  auto file = OpenKnownFile(storage, path);
  const bool is_file = file.ok() || entries.status().code() == StatusCode::kInvalidArgument;
  return is_file ? std::move(file) : Result<OpenedIndex>(entries.status());
}

Result<OpenedIndex> OpenDespiteDamage(Storage& storage, const std::string& path,
                                      std::vector<Damage>* damages, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  return OpenFolder(
      {.storage = storage, .path = path, .entries = entries, .stop = stop, .damages = damages});
}

Result<OpenedIndex> OpenKnownOfOwnRanks(Storage& storage, const std::string& path,
                                        std::uint32_t world_size) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  const ListedFolder folder{storage, path, entries, world_size};
  const KnownFormat* const known = Recognise(folder);
  if (known != nullptr && !known->opens_own_ranks) {
    return InvalidArgument(path + " is no checkpoint of which each rank needs its own files only");
  }
  return OpenFolder(folder);
}

std::optional<Format> FormatOf(Storage& storage, const std::string& path,
                               const std::vector<DirectoryEntry>& entries) {
  const KnownFormat* const known = Recognise({storage, path, entries});
  return known != nullptr ? std::optional(known->format) : std::nullopt;
}

bool IsPlainModel(Storage& storage, const std::string& path,
                  const std::vector<DirectoryEntry>& entries) {
  const KnownFormat* const known = Recognise({storage, path, entries});
  return known != nullptr && known->is_plain_model;
}

Result<std::vector<std::string>> NamesInIndex(Storage& storage, const std::string& path) {
  const std::string name = BaseName(path);
  for (const KnownFormat* const known : kFormats) {
    if (known->names_in_index != nullptr && known->IsIndex(name)) {
      return known->names_in_index(storage, path);
    }
  }
  return std::vector<std::string>();
}

Result<std::vector<std::string>> IndexedNames(Storage& storage, const std::string& directory,
                                              const std::vector<DirectoryEntry>& entries) {
  const ListedFolder folder{storage, directory, entries};
  const KnownFormat* const known = Recognise(folder);
  return known != nullptr ? NamesInIndexes(folder, *known)
                          : Result<std::vector<std::string>>(std::vector<std::string>());
}

Result<std::vector<std::string>> IndexedNames(Storage& storage, const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  return IndexedNames(storage, directory, entries);
}

// ---- directories of storages without lists ----

namespace {

constexpr std::uint64_t kMostParts = 65'536;  // Of ranks.

/// Appends the entry of a file where it is there. Errors: where that is not known.
Status AppendIfThere(Storage& storage, const std::string& directory, const std::string& name,
                     std::vector<DirectoryEntry>* entries) {
  const auto file = storage.OpenForRead(JoinPath(directory, name));
  if (file.ok()) {
    entries->push_back({name, false, (*file)->size(), 0, false});
    return Status::Ok();
  }
  const StatusCode code = file.status().code();
  const bool missing = code == StatusCode::kNotFound || code == StatusCode::kFailedPrecondition;
  return missing ? Status::Ok() : file.status();
}

/// Returns the i-th name of a pattern: `#` stands for `i`, `###` for three digits at least.
std::string NumberedName(std::string_view pattern, std::uint64_t i) {
  const std::size_t begin = pattern.find('#');
  const std::size_t width = pattern.find_first_not_of('#', begin) - begin;
  const std::string digits = std::to_string(i);
  return std::string(pattern.substr(0, begin)) +
         std::string(width - std::min(width, digits.size()), '0') + digits +
         std::string(pattern.substr(begin + width));
}

/// Appends the entries of files that are numbered from 0 on, as many as are there.
Status AppendNumbered(Storage& storage, const std::string& directory, std::string_view pattern,
                      std::vector<DirectoryEntry>* entries) {
  for (std::uint64_t i = 0; i < kMostParts && entries->size() == i; ++i) {
    VARVE_RETURN_IF_ERROR(AppendIfThere(storage, directory, NumberedName(pattern, i), entries));
  }
  return Status::Ok();
}

/// A file to look for by its name, or by a pattern of numbered names.
struct Wanted {
  const KnownFormat* known = nullptr;
  std::string_view name;
  bool is_numbered = false;
};

std::vector<Wanted> AllWanted() {
  std::vector<Wanted> all;
  for (const KnownFormat* const known : KnownFormats()) {
    for (const std::string_view name : known->looked_for) {
      all.push_back({known, name, name.find('#') != std::string_view::npos});
    }
  }
  std::stable_partition(all.begin(), all.end(), [](const Wanted& one) { return !one.is_numbered; });
  return all;
}

Status AppendKnown(Storage& storage, const std::string& directory,
                   std::vector<DirectoryEntry>* entries) {
  for (const Wanted& wanted : AllWanted()) {
    if (wanted.is_numbered) {
      VARVE_RETURN_IF_ERROR(AppendNumbered(storage, directory, wanted.name, entries));
    } else {
      VARVE_RETURN_IF_ERROR(AppendIfThere(storage, directory, std::string(wanted.name), entries));
    }
    if (!entries->empty()) {
      const std::string beside(wanted.known->beside);
      return beside.empty() ? Status::Ok() : AppendIfThere(storage, directory, beside, entries);
    }
  }
  return Status::Ok();
}

/// Returns "a, b or c".
std::string NamesOfAll() {
  std::string text(kCommitRecordName);
  const std::vector<Wanted> all = AllWanted();
  for (const Wanted& wanted : all) {
    text += &wanted == &all.back() ? " or " : ", ";
    text += wanted.is_numbered ? NumberedName(wanted.name, 0) : std::string(wanted.name);
  }
  return text;
}

}  // namespace

Result<std::vector<DirectoryEntry>> KnownEntries(Storage& storage, const std::string& directory) {
  std::vector<DirectoryEntry> entries;
  VARVE_RETURN_IF_ERROR(AppendKnown(storage, directory, &entries));
  if (entries.empty()) {
    return NotFound(
        "there is no checkpoint at " + directory +
        " that can be found without a list of files: it has no " + NamesOfAll() +
        ". A file is opened by its own URL, a checkpoint that was overwritten in an object store "
        "by that of its newest record (varve-2.json), and OLMo's by that of model_and_optim; "
        "checkpoints of ranks that saved apart need a storage with lists");
  }
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
  return entries;
}

Result<OpenedIndex> OpenKnownUnlisted(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, KnownEntries(storage, path));
  return OpenFolder({storage, path, entries});
}

}  // namespace varve
