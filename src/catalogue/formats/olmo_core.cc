// OLMo-core's first layout: slices of the model and of the optimizer's state in safetensors files.
//
// OLMo writes `train/` and `config.yaml` beside them, as in its other layouts. OLMo-core's own
// functions write neither and have no mark of a whole checkpoint: what lacks both is taken for
// theirs, and is whole when all files that `metadata.json` names are.

#include <algorithm>
#include <utility>

#include "catalogue/formats/olmo.h"
#include "catalogue/names.h"
#include "interop/olmo/core.h"
#include "interop/olmo/names.h"

namespace varve {
namespace {

constexpr RankPattern kCoreFiles{kCorePrefix, kCoreSuffix};

/// A folder of slices with its metadata.
struct CoreFolder {
  CoreLayout layout;
  CoreFiles files;
};

constexpr std::string_view kCoreNames[] = {"model/metadata.json", "model/rank_#.safetensors",
                                           "optim/metadata.json", "optim/rank_#.safetensors",
                                           "train/rank#.pt"};

/// No file in the directory itself is of this layout alone: a directory is one with all folders.
bool IsReplaceableCore(const ListedFolder& folder) {
  return HasOlmoMark(folder) && folder.HasFolder("optim") && folder.HasFolder("train");
}

Result<CoreLayout> ReadCoreLayout(const ListedFolder& folder, const std::string& below) {
  const std::string path = JoinPath(folder.path, JoinPath(below, std::string(kCoreMetadataName)));
  const auto json = ReadWholeFile(folder.storage, path, kMaxJsonBytes);
  if (!json.ok()) {
    return json.status().code() == StatusCode::kNotFound ? DataLoss(path + " is missing")
                                                         : json.status();
  }
  return DecodeCoreMetadata(*json).Annotate(path);
}

/// Reads the index of the folder `below`. `world_size` as FindRankFiles.
Result<CoreFolder> ReadCoreFolder(const ListedFolder& folder, const std::string& below,
                                  std::uint32_t world_size, OlmoFiles* files) {
  CoreFolder core;
  VARVE_ASSIGN_OR_RETURN(core.layout, ReadCoreLayout(folder, below));
  VARVE_ASSIGN_OR_RETURN(const RankFiles found,
                         FindRankFiles(folder, below, world_size, kCoreFiles));
  const std::vector<std::string>& names = found.names;
  if (core.layout.ranks > names.size()) {
    const std::string missing = RankFileName(below, names.size(), kCoreFiles);
    return DataLoss(JoinPath(folder.path, missing) + " is missing: " + below +
                    "/metadata.json names the files of " + std::to_string(core.layout.ranks) +
                    " ranks");
  }
  core.files.first = files->Add(names);
  core.files.ranks.resize(names.size());
  VARVE_RETURN_IF_ERROR(files->ForEach(
      core.files.first, names.size(), [&](std::size_t i, const NamedFile& file) -> Status {
        VARVE_ASSIGN_OR_RETURN(core.files.ranks[i],
                               ReadCoreFile(file, static_cast<std::uint32_t>(i), core.layout));
        return Status::Ok();
      }));
  return core;
}

Result<OpenedIndex> OpenCore(const ListedFolder& folder) {
  if (folder.HasFolder("train")) {
    VARVE_RETURN_IF_ERROR(CheckOlmoMarker(folder));
  }
  OlmoFiles files(folder);
  StateNode root;
  Decoded decoded;
  VARVE_ASSIGN_OR_RETURN(const CoreFolder model, ReadCoreFolder(folder, "model", 0, &files));
  const auto world_size = static_cast<std::uint32_t>(model.files.ranks.size());
  CoreFolder optim;
  const bool has_optim = folder.HasFolder("optim");
  if (has_optim) {
    VARVE_ASSIGN_OR_RETURN(optim, ReadCoreFolder(folder, "optim", world_size, &files));
  }
  // Safetensors have no checksums: replicas are compared by their bytes.
  const ReplicaCheck check(files.names(), {}, files.Reader());
  auto merged = MergeCoreModel(model.layout, model.files, check);
  VARVE_RETURN_IF_ERROR(merged.status().Annotate(folder.path));
  root.Add("model", *std::move(merged));
  if (has_optim) {
    merged = MergeCoreOptimizer(optim.layout, optim.files, check, files.Reader());
    VARVE_RETURN_IF_ERROR(merged.status().Annotate(JoinPath(folder.path, "optim")));
    root.Add("optim", *std::move(merged));
  }
  VARVE_RETURN_IF_ERROR(AddTrainStates(folder, world_size, &files, &root, &decoded.records));
  return OpenedOlmo(folder, Format::kOlmoCore, world_size, std::move(root), std::move(decoded),
                    &files);
}

}  // namespace

const KnownFormat kOlmoCoreKnown{
    .format = Format::kOlmoCore,
    .recognises = [](const ListedFolder& folder) { return folder.Has("model/rank_#.safetensors"); },
    .is_replaceable = IsReplaceableCore,
    .open = OpenCore,
    .index = kOlmoMarks,
    .names = kCoreNames,
    .has_common_names = true,
    .unfinished = kOlmoUnfinished};

}  // namespace varve
