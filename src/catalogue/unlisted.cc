#include "catalogue/unlisted.h"

#include <algorithm>
#include <cstdint>

#include "catalogue/foreign.h"
#include "interop/hfai/names.h"
#include "interop/safetensors/hf_checksums.h"

namespace varve {
namespace {

constexpr std::string_view kDcpIndex = ".metadata";
constexpr std::string_view kHfFile = "model.safetensors";
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

/// Appends the entries of files that are numbered from 0 on, as many as are there.
Status AppendNumbered(Storage& storage, const std::string& directory,
                      std::string (*name_of)(std::uint64_t), std::vector<DirectoryEntry>* entries) {
  for (std::uint64_t i = 0; i < kMostParts; ++i) {
    const std::size_t before = entries->size();
    VARVE_RETURN_IF_ERROR(AppendIfThere(storage, directory, name_of(i), entries));
    if (entries->size() == before) {
      break;
    }
  }
  return Status::Ok();
}

std::string RankIndexName(std::uint64_t rank) {
  return "__" + std::to_string(rank) + std::string(kDcpIndex);
}

Status AppendKnown(Storage& storage, const std::string& directory,
                   std::vector<DirectoryEntry>* entries) {
  for (const std::string_view name :
       {kDcpIndex, kHfIndexName, kHfFile, kHfTorchIndexName, kHfTorchName}) {
    VARVE_RETURN_IF_ERROR(AppendIfThere(storage, directory, std::string(name), entries));
    if (!entries->empty()) {
      return name == kHfIndexName
                 ? AppendIfThere(storage, directory, std::string(kHfChecksumsName), entries)
                 : Status::Ok();
    }
  }
  VARVE_RETURN_IF_ERROR(AppendNumbered(storage, directory, HfaiPartName, entries));
  return entries->empty() ? AppendNumbered(storage, directory, RankIndexName, entries)
                          : Status::Ok();
}

}  // namespace

Result<std::vector<DirectoryEntry>> KnownEntries(Storage& storage, const std::string& directory) {
  std::vector<DirectoryEntry> entries;
  VARVE_RETURN_IF_ERROR(AppendKnown(storage, directory, &entries));
  if (entries.empty()) {
    return NotFound(
        "there is no checkpoint at " + directory +
        " that can be found without a list of files: it has no varve.json, .metadata, "
        "model.safetensors.index.json, model.safetensors, pytorch_model.bin.index.json, "
        "pytorch_model.bin, PART_000.pt or __0.metadata. A file is "
        "opened by its own URL, a checkpoint that was overwritten in an object store by that of "
        "its newest record (varve-2.json), and OLMo's by that of model_and_optim; checkpoints of "
        "ranks that saved apart need a storage with lists");
  }
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
  return entries;
}

}  // namespace varve
