#include "interop/olmo/names.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>
#include <vector>

#include "base/ascii.h"

namespace varve {
namespace {

constexpr std::string_view kWrapper = "_fsdp_wrapped_module.";

/// The lists of one group that name its parameters. Each is null where the group has none.
struct GroupLists {
  StateNode* names = nullptr;
  StateNode* params = nullptr;
};

GroupLists ListsOf(StateNode& group) {
  return group.IsMapping() ? GroupLists{group.Find("param_names"), group.Find("params")}
                           : GroupLists{};
}

/// Returns the list that a leaf holds; nothing for anything else.
Result<std::optional<Value>> ListAt(const StateNode* leaf) {
  if (leaf == nullptr || leaf->kind != ValueKind::kObjectLeaf) {
    return std::optional<Value>();
  }
  VARVE_ASSIGN_OR_RETURN(Value list, DecodeValue(leaf->value));
  return list.kind == ValueKind::kList ? std::optional(std::move(list)) : std::optional<Value>();
}

bool IsId(const Value& param) { return param.kind == ValueKind::kInt; }

/// The names of the ids, by the text of the id.
using NamesById = std::map<std::string, std::string>;

/// Cleans one group's lists and adds its ids to `*ids`.
Status NameGroup(std::size_t number, GroupParams kind, StateNode& group, NamesById* ids) {
  const GroupLists lists = ListsOf(group);
  VARVE_ASSIGN_OR_RETURN(auto names, ListAt(lists.names));
  VARVE_ASSIGN_OR_RETURN(auto params, ListAt(lists.params));
  if (params && names && params->items.size() != names->items.size()) {
    return DataLoss("group " + std::to_string(number) + " has " +
                    std::to_string(params->items.size()) + " params and " +
                    std::to_string(names->items.size()) + " param_names");
  }
  if (names) {
    for (std::size_t i = 0; i < names->items.size(); ++i) {
      names->items[i].text = CleanName(names->items[i].text);
      if (params && IsId(params->items[i])) {
        (*ids)[IntToString(params->items[i])] = names->items[i].text;
      }
    }
    *lists.names = StateNode::OfValue(*names);
  }
  if (params && kind == GroupParams::kNames) {
    for (std::size_t i = 0; i < params->items.size(); ++i) {
      if (!IsId(params->items[i])) {
        params->items[i].text = CleanName(params->items[i].text);
      } else if (names) {
        params->items[i] = names->items[i];
      }
    }
    *lists.params = StateNode::OfValue(*params);
  }
  return Status::Ok();
}

}  // namespace

std::string CleanName(std::string_view name) {
  std::string clean;
  clean.reserve(name.size());
  while (!name.empty()) {
    const std::size_t at = name.find(kWrapper);
    clean += name.substr(0, at);
    name.remove_prefix(at == std::string_view::npos ? name.size() : at + kWrapper.size());
  }
  return clean;
}

std::optional<std::uint32_t> RankInName(std::string_view name, std::string_view prefix,
                                        std::string_view suffix) {
  constexpr std::size_t kMaxDigits = 9;
  if (!name.starts_with(prefix) || !name.ends_with(suffix) ||
      name.size() < prefix.size() + suffix.size()) {
    return std::nullopt;
  }
  const std::string_view digits =
      name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  if (digits.empty() || digits.size() > kMaxDigits || (digits.size() > 1 && digits[0] == '0') ||
      !std::all_of(digits.begin(), digits.end(), IsDigit)) {
    return std::nullopt;
  }
  std::uint32_t rank = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return rank;
}

Status NameOptimizerState(GroupParams params, StateNode* optim) {
  if (!optim->IsMapping()) {
    return Status::Ok();
  }
  NamesById ids;
  if (StateNode* const groups = optim->Find("param_groups"); groups != nullptr) {
    for (std::size_t g = 0; g < groups->items.size(); ++g) {
      VARVE_RETURN_IF_ERROR(NameGroup(g, params, groups->items[g], &ids));
    }
  }
  StateNode* const state = optim->Find("state");
  if (state == nullptr || !state->IsMapping()) {
    return Status::Ok();
  }
  for (std::size_t i = 0; i < state->keys.size(); ++i) {
    const Value& key = state->keys[i];
    if (key.kind == ValueKind::kStr) {
      state->Rename(i, CleanName(key.text));
    } else if (IsId(key) && !ids.empty()) {
      const auto name = ids.find(IntToString(key));
      if (name == ids.end()) {
        return DataLoss("the optimizer has state for parameter id " + IntToString(key) +
                        ", which no group has");
      }
      state->Rename(i, name->second);
    }
  }
  return Status::Ok();
}

}  // namespace varve
