// OLMo's layouts of one state a rank: `local` and `torch_legacy`.

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "catalogue/formats/olmo.h"
#include "catalogue/names.h"
#include "interop/olmo/dialect.h"
#include "interop/olmo/local.h"
#include "interop/olmo/names.h"
#include "interop/olmo/pieces.h"
#include "interop/olmo/sharded.h"
#include "interop/torch/archive.h"
#include "interop/torch/state_reader.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxYamlBytes = std::uint64_t{1} << 20;

// ---- local ----

constexpr std::string_view kLocalMetadata = "metadata.yaml";

constexpr std::string_view kLocalNames[] = {kLocalMetadata, "model/rank#.pt", "optim/rank#.pt",
                                            "train/rank#.pt"};

/// A user's project may have a config.yaml and such folders.
bool IsReplaceableLocal(const ListedFolder& folder) {
  return HasOlmoMark(folder) && folder.HasFile(kLocalMetadata);
}

/// Reads `world_size: N` from metadata.yaml.
Result<std::uint32_t> ReadWorldSize(const ListedFolder& folder) {
  const std::string path = JoinPath(folder.path, kLocalMetadata);
  if (!folder.HasFile(kLocalMetadata)) {
    return DataLoss(path + " is missing: it says how many ranks the checkpoint has");
  }
  VARVE_ASSIGN_OR_RETURN(const std::string yaml,
                         ReadWholeFile(folder.storage, path, kMaxYamlBytes));
  constexpr std::string_view kKey = "world_size:";
  const std::size_t at = yaml.find(kKey);
  if (at == std::string::npos) {
    return DataLoss(path + " does not say world_size");
  }
  std::string_view text = std::string_view(yaml).substr(at + kKey.size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t'\""), text.size()));
  std::uint32_t world_size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), world_size);
  if (error != std::errc{} || world_size == 0) {
    return DataLoss(path + ": world_size is no number of ranks");
  }
  return world_size;
}

/// Reads the model's and the optimizer's files and puts the ranks together.
Status AddLocalStates(const ListedFolder& folder, std::uint32_t world_size, OlmoFiles* files,
                      StateNode* root, std::vector<RecordCrc>* records) {
  VARVE_ASSIGN_OR_RETURN(const RankFiles found, FindRankFiles(folder, "model", world_size));
  const std::uint32_t first = files->Add(found.names);
  const std::size_t count = found.names.size();
  LocalLayout layout;
  VARVE_RETURN_IF_ERROR(files->ForEach(first, 1, [&](std::size_t, const NamedFile& file) -> Status {
    VARVE_ASSIGN_OR_RETURN(layout, ReadLocalLayout(file));
    return Status::Ok();
  }));
  std::vector<LocalModel> models(count);
  VARVE_RETURN_IF_ERROR(
      files->ForEach(first, count, [&](std::size_t i, const NamedFile& file) -> Status {
        VARVE_ASSIGN_OR_RETURN(models[i],
                               ReadLocalModel(file, first + static_cast<std::uint32_t>(i), layout));
        return Status::Ok();
      }));
  LocalGroups groups;
  std::vector<LocalOptimizer> optimizers;
  if (folder.HasFolder("optim")) {
    VARVE_ASSIGN_OR_RETURN(const RankFiles of_optim, FindRankFiles(folder, "optim", world_size));
    if (of_optim.ranks != found.ranks) {
      return DataLoss("model and optim have files of different ranks");
    }
    const std::uint32_t first_optim = files->Add(of_optim.names);
    VARVE_RETURN_IF_ERROR(
        files->ForEach(first_optim, 1, [&](std::size_t, const NamedFile& file) -> Status {
          VARVE_ASSIGN_OR_RETURN(groups, ReadLocalGroups(file));
          return Status::Ok();
        }));
    optimizers.resize(count);
    VARVE_RETURN_IF_ERROR(
        files->ForEach(first_optim, count, [&](std::size_t i, const NamedFile& file) -> Status {
          VARVE_ASSIGN_OR_RETURN(
              optimizers[i], ReadLocalOptimizer(file, first_optim + static_cast<std::uint32_t>(i),
                                                layout, groups, models[i]));
          return Status::Ok();
        }));
  }
  for (const LocalModel& model : models) {
    records->insert(records->end(), model.records.begin(), model.records.end());
  }
  for (const LocalOptimizer& optimizer : optimizers) {
    records->insert(records->end(), optimizer.records.begin(), optimizer.records.end());
  }
  const ReplicaCheck check(files->names(), *records, files->Reader());
  VARVE_ASSIGN_OR_RETURN(StateNode model, MergeLocalModel(layout, models, check));
  root->Add("model", std::move(model));
  if (!optimizers.empty()) {
    VARVE_ASSIGN_OR_RETURN(StateNode optim, MergeLocalOptimizer(layout, std::move(groups),
                                                                std::move(optimizers), check));
    root->Add("optim", std::move(optim));
  }
  return Status::Ok();
}

