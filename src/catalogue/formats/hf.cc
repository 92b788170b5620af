// A folder of safetensors files, with or without `model.safetensors.index.json`.

#include "catalogue/formats/hf.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "catalogue/formats.h"
#include "catalogue/formats/opening.h"
#include "catalogue/names.h"
#include "interop/safetensors/decode.h"
#include "interop/safetensors/hf_checksums.h"

namespace varve {
namespace {

Result<HfIndex> DecodeIndexAt(const std::string& path, std::string_view json) {
  auto index = DecodeHfIndex(json);
  return index.ok() ? std::move(index) : index.status().Annotate(path);
}

/// Reads model.varve-checksums.json, which is beside the index of the folder or, where the `files`
/// that the index names are in a data directory, in that. Errors: NotFound where there is none; as
/// DecodeHfChecksums.
Result<HfChecksums> ReadHfChecksums(Storage& storage, const std::string& directory,
                                    const std::vector<std::string>& files) {
  const std::string data = files.empty() ? "" : DataDirectoryOf(files.front());
  const std::string path = JoinPath(JoinPath(directory, data), kHfChecksumsName);
  VARVE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(storage, path, kMaxJsonBytes));
  auto sums = DecodeHfChecksums(text);
  return sums.ok() ? std::move(sums) : sums.status().Annotate(directory);
}

/// Checks that a file's header can be read and that its tensors, and what `wanted` has of it (null
/// where it has no checksums), end where the file does. Errors: DataLoss.
Status CheckOneFile(const ListedFolder& folder, const std::string& name,
                    const HfChecksums::File* wanted) {
  VARVE_ASSIGN_OR_RETURN(const auto files, OpenAll(folder.storage, folder.path, {name}));
  VARVE_RETURN_IF_ERROR(wanted != nullptr ? CheckHfFile(*wanted, files.front()) : Status::Ok());
  return DecodeSafetensors(files).status();
}

/// Takes the files that are damaged out of the index, and notes them.
Status SetDamagedAside(const ListedFolder& folder, HfIndex* index, HfChecksums* sums) {
  for (const std::string& name : index->FileNames()) {
    const Status checked = CheckOneFile(folder, name, sums->Find(name));
    if (checked.code() != StatusCode::kDataLoss) {
      VARVE_RETURN_IF_ERROR(checked);
      continue;
    }
    Damage damage{.file = name, .problem = checked.message()};
    std::erase_if(index->weight_map, [&](const auto& entry) {
      if (entry.second == name) {
        damage.tensors.push_back(entry.first);
      }
      return entry.second == name;
    });
    std::erase_if(sums->files, [&](const HfChecksums::File& file) { return file.name == name; });
    folder.damages->push_back(std::move(damage));
  }
  return Status::Ok();
}

Result<OpenedIndex> OpenByIndex(const ListedFolder& folder, HfIndex index) {
  const std::string& directory = folder.path;
  std::vector<std::string> names = index.FileNames();
  const bool in_data = !names.empty() && !DataDirectoryOf(names.front()).empty();
  const bool has_sums = in_data || FindEntry(folder.entries, kHfChecksumsName) != nullptr;
  HfChecksums sums;
  if (folder.damages != nullptr) {
    folder.damages->clear();
    if (has_sums) {
      VARVE_ASSIGN_OR_RETURN(sums, ReadHfChecksums(folder.storage, directory, names));
    }
    VARVE_RETURN_IF_ERROR(SetDamagedAside(folder, &index, &sums));
    names = index.FileNames();
  }
  VARVE_ASSIGN_OR_RETURN(const auto files, OpenAll(folder.storage, directory, names));
  auto decoded =
      DecodeHfFolder(index, files, has_sums ? NotInIndex::kRefused : NotInIndex::kLeftOut);
  if (!decoded.ok()) {
    return decoded.status().Annotate(directory);
  }
  if (has_sums) {
    if (folder.damages == nullptr) {
      VARVE_ASSIGN_OR_RETURN(sums, ReadHfChecksums(folder.storage, directory, names));
    }
    VARVE_RETURN_IF_ERROR(
        ApplyHfChecksums(std::move(sums), files, &decoded->metadata).Annotate(directory));
  }
  return Opened(directory, std::move(*decoded));
}

constexpr std::string_view kModelName = "model.safetensors";

/// Names the model that a later save in one file has left beside an index whose files it removed, as
/// save_pretrained does. from_pretrained reads that one.
Status WithModelBeside(const ListedFolder& folder, const HfIndex& index, const Status& failed) {
  const std::vector<std::string> names = index.FileNames();
  const bool lacks = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.find('/') == std::string::npos && FindEntry(folder.entries, name) == nullptr;
  });
  if (failed.code() != StatusCode::kDataLoss || !lacks || !folder.HasFile(kModelName)) {
    return CopyOf(failed);
  }
  return DataLoss(failed.message() +
                  "; a model.safetensors is beside the index, which is of an older "
                  "save then: give the path of that file, or remove " +
                  std::string(kHfIndexName));
}

