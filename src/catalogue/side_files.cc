#include "catalogue/side_files.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>

#include "base/bytes.h"
#include "base/checksum.h"
#include "catalogue/formats/hf.h"
#include "catalogue/own_names.h"
#include "format/relative_name.h"
#include "interop/safetensors/hf_checksums.h"
#include "varve/catalogue.h"
#include "varve/step_note.h"

namespace varve {
namespace {

/// They are listed in varve.json, of which readers take at most 64 KiB.
constexpr std::uint64_t kMaxSideNames = std::uint64_t{48} << 10;

Status BadName(const std::string& name, const std::string& why) {
  return InvalidArgument("files: \"" + name + "\" " + why);
}

/// Names of the files that Hugging Face's tools read beside the weights.
constexpr std::array kModelConfiguration{
    "config.json",       "*_config.json", "tokenizer*", "special_tokens_map.json",
    "added_tokens.json", "vocab.*",       "merges.txt", "*.model",
    "*.tiktoken",        "chat_template*"};

/// Says what to do about a file that people edit: nothing tells an edit from damage.
std::string WhereEdited(Storage& storage, const std::string& directory, const StoredFile& file) {
  if (file.name == kStepNoteName) {
    return "; it tells the place of the step in its run";
  }
  std::string text =
      "; it is damaged, or was edited after the save. To keep an edit give the file with a new save "
      "(files=)";
  if (storage.OpenForRead(JoinPath(directory, kHfChecksumsName)).ok()) {
    text += ". You may instead remove " + std::string(kHfChecksumsName) +
            ", with which the checksums of the tensors go";
  }
  return text;
}

Status CheckName(const std::string& name) {
  if (!IsRelativeName(name)) {
    return BadName(name,
                   "cannot be the name of a file in the checkpoint: want a relative path without "
                   "empty, \".\" or \"..\" parts and without control characters");
  }
  const std::string first = name.substr(0, name.find('/'));
  // An index that names Varve's data files lets Hugging Face's tools open the checkpoint too.
  if (IsReservedFileName(first) && name != kHfIndexName) {
    return BadName(name, "is a name that checkpoints use themselves; choose another one");
  }
  return Status::Ok();
}

}  // namespace

bool IsModelConfiguration(std::string_view name) {
  // Never destroyed: threads may outlive main.
  static const auto* const globs =
      new Globs({kModelConfiguration.begin(), kModelConfiguration.end()});
  return globs->Match(name);
}

Status CheckSideFiles(const std::vector<SideFile>& files) {
  std::set<std::string> names;
  std::uint64_t bytes = 0;
  std::uint64_t name_bytes = 0;
  for (const SideFile& file : files) {
    VARVE_RETURN_IF_ERROR(CheckName(file.name));
    if (!names.insert(file.name).second) {
      return BadName(file.name, "is given twice");
    }
    bytes += file.content.size();
    name_bytes += file.name.size() + 64;  // And what stands around it.
  }
  for (const std::string& name : names) {
    const auto below = names.lower_bound(name + "/");
    if (below != names.end() && below->starts_with(name + "/")) {
      return BadName(name, "is a file and the folder of \"" + *below + "\"");
    }
  }
  if (bytes > kMaxSideBytes) {
    return InvalidArgument("files: " + std::to_string(bytes) + " bytes in all, at most " +
                           std::to_string(kMaxSideBytes) + " can be saved with a checkpoint");
  }
  if (name_bytes > kMaxSideNames) {
    return InvalidArgument("files: " + std::to_string(files.size()) +
                           " of them; their names do not fit into varve.json, of which 48 KiB are "
                           "for them");
  }
  return Status::Ok();
}

std::vector<StoredFile> DescribeSideFiles(const std::vector<SideFile>& files) {
  std::vector<StoredFile> stored;
  stored.reserve(files.size());
  for (const SideFile& file : files) {
    stored.push_back({file.name, file.content.size(), Crc32c(AsByteSpan(file.content))});
  }
  std::sort(stored.begin(), stored.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.name < b.name; });
  return stored;
}

Status WriteSideFiles(Storage& storage, const std::string& directory,
                      const std::vector<SideFile>& files) {
  std::set<std::string> folders;  // A folder comes before those in it.
  for (const SideFile& file : files) {
    for (std::size_t at = file.name.find('/'); at != std::string::npos;
         at = file.name.find('/', at + 1)) {
      folders.insert(file.name.substr(0, at));
    }
  }
  for (const std::string& folder : folders) {
    VARVE_RETURN_IF_ERROR(storage.MakeDirectory(JoinPath(directory, folder)));
  }
  for (const SideFile& file : files) {
    VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, JoinPath(directory, file.name), file.content));
  }
  for (const std::string& folder : folders) {
    VARVE_RETURN_IF_ERROR(storage.SyncDirectory(JoinPath(directory, folder)));
  }
  return Status::Ok();
}

Result<std::string> ReadSideFile(Storage& storage, const std::string& directory,
                                 const StoredFile& file) {
  const std::string path = JoinPath(directory, file.name);
  const auto opened = storage.OpenForRead(path);
  if (!opened.ok()) {
    return opened.status().code() == StatusCode::kNotFound ? DataLoss(path + " is missing")
                                                           : opened.status();
  }
  if ((*opened)->size() != file.size) {
    return DataLoss(path + " has " + std::to_string((*opened)->size()) + " bytes instead of " +
                    std::to_string(file.size) + WhereEdited(storage, directory, file));
  }
  std::string content(file.size, '\0');
  VARVE_RETURN_IF_ERROR(
      (*opened)->ReadAt(0, std::as_writable_bytes(std::span(content.data(), content.size()))));
  if (const std::uint32_t crc = Crc32c(AsByteSpan(content)); crc != file.crc32c) {
    return DataLoss(path + ": checksum mismatch (want " + HexU32(file.crc32c) + ", got " +
                    HexU32(crc) + ")" + WhereEdited(storage, directory, file));
  }
  return content;
}

}  // namespace varve