Result<OpenedIndex> OpenLocal(const ListedFolder& folder) {
  VARVE_RETURN_IF_ERROR(CheckOlmoMarker(folder));
  VARVE_ASSIGN_OR_RETURN(const std::uint32_t world_size, ReadWorldSize(folder));
  if (folder.own_ranks_of != 0 && folder.own_ranks_of != world_size) {
    return InvalidArgument(
        folder.path + " was saved by " + std::to_string(world_size) +
        " ranks: a load by another number of ranks needs the files of all of them");
  }
  OlmoFiles files(folder);
  StateNode root;
  Decoded decoded;
  if (const Status status = AddLocalStates(folder, world_size, &files, &root, &decoded.records);
      !status.ok()) {
    return status.Annotate(folder.path);
  }
  VARVE_RETURN_IF_ERROR(AddTrainStates(folder, world_size, &files, &root, &decoded.records));
  return OpenedOlmo(folder, Format::kOlmoLocal, world_size, std::move(root), std::move(decoded),
                    &files);
}

// ---- torch_legacy ----

constexpr std::string_view kLegacyNames[] = {"rank#.pt"};

/// Reads one rank's file.
Result<StateNode> ReadLegacy(const NamedFile& file, std::uint32_t number, std::uint32_t world_size,
                             std::vector<RecordCrc>* records) {
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::Open(file.size, file.read));
  *records = StorageRecords(archive, number);
  ShardedTensors sharded(archive, number, world_size);
  StateReader reader(archive, file.read, number, [&](PickleRef node) { return sharded.At(node); });
  VARVE_ASSIGN_OR_RETURN(StateNode state, reader.At(archive.tree().root(), ""));
  if (!state.IsMapping() || state.Find("model") == nullptr) {
    return DataLoss("no file of OLMo's torch_legacy layout: it holds no dict with \"model\"");
  }
  return state;
}

/// Moves the items that are not the trainer's, `model` and `optim`, out of a rank's state.
StateNode TakeShared(StateNode* state) {
  StateNode shared;
  StateNode own;
  for (std::size_t i = 0; i < state->keys.size(); ++i) {
    const Value& key = state->keys[i];
    const bool is_shared =
        key.kind == ValueKind::kStr && (key.text == "model" || key.text == "optim");
    StateNode& taken = is_shared ? shared : own;
    taken.keys.push_back(key);
    taken.items.push_back(std::move(state->items[i]));
  }
  own.kind = state->kind;
  *state = std::move(own);
  return shared;
}

/// Checks that no rank's file is of another save. Errors: DataLoss naming the value and two files.
Status CheckOneSave(std::vector<StateNode>* ranks, const ReplicaCheck& check) {
  for (const std::string_view key : kOlmoSameOnAllRanks) {
    std::vector<StateNode> found;
    for (StateNode& rank : *ranks) {
      if (const StateNode* const value = rank.Find(key)) {
        found.push_back(*value);
      }
    }
    if (found.size() != ranks->size()) {
      continue;
    }
    std::vector<StateNode*> values;
    values.reserve(found.size());
    for (StateNode& value : found) {
      values.push_back(&value);
    }
    VARVE_RETURN_IF_ERROR(MergeRanks(std::string(key), std::move(values), check).status());
  }
  return Status::Ok();
}

