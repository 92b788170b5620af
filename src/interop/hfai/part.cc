#include "interop/hfai/part.h"

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "interop/hfai/names.h"
#include "interop/torch/archive.h"
#include "interop/torch/encode_parts.h"
#include "interop/torch/state_reader.h"
#include "tensor/box.h"

namespace varve {
namespace {

// As many as any torch can have.
constexpr std::size_t kMaxDims = 64;
// Of `__nshards__`. More ranks than any job has had.
constexpr std::int64_t kMaxShards = std::int64_t{1} << 24;

std::string Entry(std::string_view list, std::size_t i) {
  return std::string(list) + "." + std::to_string(i);
}

class PartReader {
 public:
  PartReader(const TorchArchive& archive, const RangeReader& read, std::uint32_t file)
      : archive_(archive), tree_(archive.tree()), reader_(archive, read, file), file_(file) {}

  Status Read(HfaiPart* part) {
    VARVE_ASSIGN_OR_RETURN(const auto root, reader_.MappingAt(tree_.root()));
    if (!root) {
      return DataLoss("it holds no dict, so it is no part of a checkpoint of hfai");
    }
    VARVE_RETURN_IF_ERROR(CheckVersion(root->Find("__version__")));
    VARVE_ASSIGN_OR_RETURN(part->nshards, ShardsAt(root->Find("__nshards__")));
    VARVE_ASSIGN_OR_RETURN(part->models, SharesAt(root->Find("model"), "model"));
    VARVE_ASSIGN_OR_RETURN(part->optimizers, SharesAt(root->Find("optimizer"), "optimizer"));
    return part->number == 0 ? ReadOthers(*root, &part->others) : Status::Ok();
  }

 private:
  Status CheckVersion(PickleRef node) {
    constexpr std::string_view kOnly = "; only 2.0.0 is known";
    if (node == kNoPickle) {
      return Unimplemented("__version__ is missing, which means 1.0.0" + std::string(kOnly));
    }
    if (tree_.kind(node) == PickleKind::kStr && tree_.text(node) == kHfaiVersion) {
      return Status::Ok();
    }
    VARVE_ASSIGN_OR_RETURN(const std::string found, TextAt(node));
    return Unimplemented("__version__ is " + found + std::string(kOnly));
  }

  Result<std::uint64_t> ShardsAt(PickleRef node) {
    if (node == kNoPickle) {
      return DataLoss("__nshards__ is missing");
    }
    if (tree_.kind(node) == PickleKind::kInt && tree_.integer(node) > 0 &&
        tree_.integer(node) <= kMaxShards) {
      return static_cast<std::uint64_t>(tree_.integer(node));
    }
    VARVE_ASSIGN_OR_RETURN(const std::string found, TextAt(node));
    return DataLoss("__nshards__ is " + found + ", not a number of parts");
  }

  /// Returns a value for a message.
  Result<std::string> TextAt(PickleRef node) {
    constexpr std::size_t kMaxChars = 60;
    VARVE_ASSIGN_OR_RETURN(const auto value, reader_.ValueAt(node));
    if (!value) {
      return std::string("an object");
    }
    return value->kind == ValueKind::kStr ? QuotedStart(value->text) : ToString(*value, kMaxChars);
  }

  /// Returns the items of a list or tuple.
  [[nodiscard]] std::optional<std::span<const PickleRef>> SequenceAt(PickleRef node) const {
    if (node == kNoPickle ||
        (tree_.kind(node) != PickleKind::kList && tree_.kind(node) != PickleKind::kTuple)) {
      return std::nullopt;
    }
    return tree_.items(node);
  }

  Result<std::vector<HfaiShare>> SharesAt(PickleRef node, std::string_view list) {
    const auto items = SequenceAt(node);
    if (!items) {
      return DataLoss("\"" + std::string(list) + "\" is " +
                      (node == kNoPickle ? "missing" : "no list"));
    }
    std::vector<HfaiShare> shares;
    for (const PickleRef item : *items) {
      const std::string name = Entry(list, shares.size());
      const auto pair = SequenceAt(item);
      if (!pair || pair->size() != 2) {
        return DataLoss("\"" + name + "\" is no pair of small and large entries");
      }
      VARVE_ASSIGN_OR_RETURN(HfaiShare share,
                             ShareAt((*pair)[0], (*pair)[1], name, list == "optimizer"));
      shares.push_back(std::move(share));
    }
    return shares;
  }

