#include "interop/hfai/merge.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "interop/hfai/names.h"
#include "interop/hfai/pieces.h"

namespace varve {
namespace {

/// Returns "model " or, where there are several, "model 1 ".
std::string Prefix(std::string_view list, std::size_t index, std::size_t count) {
  return std::string(list) + (count > 1 ? " " + std::to_string(index) : "") + " ";
}

std::string InState(const Value& owner, const Value& key) {
  return KeyText(owner) + "." + KeyText(key);
}

/// Entries by key, each with the number of the part that has it.
class Places {
 public:
  /// Returns the part that has this key already, or nothing and remembers `part`.
  std::optional<std::size_t> Take(const Value& key, std::size_t part) {
    const auto [at, is_new] = part_.try_emplace(EncodeValue(key), part);
    return is_new ? std::nullopt : std::optional(at->second);
  }
  [[nodiscard]] std::optional<std::size_t> Find(const Value& key) const {
    const auto at = part_.find(EncodeValue(key));
    return at == part_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  std::unordered_map<std::string, std::size_t> part_;
};

class Merger {
 public:
  explicit Merger(std::vector<HfaiPart>* parts) : parts_(*parts), joiner_(*parts) {}

  Result<StateNode> Run() {
    VARVE_RETURN_IF_ERROR(CheckCounts());
    StateNode state = std::move(parts_[0].others);
    StateNode models;
    models.kind = ValueKind::kList;
    for (std::size_t i = 0; i < parts_[0].models.size(); ++i) {
      VARVE_ASSIGN_OR_RETURN(StateNode model, Model(i));
      models.items.push_back(std::move(model));
    }
    StateNode optimizers;
    optimizers.kind = ValueKind::kList;
    for (std::size_t i = 0; i < parts_[0].optimizers.size(); ++i) {
      VARVE_ASSIGN_OR_RETURN(StateNode optimizer, Optimizer(i));
      optimizers.items.push_back(std::move(optimizer));
    }
    state.Add("model", std::move(models));
    state.Add("optimizer", std::move(optimizers));
    return state;
  }

 private:
  using Shares = std::vector<HfaiShare>;

  Status CheckCounts() const {
    const HfaiPart& first = parts_[0];
    const auto check = [&](const HfaiPart& part, std::string_view list, std::size_t found,
                           std::size_t want) {
      return found == want ? Status::Ok()
                           : DataLoss(part.name + " has " + std::to_string(found) +
                                      " entries in \"" + std::string(list) + "\", " + first.name +
                                      " has " + std::to_string(want));
    };
    for (const HfaiPart& part : parts_) {
      VARVE_RETURN_IF_ERROR(check(part, "model", part.models.size(), first.models.size()));
      VARVE_RETURN_IF_ERROR(
          check(part, "optimizer", part.optimizers.size(), first.optimizers.size()));
    }
    return Status::Ok();
  }

  Status BothError(const std::string& name, std::size_t part) const {
    return DataLoss(name + " is stored whole in " + parts_[part].name + " and in pieces elsewhere");
  }

  /// Moves the entries of `from` behind those of `to`.
  Status Append(const std::string& prefix, std::size_t part, StateNode* from, Places* places,
                StateNode* to) const {
    for (std::size_t k = 0; k < from->keys.size(); ++k) {
      if (const auto other = places->Take(from->keys[k], part)) {
        return DataLoss(prefix + KeyText(from->keys[k]) + " is stored in " + parts_[*other].name +
                        " and in " + parts_[part].name);
      }
      to->keys.push_back(std::move(from->keys[k]));
      to->items.push_back(std::move(from->items[k]));
    }
    return Status::Ok();
  }

  /// Returns the large tensors of one model or optimizer, in the order in which parts have them.
  Result<std::vector<HfaiLarge>> LargeOf(Shares HfaiPart::* list, std::size_t index,
                                         const std::string& prefix) {
    std::vector<HfaiLarge> all;
    std::unordered_map<std::string, std::size_t> numbers;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      for (const HfaiPiece& piece : (parts_[part].*list)[index].large) {
        const auto [at, is_new] =
            numbers.try_emplace(EncodeValue(piece.owner) + EncodeValue(piece.key), all.size());
        if (is_new) {
          const std::string name = piece.owner.kind == ValueKind::kNone
                                       ? KeyText(piece.key)
                                       : InState(piece.owner, piece.key);
          VARVE_RETURN_IF_ERROR(joiner_.Charge(parts_.size() * sizeof(HfaiPiece*), prefix + name));
          all.push_back({prefix + name, std::vector<const HfaiPiece*>(parts_.size())});
        }
        all[at->second].pieces[part] = &piece;
      }
    }
    return all;
  }

