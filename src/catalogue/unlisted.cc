#include "catalogue/unlisted.h"

#include <algorithm>
#include <cstdint>

#include "catalogue/formats/known_format.h"
#include "format/commit_record.h"

namespace varve {
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

/// What is looked for: names, then patterns of numbered ones.
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

}  // namespace varve