  Result<HfaiShare> ShareAt(PickleRef small, PickleRef large, const std::string& name,
                            bool is_optimizer) {
    HfaiShare share;
    VARVE_ASSIGN_OR_RETURN(share.small, reader_.At(small, name));
    if (!share.small.IsMapping()) {
      return DataLoss("the small entries of \"" + name + "\" are no dict");
    }
    if (is_optimizer) {
      StateNode* const state = share.small.Find("state");
      if (state == nullptr || !state->IsMapping()) {
        return DataLoss("\"" + name + "\" has no dict \"state\"");
      }
    }
    VARVE_ASSIGN_OR_RETURN(const auto pieces, reader_.MappingAt(large));
    if (!pieces) {
      return DataLoss("the large entries of \"" + name + "\" are no dict");
    }
    for (std::size_t i = 0; i < pieces->keys.size(); ++i) {
      HfaiPiece piece;
      VARVE_RETURN_IF_ERROR(TakeKey(pieces->keys[i], name, is_optimizer, &piece));
      const Status read = ReadPiece(pieces->items[i], &piece);
      if (!read.ok()) {
        return read.Annotate("\"" + name + "\": large tensor " + KeyText(pieces->keys[i]));
      }
      share.large.push_back(std::move(piece));
    }
    return share;
  }

  static Status TakeKey(const Value& key, const std::string& name, bool is_optimizer,
                        HfaiPiece* piece) {
    if (!is_optimizer) {
      piece->key = key;
      return Status::Ok();
    }
    if (key.kind != ValueKind::kTuple || key.items.size() != 2) {
      return DataLoss("\"" + name + "\": the key " + ToString(key, 60) +
                      " of a large tensor is no pair of parameter id and name");
    }
    piece->owner = key.items[0];
    piece->key = key.items[1];
    return Status::Ok();
  }

  /// Reads `(full shape, flat piece)`.
  Status ReadPiece(PickleRef node, HfaiPiece* out) {
    const auto pair = SequenceAt(node);
    if (!pair || pair->size() != 2) {
      return DataLoss("it is no pair of shape and piece");
    }
    VARVE_ASSIGN_OR_RETURN(auto shape, reader_.ValueAt((*pair)[0]));
    if (!shape || (shape->kind != ValueKind::kTorchSize && shape->kind != ValueKind::kTuple)) {
      return DataLoss("its shape is no torch.Size");
    }
    shape->kind = ValueKind::kTuple;
    auto dims = ShapeOf(*shape, "its shape");
    if (!dims.ok()) {
      return DataLoss(dims.status().message());
    }
    out->shape = std::move(*dims);
    if (out->shape.size() > kMaxDims) {
      return DataLoss("it has " + std::to_string(out->shape.size()) + " dimensions, more than " +
                      std::to_string(kMaxDims));
    }
    VARVE_ASSIGN_OR_RETURN(const auto tensor, archive_.TensorAt((*pair)[1]));
    if (!tensor) {
      return DataLoss("its piece is no tensor that can be read");
    }
    if (tensor->sizes.size() != 1) {
      return DataLoss("its piece has the shape " + ToString(tensor->sizes) +
                      " instead of one dimension");
    }
    const Status fits = CheckBox(out->shape, WholeBox(out->shape), ItemSize(tensor->dtype));
    if (!fits.ok()) {
      return DataLoss(fits.message());
    }
    out->piece = StoredWhole(archive_, *tensor, file_);
    return Status::Ok();
  }

  Status ReadOthers(const StateMapping& root, StateNode* others) {
    for (std::size_t i = 0; i < root.keys.size(); ++i) {
      const Value& key = root.keys[i];
      if (key.kind == ValueKind::kStr && (key.text == "__nshards__" || key.text == "__version__" ||
                                          key.text == "model" || key.text == "optimizer")) {
        continue;
      }
      VARVE_ASSIGN_OR_RETURN(StateNode item, reader_.At(root.items[i], KeyText(key)));
      others->keys.push_back(key);
      others->items.push_back(std::move(item));
    }
    return Status::Ok();
  }

  const TorchArchive& archive_;
  const PickleTree& tree_;
  StateReader reader_;
  std::uint32_t file_;
};

}  // namespace

Result<HfaiPart> DecodeHfaiPart(std::uint64_t size, const RangeReader& read, std::uint32_t number,
                                std::uint32_t file) {
  HfaiPart part{.number = number,
                .name = HfaiPartName(number),
                .size = size,
                .nshards = 0,
                .models = {},
                .optimizers = {},
                .others = {},
                .records = {}};
  auto archive = TorchArchive::Open(size, read);
  if (!archive.ok()) {
    return archive.status().Annotate(part.name);
  }
  part.records = StorageRecords(*archive, file);
  if (const Status status = PartReader(*archive, read, file).Read(&part); !status.ok()) {
    return status.Annotate(part.name);
  }
  return part;
}

}  // namespace varve