/// Puts the ranks' states together: `model` and `optim`, which all ranks share, and what is left as
/// each rank's trainer state. `train` is rank 0's without the states of its random generators.
Result<StateNode> MergeLegacy(std::vector<StateNode> ranks, const ReplicaCheck& check) {
  std::vector<StateNode> shared;
  shared.reserve(ranks.size());
  std::vector<StateNode*> states;
  states.reserve(ranks.size());
  for (StateNode& rank : ranks) {
    states.push_back(&shared.emplace_back(TakeShared(&rank)));
  }
  VARVE_ASSIGN_OR_RETURN(StateNode root, MergeRanks("", std::move(states), check));
  VARVE_RETURN_IF_ERROR(CheckOneSave(&ranks, check));
  CleanModelNames(root.Find("model"));
  StateNode train = ranks[0];
  for (std::size_t i = 0; i < train.keys.size(); ++i) {
    if (train.keys[i] == Value::Str("rng")) {
      train.keys.erase(train.keys.begin() + static_cast<std::ptrdiff_t>(i));
      train.items.erase(train.items.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }
  root.Add("train", std::move(train));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    root.Add(TrainOfRank(r), std::move(ranks[r]));
  }
  return root;
}

Result<OpenedIndex> OpenLegacy(const ListedFolder& folder) {
  VARVE_RETURN_IF_ERROR(CheckOlmoMarker(folder));
  VARVE_ASSIGN_OR_RETURN(const RankFiles found, FindRankFiles(folder, "", 0));
  if (found.names.empty()) {
    return DataLoss(JoinPath(folder.path, "rank0.pt") +
                    " is missing: no rank has the others' numbers");
  }
  const auto world_size = static_cast<std::uint32_t>(found.names.size());
  OlmoFiles files(folder);
  const std::uint32_t first = files.Add(found.names);
  std::vector<StateNode> ranks(world_size);
  std::vector<std::vector<RecordCrc>> records(world_size);
  VARVE_RETURN_IF_ERROR(
      files.ForEach(first, world_size, [&](std::size_t i, const NamedFile& file) -> Status {
        VARVE_ASSIGN_OR_RETURN(
            ranks[i], ReadLegacy(file, static_cast<std::uint32_t>(i), world_size, &records[i]));
        return Status::Ok();
      }));
  Decoded decoded;
  for (const auto& of_rank : records) {
    decoded.records.insert(decoded.records.end(), of_rank.begin(), of_rank.end());
  }
  const ReplicaCheck check(files.names(), decoded.records, files.Reader());
  auto root = MergeLegacy(std::move(ranks), check);
  if (!root.ok()) {
    return root.status().Annotate(folder.path);
  }
  return OpenedOlmo(folder, Format::kOlmoLegacy, world_size, *std::move(root), std::move(decoded),
                    &files);
}

}  // namespace

const KnownFormat kOlmoLocalKnown{
    .format = Format::kOlmoLocal,
    .recognises = [](const ListedFolder& folder) { return folder.Has("model/rank#.pt"); },
    .is_replaceable = IsReplaceableLocal,
    .open = OpenLocal,
    .opens_own_ranks = true,
    .index = kOlmoMarks,
    .names = kLocalNames,
    .has_common_names = true,
    .unfinished = kOlmoUnfinished};
const KnownFormat kOlmoLegacyKnown{
    .format = Format::kOlmoLegacy,
    .recognises = [](const ListedFolder& folder) { return folder.Has("rank#.pt"); },
    .is_replaceable = HasOlmoMark,
    .open = OpenLegacy,
    .index = kOlmoMarks,
    .names = kLegacyNames,
    .has_common_names = true,
    .unfinished = kOlmoUnfinished};

}  // namespace varve