/// As with DCP's, an overwrite may replace the index and remove the old one's data directory
/// between two of our reads (publish/index_commit.cc).
Result<OpenedIndex> OpenHfFolder(const ListedFolder& folder) {
  constexpr int kTries = 5;
  const std::string path = JoinPath(folder.path, kHfIndexName);
  std::string last;
  for (int i = 1;; ++i) {
    VARVE_ASSIGN_OR_RETURN(std::string json, ReadWholeFile(folder.storage, path, kMaxJsonBytes));
    VARVE_ASSIGN_OR_RETURN(const HfIndex index, DecodeIndexAt(path, json));
    auto opened = OpenByIndex(folder, index);
    const StatusCode code = opened.status().code();
    if ((code != StatusCode::kDataLoss && code != StatusCode::kNotFound) || i == kTries ||
        json == last) {
      if (!opened.ok()) {
        return WithModelBeside(folder, index, opened.status());
      }
      return opened;
    }
    last = std::move(json);
  }
}

constexpr std::uint32_t kMostNumbered = 99'999;

constexpr std::string_view kModelNames[] = {kModelName};
constexpr std::string_view kSuffix = ".safetensors";

/// Returns true for the names that accelerate gives the models of a job: `model.safetensors`,
/// `model_1.safetensors` and so on.
bool IsModelOfJob(std::string_view name) {
  constexpr std::string_view kFurther = "model_";
  const std::string_view stem = name.substr(0, name.size() - std::min(name.size(), kSuffix.size()));
  return name == kModelNames[0] ||
         (stem.starts_with(kFurther) && stem.size() > kFurther.size() &&
          stem.find_first_not_of("0123456789", kFurther.size()) == std::string_view::npos);
}

/// Returns the names of the visible safetensors files. Beside a `model.safetensors`, which is a
/// whole model, files of other names are variants of it or other models: from_pretrained reads none
/// of them, either.
std::vector<std::string> SafetensorsNames(const ListedFolder& folder) {
  const bool has_model = folder.HasFile(kModelNames[0]);
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : folder.entries) {
    if (!entry.is_directory && entry.name.ends_with(kSuffix) && entry.name[0] != '.' &&
        (!has_model || IsModelOfJob(entry.name))) {
      names.push_back(entry.name);
    }
  }
  return names;
}

/// A name NAME-00001-of-00003.safetensors.
struct NumberedName {
  std::string_view before;  ///< "NAME-".
  std::string_view behind;  ///< "-of-00003.safetensors".
  std::size_t digits = 0;
  std::uint32_t count = 0;

  [[nodiscard]] std::string Of(std::uint32_t number) const {
    const std::string text = std::to_string(number);
    return std::string(before) + std::string(digits - std::min(digits, text.size()), '0') + text +
           std::string(behind);
  }
};

std::optional<NumberedName> ParseNumbered(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr std::string_view kEnd = ".safetensors";
  const std::size_t of = name.rfind(kOf);
  if (of == std::string_view::npos || !name.ends_with(kEnd)) {
    return std::nullopt;
  }
  const std::string_view first = name.substr(0, of);
  const std::string_view last =
      name.substr(of + kOf.size(), name.size() - kEnd.size() - of - kOf.size());
  const std::size_t dash = first.rfind('-');
  if (dash == std::string_view::npos || first.size() - dash - 1 != last.size()) {
    return std::nullopt;
  }
  NumberedName parsed{name.substr(0, dash + 1), name.substr(of), last.size(), 0};
  const char* const end = last.begin() + last.size();
  const auto [stop, error] = std::from_chars(last.begin(), end, parsed.count);
  return error == std::errc() && stop == end && parsed.count <= kMostNumbered
             ? std::optional(parsed)
             : std::nullopt;
}

