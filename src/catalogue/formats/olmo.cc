// OLMo's layouts of whole states: `full`, and DCP with the trainer's states beside it.

#include "catalogue/formats/olmo.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "catalogue/formats/dcp.h"
#include "catalogue/names.h"
#include "interop/olmo/dialect.h"
#include "interop/olmo/names.h"

namespace varve {
namespace {

/// Returns the first of the names that the folder has, or nothing.
std::optional<std::string> FirstOf(const ListedFolder& folder,
                                   std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (folder.HasFile(name)) {
      return std::string(name);
    }
  }
  return std::nullopt;
}

// ---- full ----

std::optional<std::string> ModelFile(const ListedFolder& folder) {
  return FirstOf(folder, {"model.safetensors", "model.pt"});
}
std::optional<std::string> OptimFile(const ListedFolder& folder) {
  return FirstOf(folder, {"optim.safetensors", "optim.pt"});
}
std::optional<std::string> TrainFile(const ListedFolder& folder) {
  return FirstOf(folder, {"train.safetensors", "train.pt", "other.safetensors", "other.pt"});
}

/// A folder with nothing but `model.safetensors` is a Hugging Face one.
bool IsFull(const ListedFolder& folder) {
  return ModelFile(folder) &&
         (OptimFile(folder) || TrainFile(folder) || folder.HasFile(kOlmoMark) ||
          (folder.HasFile("model.pt") && folder.HasFile(kUploadMark)));
}

/// With the model in safetensors only with the optimizer too: a folder with a model.safetensors and
/// a config.yaml may be anyone's.
bool IsReplaceableFull(const ListedFolder& folder) {
  return HasOlmoMark(folder) &&
         (folder.HasFile("model.pt") ||
          (folder.HasFile("model.safetensors") && folder.HasFile("optim.safetensors")));
}

/// Older checkpoints have `other.pt` in place of `train.pt`.
constexpr std::string_view kFullNames[] = {
    "model.pt", "model.safetensors", "optim.pt", "optim.safetensors",
    "train.pt", "train.safetensors", "other.pt", "other.safetensors"};

Result<OpenedIndex> OpenFull(const ListedFolder& folder) {
  VARVE_RETURN_IF_ERROR(CheckOlmoMarker(folder));
  std::vector<std::string> names;
  std::vector<std::string> parts;
  for (const auto& [part, name] :
       {std::pair("model", ModelFile(folder)), std::pair("optim", OptimFile(folder)),
        std::pair("train", TrainFile(folder))}) {
    if (name) {
      parts.emplace_back(part);
      names.push_back(*name);
    }
  }
  OlmoFiles files(folder);
  const std::uint32_t first = files.Add(names);
  std::vector<StateNode> states(names.size());
  std::vector<std::vector<RecordCrc>> records(names.size());
  VARVE_RETURN_IF_ERROR(
      files.ForEach(first, names.size(), [&](std::size_t i, const NamedFile& file) -> Status {
        VARVE_ASSIGN_OR_RETURN(
            states[i], ReadWholeState(file, static_cast<std::uint32_t>(i), parts[i], &records[i]));
        if (parts[i] == "model") {
          CleanModelNames(&states[i]);
        }
        return parts[i] == "optim" ? NameOptimizerState(GroupParams::kNames, &states[i])
                                   : Status::Ok();
      }));
  StateNode root;
  Decoded decoded;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    root.Add(parts[i], std::move(states[i]));
    decoded.records.insert(decoded.records.end(), records[i].begin(), records[i].end());
  }
  return OpenedOlmo(folder, Format::kOlmoFull, 1, std::move(root), std::move(decoded), &files);
}

// ---- torch_new, and OLMo-core's step{N} ----

constexpr std::string_view kTorchNewNames[] = {
    "model_and_optim/.metadata",    "model_and_optim/.metadata.tmp",
    "model_and_optim/__#.metadata", "model_and_optim/__#.metadata.tmp",
    "model_and_optim/*.distcp",     "train/rank#.pt"};

/// A user's project may have a config.yaml and such a folder.
bool IsReplaceableTorchNew(const ListedFolder& folder) {
  return HasOlmoMark(folder) &&
         (folder.Has("model_and_optim/.metadata") || folder.Has("model_and_optim/*.distcp"));
}

