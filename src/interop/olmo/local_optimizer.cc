// Optimizer files of the `local` layout.

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "interop/olmo/local.h"
#include "interop/olmo/names.h"
#include "interop/torch/archive.h"
#include "interop/torch/parts.h"
#include "interop/torch/state_reader.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::string_view kStateName = "state of the optimizer for ";

Status MalformedOptimizer(const std::string& problem) {
  return DataLoss("no optimizer file of OLMo's local layout: " + problem);
}

/// Notes which id of a group means which parameter.
Status NameIds(const Value& group, LocalGroups* groups) {
  const Value* names = nullptr;
  const Value* params = nullptr;
  for (std::size_t i = 0; i + 1 < group.items.size(); i += 2) {
    names = group.items[i].text == "param_names" ? &group.items[i + 1] : names;
    params = group.items[i].text == "params" ? &group.items[i + 1] : params;
  }
  if (names == nullptr || params == nullptr || names->items.size() != params->items.size()) {
    return MalformedOptimizer("a group has no param_names for its params");
  }
  for (std::size_t i = 0; i < params->items.size(); ++i) {
    const Value& param = params->items[i];
    const std::string id = param.kind == ValueKind::kInt ? IntToString(param) : param.text;
    groups->names[id] = CleanName(names->items[i].text);
  }
  return Status::Ok();
}

/// Reads one optimizer file.
class Reader {
 public:
  Reader(const TorchArchive& archive, const NamedFile& file, std::uint32_t number,
         const LocalLayout& layout, const LocalGroups& groups, const LocalModel& model)
      : archive_(archive),
        file_(file),
        number_(number),
        layout_(layout),
        groups_(groups),
        model_(model),
        state_(archive, file.read, number) {}

  Result<LocalOptimizer> Run() {
    VARVE_ASSIGN_OR_RETURN(const auto root, state_.MappingAt(archive_.tree().root()));
    if (!root || root->Find("state") == kNoPickle || root->Find("param_groups") == kNoPickle) {
      return MalformedOptimizer("it holds no dict with \"state\" and \"param_groups\"");
    }
    VARVE_RETURN_IF_ERROR(CheckGroups(root->Find("param_groups")));
    VARVE_ASSIGN_OR_RETURN(const auto state, state_.MappingAt(root->Find("state")));
    if (!state) {
      return MalformedOptimizer("\"state\" is no dict");
    }
    for (std::size_t i = 0; i < state->keys.size(); ++i) {
      VARVE_RETURN_IF_ERROR(ReadParameter(state->keys[i], state->items[i]));
    }
    out_.records = StorageRecords(archive_, number_);
    return std::move(out_);
  }

 private:
  Status CheckGroups(PickleRef node) {
    VARVE_ASSIGN_OR_RETURN(const auto value, state_.ValueAt(node));
    return value && EncodeValue(*value) == groups_.encoded
               ? Status::Ok()
               : DataLoss("its param_groups are others than the first rank's");
  }

  Status ReadParameter(const Value& key, PickleRef node) {
    const std::string id = key.kind == ValueKind::kInt ? IntToString(key) : key.text;
    const auto name = groups_.names.find(id);
    if (name == groups_.names.end()) {
      return DataLoss("it has state for parameter id " + id + ", which no group has");
    }
    const auto parameter = layout_.by_name.find(name->second);
    if (parameter == layout_.by_name.end()) {
      return DataLoss("it has state for \"" + name->second + "\", which the model does not have");
    }
    VARVE_ASSIGN_OR_RETURN(const auto entries, state_.MappingAt(node));
    if (!entries) {
      return MalformedOptimizer("the state of \"" + name->second + "\" is no dict");
    }
    out_.ids[parameter->second] = id;
    for (std::size_t i = 0; i < entries->keys.size(); ++i) {
      VARVE_RETURN_IF_ERROR(
          ReadEntry(parameter->second, KeyText(entries->keys[i]), entries->items[i]));
    }
    return Status::Ok();
  }

