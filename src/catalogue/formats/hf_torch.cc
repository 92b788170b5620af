// A folder of Hugging Face's tools whose model is in files of torch.save: `pytorch_model.bin`, or
// several that `pytorch_model.bin.index.json` names. Each holds one state dict.

#include <algorithm>
#include <optional>
#include <utility>

#include "catalogue/formats/olmo.h"
#include "catalogue/names.h"
#include "interop/olmo/dialect.h"
#include "interop/pickle/text.h"

namespace varve {
namespace {

constexpr std::string_view kTorchModelName = "pytorch_model.bin";
constexpr std::string_view kTorchIndexName = "pytorch_model.bin.index.json";

Result<HfIndex> ReadTorchIndex(const ListedFolder& folder) {
  const std::string path = JoinPath(folder.path, kTorchIndexName);
  VARVE_ASSIGN_OR_RETURN(const std::string json,
                         ReadWholeFile(folder.storage, path, kMaxJsonBytes));
  auto index = DecodeHfIndex(json);
  return index.ok() ? std::move(index) : index.status().Annotate(path);
}

/// Moves what the index says of one file into `*root`: a file may hold more than that.
Status TakeNamed(const HfIndex& index, const std::string& file, StateNode state, StateNode* root) {
  const auto& map = index.weight_map;  // By name.
  std::vector<bool> is_taken(map.size(), false);
  for (std::size_t i = 0; i < state.items.size(); ++i) {
    const std::string& key = state.keys[i].text;
    const auto at =
        std::lower_bound(map.begin(), map.end(), key,
                         [](const auto& entry, const auto& k) { return entry.first < k; });
    if (state.keys[i].kind == ValueKind::kStr && at != map.end() && at->first == key &&
        at->second == file) {
      is_taken[static_cast<std::size_t>(at - map.begin())] = true;
      root->Add(key, std::move(state.items[i]));
    }
  }
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (map[i].second == file && !is_taken[i]) {
      return DataLoss(file + " does not hold " + ShownText(map[i].first) +
                      ", which the index says of it");
    }
  }
  return Status::Ok();
}

Result<OpenedIndex> OpenTorchModel(const ListedFolder& folder) {
  VARVE_RETURN_IF_ERROR(CheckIsUploaded(folder));
  std::optional<HfIndex> index;
  if (folder.HasFile(kTorchIndexName)) {
    VARVE_ASSIGN_OR_RETURN(index, ReadTorchIndex(folder));
  }
  const std::vector<std::string> names =
      index ? index->FileNames() : std::vector{std::string(kTorchModelName)};
  OlmoFiles files(folder);
  const std::uint32_t first = files.Add(names);
  std::vector<StateNode> states(names.size());
  std::vector<std::vector<RecordCrc>> records(names.size());
  VARVE_RETURN_IF_ERROR(
      files.ForEach(first, names.size(), [&](std::size_t i, const NamedFile& file) -> Status {
        VARVE_ASSIGN_OR_RETURN(
            states[i], ReadWholeState(file, static_cast<std::uint32_t>(i), "", &records[i]));
        return states[i].IsMapping() ? Status::Ok() : DataLoss("it holds no state dict");
      }));
  StateNode root;
  Decoded decoded;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (index) {
      VARVE_RETURN_IF_ERROR(
          TakeNamed(*index, names[i], std::move(states[i]), &root).Annotate(folder.path));
    } else {
      root = std::move(states[i]);
    }
    decoded.records.insert(decoded.records.end(), records[i].begin(), records[i].end());
  }
  return OpenedOlmo(folder, Format::kTorchSave, 1, std::move(root), std::move(decoded), &files);
}

constexpr std::string_view kTorchModelNames[] = {kTorchIndexName, kTorchModelName};

}  // namespace

const KnownFormat kHfTorchKnown{.format = Format::kTorchSave,
                                .recognises =
                                    [](const ListedFolder& folder) {
                                      return folder.HasFile(kTorchIndexName) ||
                                             folder.HasFile(kTorchModelName);
                                    },
                                .is_plain_model = true,
                                .open = OpenTorchModel,
                                .looked_for = kTorchModelNames};

}  // namespace varve