Result<OpenedIndex> OpenTorchNew(const ListedFolder& folder) {
  VARVE_RETURN_IF_ERROR(CheckOlmoMarker(folder));
  const std::string below(kModelAndOptim);
  auto read = ReadDcpIndex(folder.storage, JoinPath(folder.path, below));
  if (!read.ok()) {
    return read.status().code() == StatusCode::kNotFound
               ? DataLoss(JoinPath(folder.path, below) + "/.metadata is missing")
               : read.status();
  }
  Decoded decoded = *std::move(read);
  for (DataFile& file : decoded.metadata.files) {
    file.name = JoinPath(below, file.name);
  }
  for (StoredFile& file : decoded.metadata.side_files) {
    file.name = JoinPath(below, file.name);
  }
  // The trainer's states join the entries of the index.
  std::optional<Value> structure = std::move(decoded.structure);
  OlmoFiles files(folder);
  (void)files.Add({});
  StateNode root;
  const auto first = static_cast<std::uint32_t>(decoded.metadata.files.size());
  std::vector<RecordCrc> records;
  VARVE_RETURN_IF_ERROR(AddTrainStates(folder, 0, &files, &root, &records));
  // The files of the trainer's states come behind those of the index.
  const auto renumber = [first](auto& self, StateNode& node) -> void {
    for (Chunk& chunk : node.tensor.chunks) {
      chunk.extent.file += first;
    }
    for (StateNode& item : node.items) {
      self(self, item);
    }
  };
  renumber(renumber, root);
  for (RecordCrc& record : records) {
    record.file += first;
    decoded.records.push_back(record);
  }
  VARVE_RETURN_IF_ERROR(FlattenState(std::move(root), &decoded));
  if (structure && decoded.structure) {
    structure->items.insert(structure->items.end(), decoded.structure->items.begin(),
                            decoded.structure->items.end());
  }
  decoded.structure = std::move(structure);
  const auto ranks = static_cast<std::uint32_t>(files.names().size());
  files.Take(&decoded.metadata);
  decoded.metadata.format = Format::kOlmoTorchNew;
  decoded.metadata.world_size = std::max(decoded.metadata.world_size, ranks);
  return OpenedDcp(folder, std::move(decoded));
}

}  // namespace

bool HasOlmoMark(const ListedFolder& folder) {
  return folder.HasFile(kOlmoMark) || folder.HasFile(kOlmoCoreMark) || folder.HasFile(kUploadMark);
}

Status CheckOlmoMarker(const ListedFolder& folder) {
  if (HasOlmoMark(folder)) {
    return Status::Ok();
  }
  return FailedPrecondition(folder.path +
                            " is incomplete: config.yaml, which OLMo writes last, is missing")
      .With({.reason = ErrorReason::kIncomplete});
}

std::uint32_t OlmoFiles::Add(const std::vector<std::string>& names) {
  const auto first = static_cast<std::uint32_t>(names_.size());
  names_.insert(names_.end(), names.begin(), names.end());
  sizes_.resize(names_.size());
  return first;
}

Status OlmoFiles::ForEach(std::uint32_t first, std::size_t count,
                          const std::function<Status(std::size_t, const NamedFile&)>& read) {
  const std::vector<std::string> names(names_.begin() + first,
                                       names_.begin() + first + static_cast<std::ptrdiff_t>(count));
  return ForEachFile(
      folder_.storage, folder_.path, names, [&](std::size_t i, const NamedFile& file) {
        sizes_[first + i] = file.size;
        const Status status = read(i, file);
        return status.ok() ? status : status.Annotate(JoinPath(folder_.path, file.name));
      });
}

ExtentReader OlmoFiles::Reader() const {
  return [this](std::uint32_t file, std::uint64_t begin, std::uint64_t end) -> Result<std::string> {
    VARVE_ASSIGN_OR_RETURN(auto opened,
                           folder_.storage.OpenForRead(JoinPath(folder_.path, names_[file])));
    return ReadFromFile(std::move(opened))(begin, end - begin);
  };
}

void OlmoFiles::Take(Metadata* metadata) {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    DataFile file;
    file.name = names_[i];
    file.size = sizes_[i];
    metadata->files.push_back(std::move(file));
  }
}

std::string RankFileName(const std::string& below, std::size_t rank, const RankPattern& pattern) {
  return (below.empty() ? below : below + "/") + std::string(pattern.prefix) +
         std::to_string(rank) + std::string(pattern.suffix);
}

namespace {

/// Finds the files that are there, of a world of `folder.own_ranks_of` ranks.
Result<RankFiles> OwnRankFiles(const ListedFolder& folder, const std::string& below,
                               std::vector<std::uint32_t> ranks, const RankPattern& pattern) {
  if (ranks.empty() || ranks.back() >= folder.own_ranks_of) {
    return DataLoss(JoinPath(folder.path, below) + " has " +
                    (ranks.empty() ? "no file of any rank"
                                   : "the file of rank " + std::to_string(ranks.back()) +
                                         ": the checkpoint has " +
                                         std::to_string(folder.own_ranks_of) + " ranks"));
  }
  RankFiles found;
  for (const std::uint32_t rank : ranks) {
    found.names.push_back(RankFileName(below, rank, pattern));
  }
  found.ranks = std::move(ranks);
  return found;
}

}  // namespace