  static const HfaiPiece& AnyOf(const HfaiLarge& large) {
    return **std::find_if(large.pieces.begin(), large.pieces.end(),
                          [](const HfaiPiece* piece) { return piece != nullptr; });
  }

  Result<StateNode> Model(std::size_t index) {
    const std::string prefix = Prefix("model", index, parts_[0].models.size()) + "tensor ";
    StateNode model;
    Places places;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      VARVE_RETURN_IF_ERROR(
          Append(prefix, part, &parts_[part].models[index].small, &places, &model));
    }
    VARVE_ASSIGN_OR_RETURN(const auto all, LargeOf(&HfaiPart::models, index, prefix));
    for (const HfaiLarge& large : all) {
      const Value& key = AnyOf(large).key;
      if (const auto part = places.Find(key)) {
        return BothError(large.name, *part);
      }
      VARVE_ASSIGN_OR_RETURN(StoredTensor tensor, joiner_.Join(large));
      model.keys.push_back(key);
      model.items.push_back(StateNode::OfTensor(std::move(tensor)));
    }
    return model;
  }

  /// Part 0's state dict counts, with the state of all parts.
  Result<StateNode> Optimizer(std::size_t index) {
    const std::string prefix = Prefix("optimizer", index, parts_[0].optimizers.size());
    Places places;
    StateNode state;
    state.kind = parts_[0].optimizers[index].small.Find("state")->kind;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      StateNode* const share = parts_[part].optimizers[index].small.Find("state");
      VARVE_RETURN_IF_ERROR(Append(prefix + "state of parameter ", part, share, &places, &state));
    }
    std::unordered_map<std::string, std::size_t> by_id;
    for (std::size_t i = 0; i < state.keys.size(); ++i) {
      by_id.emplace(EncodeValue(state.keys[i]), i);
    }
    VARVE_ASSIGN_OR_RETURN(const auto all,
                           LargeOf(&HfaiPart::optimizers, index, prefix + "tensor "));
    std::map<std::size_t, Places> small_keys;  // Of the parameters that have large tensors.
    for (const HfaiLarge& large : all) {
      const HfaiPiece& any = AnyOf(large);
      const auto found = by_id.find(EncodeValue(any.owner));
      if (found == by_id.end() || !state.items[found->second].IsMapping()) {
        return DataLoss(large.name +
                        " is in pieces, but no part has the small entry of parameter " +
                        KeyText(any.owner));
      }
      StateNode& entry = state.items[found->second];
      const auto [keys, is_new] = small_keys.try_emplace(found->second);
      for (std::size_t k = 0; is_new && k < entry.keys.size(); ++k) {
        keys->second.Take(entry.keys[k], 0);
      }
      if (keys->second.Find(any.key)) {
        return BothError(large.name, *places.Find(any.owner));
      }
      VARVE_ASSIGN_OR_RETURN(StoredTensor tensor, joiner_.Join(large));
      entry.keys.push_back(any.key);
      entry.items.push_back(StateNode::OfTensor(std::move(tensor)));
    }
    StateNode whole = std::move(parts_[0].optimizers[index].small);
    *whole.Find("state") = std::move(state);
    return whole;
  }

  std::vector<HfaiPart>& parts_;
  HfaiJoiner joiner_;
};

}  // namespace

Result<Decoded> MergeHfaiParts(std::vector<HfaiPart> parts) {
  Decoded decoded;
  decoded.metadata.format = Format::kHfai;
  decoded.metadata.world_size = static_cast<std::uint32_t>(parts.size());
  VARVE_ASSIGN_OR_RETURN(StateNode state, Merger(&parts).Run());
  VARVE_RETURN_IF_ERROR(FlattenState(std::move(state), &decoded));
  for (HfaiPart& part : parts) {
    DataFile file;
    file.name = std::move(part.name);
    file.rank = part.number;
    file.size = part.size;
    decoded.metadata.files.push_back(std::move(file));
    decoded.records.insert(decoded.records.end(), part.records.begin(), part.records.end());
  }
  return decoded;
}

}  // namespace varve