  Status ReadEntry(std::uint32_t parameter, const std::string& key, PickleRef node) {
    const std::string what = "\"" + layout_.parameters[parameter].name + "." + key + "\"";
    auto tensor = archive_.TensorAt(node);
    if (!tensor.ok()) {
      return tensor.status().Annotate(what);
    }
    if (!*tensor) {
      VARVE_ASSIGN_OR_RETURN(StateNode value, state_.LeafAt(node, what));
      out_.entries.push_back({number_, parameter, key, std::move(value.value), {}});
      return Status::Ok();
    }
    if ((*tensor)->sizes.empty()) {
      StoredTensor whole = StoredWhole(archive_, **tensor, number_);
      const Extent& extent = whole.chunks[0].extent;
      VARVE_ASSIGN_OR_RETURN(std::string bytes,
                             file_.read(extent.begin, extent.end - extent.begin));
      out_.entries.push_back({number_, parameter, key, std::move(whole), std::move(bytes)});
      return Status::Ok();
    }
    return ReadPiece(parameter, key, **tensor, what);
  }

  /// Reads a tensor of one dimension: the elements that the model file has of the parameter.
  Status ReadPiece(std::uint32_t parameter, const std::string& key, const ArchiveTensor& tensor,
                   const std::string& what) {
    const auto [first, last] = std::equal_range(
        model_.pieces.begin(), model_.pieces.end(), LocalPiece{parameter, {}},
        [](const LocalPiece& a, const LocalPiece& b) { return a.parameter < b.parameter; });
    const std::uint64_t elements = Volume(tensor.sizes);
    const std::uint64_t has = first == last ? 0 : first->piece.end - first->piece.begin;
    if (elements == 0 && has == 0) {
      return Status::Ok();
    }
    if (tensor.sizes.size() != 1 || elements != has || (elements > 1 && tensor.strides[0] != 1)) {
      return DataLoss(std::string(kStateName) + what + " has the shape " + ToString(tensor.sizes) +
                      ", the rank's model file has " + std::to_string(has) +
                      " elements of the parameter");
    }
    const ArchiveStorage& storage = archive_.storages()[tensor.storage];
    const std::uint64_t item = ItemSize(tensor.dtype);
    const std::uint64_t begin = tensor.offset * item;
    const FlatPiece piece{.begin = first->piece.begin,
                          .end = first->piece.end,
                          .dtype = tensor.dtype,
                          .extent = {number_, storage.begin + begin,
                                     storage.begin + begin + elements * item, Encoding::kPlain}};
    out_.entries.push_back({number_, parameter, key, piece, {}});
    return Status::Ok();
  }

  const TorchArchive& archive_;
  const NamedFile& file_;
  std::uint32_t number_;
  const LocalLayout& layout_;
  const LocalGroups& groups_;
  const LocalModel& model_;
  StateReader state_;
  LocalOptimizer out_;
};

/// The entries of all ranks for one `state[parameter][key]`, in the order of the ranks.
using Entries = std::span<LocalEntry* const>;

Result<StateNode> MergeEntries(const std::string& fqn, const LocalParameter& parameter,
                               Entries entries, const ReplicaCheck& check) {
  LocalEntry& first = *entries.front();
  std::vector<FlatPiece> pieces;
  for (const LocalEntry* const entry : entries) {
    if (entry->content.index() != first.content.index()) {
      return DataLoss("\"" + fqn +
                      "\" is of one dimension on one rank and a single value on "
                      "another");
    }
    if (const auto* const piece = std::get_if<FlatPiece>(&entry->content)) {
      pieces.push_back(*piece);
      continue;
    }
    const auto* const value = std::get_if<std::string>(&entry->content);
    const bool equal = value != nullptr ? *value == std::get<std::string>(first.content)
                                        : entry->bytes == first.bytes;
    if (!equal) {
      return DataLoss("\"" + fqn + "\": " + check.name(first.file) + " and " +
                      check.name(entry->file) + " store different values of it");
    }
  }
  if (!pieces.empty()) {
    VARVE_ASSIGN_OR_RETURN(StoredTensor tensor,
                           TensorOfPieces(fqn, parameter.shape, std::move(pieces), check));
    return StateNode::OfTensor(std::move(tensor));
  }
  if (auto* const tensor = std::get_if<StoredTensor>(&first.content)) {
    return StateNode::OfTensor(std::move(*tensor));
  }
  StateNode value;
  value.kind = ValueKind::kObjectLeaf;
  value.value = std::get<std::string>(std::move(first.content));
  return value;
}

}  // namespace