Result<RankFiles> FindRankFiles(const ListedFolder& folder, const std::string& below,
                                std::uint32_t world_size, const RankPattern& pattern) {
  std::vector<DirectoryEntry> listed;
  if (!below.empty()) {
    VARVE_ASSIGN_OR_RETURN(listed, folder.storage.List(JoinPath(folder.path, below)));
  }
  std::vector<std::uint32_t> ranks;
  for (const DirectoryEntry& entry : below.empty() ? folder.entries : listed) {
    if (const auto rank = RankInName(entry.name, pattern.prefix, pattern.suffix);
        rank && !entry.is_directory) {
      ranks.push_back(*rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  if (folder.own_ranks_of != 0) {
    return OwnRankFiles(folder, below, std::move(ranks), pattern);
  }
  const std::size_t expected = world_size == 0 ? ranks.size() : world_size;
  RankFiles found;
  for (std::size_t r = 0; r < expected; ++r) {
    if (r >= ranks.size() || ranks[r] != r) {
      return DataLoss(JoinPath(folder.path, RankFileName(below, r, pattern)) + " is missing" +
                      (world_size == 0
                           ? ": there are files of greater ranks"
                           : ": the checkpoint has " + std::to_string(world_size) + " ranks"));
    }
    found.names.push_back(RankFileName(below, r, pattern));
    found.ranks.push_back(ranks[r]);
  }
  if (ranks.size() > expected) {
    return DataLoss(JoinPath(folder.path, RankFileName(below, ranks[expected], pattern)) +
                    " belongs to another save: the checkpoint has " + std::to_string(world_size) +
                    " ranks");
  }
  return found;
}

std::string TrainOfRank(std::size_t rank) { return "train/rank" + std::to_string(rank); }

Status AddTrainStates(const ListedFolder& folder, std::uint32_t world_size, OlmoFiles* files,
                      StateNode* root, std::vector<RecordCrc>* records) {
  if (!folder.HasFolder("train")) {
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(const RankFiles found, FindRankFiles(folder, "train", world_size));
  const std::uint32_t first = files->Add(found.names);
  std::vector<StateNode> states(found.names.size());
  std::vector<std::vector<RecordCrc>> sums(states.size());
  VARVE_RETURN_IF_ERROR(
      files->ForEach(first, states.size(), [&](std::size_t i, const NamedFile& file) -> Status {
        VARVE_ASSIGN_OR_RETURN(states[i],
                               ReadWholeState(file, first + static_cast<std::uint32_t>(i),
                                              TrainOfRank(found.ranks[i]), &sums[i]));
        return Status::Ok();
      }));
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (i == 0) {
      root->Add("train", states[0]);
    }
    root->Add(TrainOfRank(found.ranks[i]), std::move(states[i]));
    records->insert(records->end(), sums[i].begin(), sums[i].end());
  }
  return Status::Ok();
}

Result<OpenedIndex> OpenedOlmo(const ListedFolder& folder, Format format, std::uint32_t world_size,
                               StateNode root, Decoded decoded, OlmoFiles* files) {
  VARVE_RETURN_IF_ERROR(FlattenState(std::move(root), &decoded));
  files->Take(&decoded.metadata);
  decoded.metadata.format = format;
  decoded.metadata.world_size = world_size;
  VARVE_RETURN_IF_ERROR(CheckExtents(folder.path, decoded.metadata));
  return Opened(folder.path, std::move(decoded));
}

const KnownFormat kOlmoFullKnown{.format = Format::kOlmoFull,
                                 .recognises = IsFull,
                                 .is_replaceable = IsReplaceableFull,
                                 .open = OpenFull,
                                 .index = kOlmoMarks,
                                 .names = kFullNames,
                                 .has_common_names = true,
                                 .unfinished = kOlmoUnfinished};
const KnownFormat kOlmoTorchNewKnown{
    .format = Format::kOlmoTorchNew,
    .recognises = [](const ListedFolder& folder) { return folder.HasFolder(kModelAndOptim); },
    .is_replaceable = IsReplaceableTorchNew,
    .open = OpenTorchNew,
    .index = kOlmoMarks,
    .names = kTorchNewNames,
    .has_common_names = true,
    .unfinished = kOlmoUnfinished};

}  // namespace varve
