// DCP stores each chunk as an archive of its own, tens of thousands of them in a checkpoint, so
// this reads few ranges of each.

#include "interop/torch/archive.h"

namespace varve {
namespace {

/// Bytes that are read at once from either end of an item: pickle and headers lie before the
/// payload, the directory behind it.
constexpr std::uint64_t kEndBytes = 2048;

/// Both ends of an item. Other parts are read as they are asked for.
class ItemWindow {
 public:
  ItemWindow(std::uint64_t size, const RangeReader& read) : read_(read), size_(size) {}

  Status Fill() {
    const bool small = size_ <= 2 * kEndBytes;
    VARVE_ASSIGN_OR_RETURN(head_, read_(0, small ? size_ : kEndBytes));
    if (!small) {
      VARVE_ASSIGN_OR_RETURN(tail_, read_(size_ - kEndBytes, kEndBytes));
    }
    tail_begin_ = size_ - tail_.size();
    return Status::Ok();
  }

  [[nodiscard]] Result<std::string> Read(std::uint64_t begin, std::uint64_t bytes) const {
    if (begin <= head_.size() && bytes <= head_.size() - begin) {
      return head_.substr(begin, bytes);
    }
    if (begin >= tail_begin_ && bytes <= size_ - begin) {
      return tail_.substr(begin - tail_begin_, bytes);
    }
    return read_(begin, bytes);
  }

 private:
  const RangeReader& read_;
  std::uint64_t size_;
  std::uint64_t tail_begin_ = 0;
  std::string head_;
  std::string tail_;
};

/// Returns the kind of tensor that only torch makes, "module.Class" or the name of torch's function
/// for it; empty where a pickle is no such tensor.
std::string KindOf(const PickleTree& tree) {
  const PickleRef root = tree.root();
  if (!tree.IsObject(root) || tree.object(root).callee == kNoPickle) {
    return {};
  }
  const PickleRef made_by = tree.object(root).callee;
  if (tree.IsGlobal(made_by, "torch._tensor", "_rebuild_from_type_v2")) {
    // The function that makes the tensor, its class, the function's arguments, the object's state.
    const auto arguments = tree.items(tree.object(root).args);
    return arguments.size() > 1 && tree.kind(arguments[1]) == PickleKind::kGlobal
               ? std::string(tree.module(arguments[1])) + "." + std::string(tree.name(arguments[1]))
               : std::string();
  }
  for (const std::string_view kind : {"_rebuild_qtensor", "_rebuild_sparse_tensor",
                                      "_rebuild_nested_tensor", "_rebuild_wrapper_subclass"}) {
    if (tree.IsGlobal(made_by, "torch._utils", kind)) {
      return "torch._utils." + std::string(kind);
    }
  }
  return {};
}

}  // namespace

Result<TensorItem> ReadTensorItem(std::uint64_t size, const RangeReader& read) {
  ItemWindow window(size, read);
  VARVE_RETURN_IF_ERROR(window.Fill());
  const RangeReader windowed = [&window](std::uint64_t begin, std::uint64_t bytes) {
    return window.Read(begin, bytes);
  };
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::Open(size, windowed));
  VARVE_ASSIGN_OR_RETURN(std::optional<ArchiveTensor> tensor,
                         archive.TensorAt(archive.tree().root()));
  if (!tensor) {
    const std::string kind = KindOf(archive.tree());
    return kind.empty()
               ? DataLoss("torch.save archive: it does not hold a tensor of plain elements")
               : Unimplemented("only torch can read this entry, a " + kind +
                               ": it is no tensor of plain elements");
  }
  TensorItem item{.tensor = {}, .storage = archive.storages()[tensor->storage]};
  item.tensor = *std::move(tensor);
  item.tensor.storage = 0;
  return item;
}

}  // namespace varve
