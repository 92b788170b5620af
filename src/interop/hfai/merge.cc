#include "interop/hfai/merge.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/checked.h"
#include "interop/hfai/names.h"
#include "tensor/box.h"

namespace varve {
namespace {

// ---- large tensors: flat pieces, one per part, to chunks of the whole tensor ----

// The factor by which the pickles of all parts may grow as chunks, and bytes that are always free:
// a piece of a few bytes of pickle may become 2 * dimensions - 1 chunks.
constexpr std::uint64_t kGrowth = 8;
constexpr std::uint64_t kFreeBytes = std::uint64_t{16} << 20;

std::uint64_t Elements(const HfaiPiece& piece) { return Volume(piece.piece.shape); }

/// Adds the chunks of a piece whose first element is element `begin` of the flattened tensor.
void AddChunks(const HfaiPiece& piece, std::uint64_t begin, std::vector<Chunk>* chunks) {
  const Chunk& stored = piece.piece.chunks[0];
  const std::int64_t stride = stored.strides.empty() ? 1 : stored.strides[0];
  const std::uint64_t step = static_cast<std::uint64_t>(stride) * ItemSize(piece.piece.dtype);
  std::uint64_t at = stored.extent.begin;
  for (Box& box : FlatRunBoxes(piece.shape, begin, begin + Elements(piece))) {
    const std::uint64_t count = Volume(box.sizes);
    Chunk chunk = stored;
    chunk.extent.begin = at;
    chunk.extent.end = at + (count - 1) * step + ItemSize(piece.piece.dtype);
    chunk.strides.clear();
    if (stride != 1) {
      chunk.strides = RowMajorStrides(box.sizes);
      for (std::int64_t& along : chunk.strides) {
        along *= stride;
      }
    }
    chunk.box = std::move(box);
    chunks->push_back(std::move(chunk));
    at += count * step;
  }
}

/// A large tensor with the piece that each part has of it, null where it has none. Points into the
/// parts.
struct Large {
  std::string name;  ///< For messages: "model tensor a.weight".
  std::vector<const HfaiPiece*> pieces;
};

/// Returns the number of elements that `part` of `world` has of `count`: ceil(count / world) each,
/// the last ones fewer or none.
std::uint64_t PieceElements(std::uint64_t count, std::uint64_t part, std::uint64_t world) {
  const std::uint64_t each = DivideUp(count, world);
  const auto begin = CheckedMul(part, each);
  return begin && *begin < count ? std::min(each, count - *begin) : 0;
}

/// Makes tensors of pieces. One object serves all tensors of a checkpoint: it bounds the memory
/// that their chunks take together by the size of the files.
class Joiner {
 public:
  /// `parts` are all parts, in order, and must outlive this.
  explicit Joiner(const std::vector<HfaiPart>& parts) : parts_(parts), bytes_left_(kFreeBytes) {
    for (const HfaiPart& part : parts) {
      bytes_left_ += part.size * kGrowth;
    }
  }

  /// Counts memory that one large tensor takes. Errors: InvalidArgument when all take many times
  /// what the files have.
  Status Charge(std::uint64_t bytes, const std::string& name) {
    if (bytes > bytes_left_) {
      return InvalidArgument(
          name + ": the pieces of large tensors take many times the memory of the files");
    }
    bytes_left_ -= bytes;
    return Status::Ok();
  }

  /// Returns the whole tensor. Errors: as Charge; DataLoss, naming tensor and part, for a piece
  /// that is missing or of another size than the format gives it, and for pieces of different
  /// shapes or types.
  Result<StoredTensor> Join(const Large& large) {
    const HfaiPiece& first =
        **std::find_if(large.pieces.begin(), large.pieces.end(), [](const auto* p) { return p; });
    const std::uint64_t count = Volume(first.shape);
    StoredTensor whole{first.piece.dtype, first.shape, {}};
    std::uint64_t begin = 0;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      VARVE_RETURN_IF_ERROR(Check(large, first, part));
      const std::uint64_t elements = PieceElements(count, part, parts_.size());
      if (elements == 0) {
        continue;
      }
      // Room for the largest number of chunks, each with three lists of as many numbers as there
      // are dimensions.
      const std::uint64_t dims = first.shape.size();
      const std::uint64_t bytes =
          (2 * dims + 1) * (sizeof(Chunk) + 3 * dims * sizeof(Dims::value_type));
      VARVE_RETURN_IF_ERROR(Charge(bytes, large.name));
      AddChunks(*large.pieces[part], begin, &whole.chunks);
      begin += elements;
    }
    return whole;
  }

 private:
  Status Check(const Large& large, const HfaiPiece& first, std::size_t part) const {
    const HfaiPiece* const piece = large.pieces[part];
    const std::string& file = parts_[part].name;
    const std::uint64_t count = Volume(first.shape);
    const std::uint64_t want = PieceElements(count, part, parts_.size());
    const std::string name = large.name + " " + ToString(first.shape);
    if (piece == nullptr) {
      return want == 0 ? Status::Ok()
                       : DataLoss(name + ": " + file + " has no piece; " + std::to_string(want) +
                                  " of " + std::to_string(count) + " elements are missing");
    }
    if (piece->shape != first.shape) {
      return DataLoss(name + ": " + file + " says that the whole shape is " +
                      ToString(piece->shape));
    }
    if (piece->piece.dtype != first.piece.dtype) {
      return DataLoss(name + ": the piece in " + file + " is " +
                      std::string(DTypeName(piece->piece.dtype)) + ", other pieces are " +
                      std::string(DTypeName(first.piece.dtype)));
    }
    if (Elements(*piece) != want) {
      return DataLoss(name + ": the piece in " + file + " has " + std::to_string(Elements(*piece)) +
                      " elements instead of " + std::to_string(want));
    }
    return Status::Ok();
  }

  const std::vector<HfaiPart>& parts_;
  std::uint64_t bytes_left_;
};

// ---- all parts ----

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
  Result<std::vector<Large>> LargeOf(Shares HfaiPart::* list, std::size_t index,
                                     const std::string& prefix) {
    std::vector<Large> all;
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

  static const HfaiPiece& AnyOf(const Large& large) {
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
    for (const Large& large : all) {
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
    for (const Large& large : all) {
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
  Joiner joiner_;
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