Result<LocalGroups> ReadLocalGroups(const NamedFile& file) {
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::Open(file.size, file.read));
  StateReader state(archive, file.read, 0);
  VARVE_ASSIGN_OR_RETURN(const auto root, state.MappingAt(archive.tree().root()));
  const PickleRef node = root ? root->Find("param_groups") : kNoPickle;
  if (node == kNoPickle) {
    return MalformedOptimizer("it holds no dict with \"param_groups\"");
  }
  VARVE_ASSIGN_OR_RETURN(const auto value, state.ValueAt(node));
  if (!value || value->kind != ValueKind::kList) {
    return MalformedOptimizer("\"param_groups\" is no list of plain values");
  }
  LocalGroups groups;
  groups.encoded = EncodeValue(*value);
  VARVE_ASSIGN_OR_RETURN(groups.state, state.At(node, "param_groups"));
  for (const Value& group : value->items) {
    VARVE_RETURN_IF_ERROR(NameIds(group, &groups));
  }
  return groups;
}

Result<LocalOptimizer> ReadLocalOptimizer(const NamedFile& file, std::uint32_t number,
                                          const LocalLayout& layout, const LocalGroups& groups,
                                          const LocalModel& model) {
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::Open(file.size, file.read));
  return Reader(archive, file, number, layout, groups, model).Run();
}

Result<StateNode> MergeLocalOptimizer(const LocalLayout& layout, LocalGroups groups,
                                      std::vector<LocalOptimizer> ranks,
                                      const ReplicaCheck& check) {
  std::vector<LocalEntry*> entries;
  std::map<std::uint32_t, std::string> ids;
  for (LocalOptimizer& rank : ranks) {
    ids.merge(rank.ids);
    for (LocalEntry& entry : rank.entries) {
      entries.push_back(&entry);
    }
  }
  const auto before = [](const LocalEntry* a, const LocalEntry* b) {
    return std::tie(a->parameter, a->key) < std::tie(b->parameter, b->key);
  };
  std::stable_sort(entries.begin(), entries.end(), before);
  StateNode state;
  StateNode* of_parameter = nullptr;
  for (std::size_t i = 0; i < entries.size();) {
    std::size_t end = i + 1;
    while (end < entries.size() && !before(entries[i], entries[end])) {
      ++end;
    }
    const LocalParameter& parameter = layout.parameters[entries[i]->parameter];
    if (i == 0 || entries[i - 1]->parameter != entries[i]->parameter) {
      of_parameter = state.Add(parameter.name, StateNode());
      of_parameter->stored_key = ids[entries[i]->parameter];
    }
    const std::string fqn = "optim.state." + parameter.name + "." + entries[i]->key;
    VARVE_ASSIGN_OR_RETURN(
        StateNode merged,
        MergeEntries(fqn, parameter, std::span(entries).subspan(i, end - i), check));
    of_parameter->Add(entries[i]->key, std::move(merged));
    i = end;
  }
  StateNode optim;
  optim.Add("state", std::move(state));
  optim.Add("param_groups", std::move(groups.state));
  VARVE_RETURN_IF_ERROR(NameOptimizerState(GroupParams::kStored, &optim));
  return optim;
}

}  // namespace varve