/// Checks that of files with numbers in their names none is missing: without an index nothing else
/// tells. Errors: DataLoss.
Status CheckNumbered(const ListedFolder& folder, const std::vector<std::string>& names) {
  const std::set<std::string_view> there(names.begin(), names.end());
  std::set<std::pair<std::string_view, std::string_view>> checked;
  for (const std::string& name : names) {
    const auto parsed = ParseNumbered(name);
    if (!parsed || !checked.emplace(parsed->before, parsed->behind).second) {
      continue;
    }
    for (std::uint32_t number = 1; number <= parsed->count; ++number) {
      if (const std::string other = parsed->Of(number); !there.contains(other)) {
        return DataLoss(JoinPath(folder.path, other) + " is missing, of " +
                        std::to_string(parsed->count) + " files, and so is " +
                        std::string(kHfIndexName));
      }
    }
  }
  return Status::Ok();
}

Result<OpenedIndex> OpenSafetensorsFiles(const ListedFolder& folder) {
  VARVE_RETURN_IF_ERROR(CheckIsUploaded(folder));
  const std::vector<std::string> names = SafetensorsNames(folder);
  VARVE_RETURN_IF_ERROR(CheckNumbered(folder, names));
  VARVE_ASSIGN_OR_RETURN(const auto files, OpenAll(folder.storage, folder.path, names));
  auto decoded = DecodeSafetensors(files);
  if (!decoded.ok()) {
    return decoded.status().Annotate(folder.path);
  }
  if (folder.HasFile(kHfChecksumsName)) {  // Varve has written them, with an index.
    VARVE_ASSIGN_OR_RETURN(HfChecksums sums, ReadHfChecksums(folder.storage, folder.path, {}));
    VARVE_RETURN_IF_ERROR(ApplyHfChecksums(std::move(sums), files, &decoded->metadata)
                              .Annotate(folder.path + ", whose index is missing"));
  }
  return Opened(folder.path, std::move(*decoded));
}

Result<std::vector<std::string>> NamesInHfIndex(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const std::string json, ReadWholeFile(storage, path, kMaxJsonBytes));
  VARVE_ASSIGN_OR_RETURN(const HfIndex index, DecodeIndexAt(path, json));
  std::vector<std::string> names = index.FileNames();
  const std::string data = names.empty() ? "" : DataDirectoryOf(names.front());
  // Where the checksums cannot be read, side files count as the user's.
  const auto sums = ReadHfChecksums(storage, ParentPath(path), names);
  if (!data.empty()) {
    names.push_back(JoinPath(data, kHfChecksumsName));
  }
  if (sums.ok()) {
    for (const StoredFile& file : sums->side_files) {
      names.push_back(file.name);
    }
  }
  return names;
}

constexpr std::string_view kHfIndex[] = {kHfIndexName};
constexpr std::string_view kHfNames[] = {"model.safetensors", "model-#-of-#.safetensors",
                                         kHfChecksumsName};

}  // namespace

Result<std::string> FindRewrittenHfFile(Storage& storage, const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  std::set<std::string> names;
  std::vector<std::string> of_index;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory && entry.name != kHfChecksumsName && kHfKnown.Owns(entry.name)) {
      names.insert(entry.name);
    }
  }
  // An index that another program has written may name its files as it likes.
  if (const auto named = IndexedNames(storage, directory, entries); named.ok()) {
    for (const std::string& name : *named) {
      if (name.ends_with(".safetensors")) {
        names.insert(name);
        of_index.push_back(name);
      }
    }
  }
  VARVE_ASSIGN_OR_RETURN(const HfChecksums sums, ReadHfChecksums(storage, directory, of_index));
  for (const std::string& name : names) {
    const auto opened = OpenAll(storage, directory, {name});
    if (!opened.ok()) {
      continue;  // Missing or unreadable: damaged.
    }
    const NamedFile& file = opened->front();
    const HfChecksums::File* const wanted = sums.Find(name);
    if (wanted != nullptr) {
      VARVE_ASSIGN_OR_RETURN(const bool same, HasWrittenHeader(*wanted, file));
      if (same) {
        continue;
      }
    }
    if (DecodeSafetensors({file}).ok()) {
      return name;
    }
  }
  return std::string();
}

const KnownFormat kHfKnown{
    .format = Format::kSafetensors,
    .recognises = [](const ListedFolder& folder) { return folder.HasFile(kHfIndexName); },
    .open = OpenHfFolder,
    .index = kHfIndex,
    .names = kHfNames,
    .names_in_index = NamesInHfIndex,
    .looked_for = kHfIndex,
    .beside = kHfChecksumsName};
const KnownFormat kSafetensorsKnown{
    .format = Format::kSafetensors,
    .recognises = [](const ListedFolder& folder) { return !SafetensorsNames(folder).empty(); },
    .is_plain_model = true,
    .open = OpenSafetensorsFiles,
    .looked_for = kModelNames};

}  // namespace varve
