// The tensors among a pickle's nodes, and the places of their elements. The functions named here
// are those of torch/_utils.py and torch/_tensor.py.

#include <algorithm>
#include <limits>
#include <utility>

#include "base/checked.h"
#include "interop/torch/parts.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::size_t kMaxRank = 64;  // As in PyTorch itself.

// A longer list is not even read: many tensors may share it.
constexpr std::size_t kMaxListed = 1024;

/// A call of one of torch._utils' functions.
struct Call {
  std::string_view function;
  std::span<const PickleRef> arguments;
};

/// Returns the call that makes a tensor, without the one that gives it attributes. Nothing for what
/// is no plain call, and for subclasses of Tensor.
std::optional<Call> CallAt(const PickleTree& tree, PickleRef node) {
  if (tree.kind(node) != PickleKind::kReduce) {
    return std::nullopt;
  }
  const PickleObject& object = tree.object(node);
  if (object.state != kNoPickle || !object.items.empty() || !object.pairs.empty()) {
    return std::nullopt;
  }
  PickleRef function = object.callee;
  std::span<const PickleRef> arguments = ArgumentsOf(tree, node);
  if (tree.module(function) == "torch._tensor" && (tree.name(function) == "_rebuild_from_type_v2" ||
                                                   tree.name(function) == "_rebuild_from_type")) {
    // (function, type, arguments, attributes)
    if (arguments.size() != 4 || !(tree.IsGlobal(arguments[1], "torch", "Tensor") ||
                                   tree.IsGlobal(arguments[1], "torch.nn.parameter", "Parameter") ||
                                   tree.IsGlobal(arguments[1], "torch.nn.parameter", "Buffer"))) {
      return std::nullopt;
    }
    function = arguments[0];
    arguments = tree.items(arguments[2]);
  }
  if (tree.module(function) != "torch._utils") {
    return std::nullopt;
  }
  return Call{tree.name(function), arguments};
}

bool IsTrue(const PickleTree& tree, PickleRef node) {
  return node != kNoPickle && tree.kind(node) == PickleKind::kBool && tree.integer(node) != 0;
}

/// Returns a flag of a tensor. Torch knows two; a dict of many would be searched for every tensor.
bool HasFlag(const PickleTree& tree, PickleRef flags, std::string_view name) {
  constexpr std::size_t kMaxItems = 64;
  return tree.items(flags).size() <= kMaxItems && IsTrue(tree, tree.Get(flags, name));
}

std::string Described(const ArchiveTensor& tensor) {
  std::string strides;
  for (const std::int64_t stride : tensor.strides) {
    strides += (strides.empty() ? "" : ", ") + std::to_string(stride);
  }
  return "a " + std::string(DTypeName(tensor.dtype)) + " tensor of shape " +
         ToString(tensor.sizes) + " with strides [" + strides + "] from element " +
         std::to_string(tensor.offset);
}

/// Returns the last element's number, counted from the storage's begin.
std::optional<std::uint64_t> LastElement(const ArchiveTensor& tensor) {
  std::optional<std::uint64_t> last = tensor.offset;
  for (std::size_t d = 0; d < tensor.sizes.size() && last; ++d) {
    const auto step =
        CheckedMul(tensor.sizes[d] - 1, static_cast<std::uint64_t>(tensor.strides[d]));
    last = step ? CheckedAdd(*last, *step) : std::nullopt;
  }
  return last;
}

}  // namespace

std::optional<Dims> DimsAt(const PickleTree& tree, PickleRef node) {
  if (tree.IsMadeBy(node, "torch", "Size") && ArgumentsOf(tree, node).size() == 1) {
    node = ArgumentsOf(tree, node)[0];
  }
  const PickleKind kind = tree.kind(node);
  if ((kind != PickleKind::kTuple && kind != PickleKind::kList) ||
      tree.items(node).size() > kMaxListed) {
    return std::nullopt;
  }
  Dims counts;
  counts.reserve(tree.items(node).size());
  for (const PickleRef item : tree.items(node)) {
    const auto count = CountAt(tree, item);
    if (!count) {
      return std::nullopt;
    }
    counts.push_back(*count);
  }
  return counts;
}

Status CheckTensorPlace(std::uint64_t storage_bytes, ArchiveTensor* tensor) {
  const std::uint64_t item_bytes = ItemSize(tensor->dtype);
  if (tensor->sizes.size() != tensor->strides.size() || tensor->sizes.size() > kMaxRank) {
    return DataLoss("a tensor of " + std::to_string(tensor->sizes.size()) + " dimensions with " +
                    std::to_string(tensor->strides.size()) + " strides");
  }
  const auto elements = CheckedProduct(tensor->sizes);
  const auto bytes = elements ? CheckedMul(*elements, item_bytes) : std::nullopt;
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return DataLoss(Described(*tensor) + " has too many elements");
  }
  if (*elements == 0) {
    // The place of an empty tensor has no effect, but must lie in the storage.
    tensor->offset = std::min(tensor->offset, storage_bytes / item_bytes);
    return Status::Ok();
  }
  const auto last = LastElement(*tensor);
  if (!last || *last >= storage_bytes / item_bytes) {
    return DataLoss(Described(*tensor) + " does not lie in its storage of " +
                    std::to_string(storage_bytes) + " bytes");
  }
  if (*bytes > kAnyTensorBytes && *bytes / kMaxRepeats > storage_bytes) {
    return InvalidArgument(Described(*tensor) + " repeats its storage of " +
                           std::to_string(storage_bytes) + " bytes more than " +
                           std::to_string(kMaxRepeats) + " times");
  }
  return Status::Ok();
}

Result<std::optional<ArchiveTensor>> TorchArchive::TensorAt(PickleRef node) const {
  const PickleTree& tree = this->tree();
  constexpr std::optional<ArchiveTensor> kNone;
  std::optional<Call> call = CallAt(tree, node);
  std::optional<bool> requires_grad;
  // A Parameter is a tensor in a call of its own. Real ones are not nested any deeper.
  while (call && call->function.starts_with("_rebuild_parameter")) {
    if (requires_grad || call->arguments.size() < 2) {
      return kNone;
    }
    requires_grad = IsTrue(tree, call->arguments[1]);
    call = CallAt(tree, call->arguments[0]);
  }
  if (!call) {
    return kNone;
  }
  // (storage, offset, sizes, strides), (..., requires_grad, hooks[, flags]) and (...,
  // requires_grad, hooks, dtype[, flags])
  const bool v3 = call->function == "_rebuild_tensor_v3";
  const bool v2 = call->function == "_rebuild_tensor_v2";
  const std::span<const PickleRef> arguments = call->arguments;
  if (arguments.size() < (v3   ? 7U
                          : v2 ? 6U
                               : 4U) ||
      !(v3 || v2 || call->function == "_rebuild_tensor")) {
    return kNone;
  }
  const auto reference = StorageReferenceAt(tree, arguments[0]);
  if (!reference) {
    return kNone;
  }
  const std::optional<DType> dtype = !v3 ? reference->type.dtype
                                     : tree.module(arguments[6]) == "torch"
                                         ? DTypeFromName(tree.name(arguments[6]))
                                         : std::nullopt;
  if (!dtype) {
    return kNone;
  }
  const auto offset = CountAt(tree, arguments[1]);
  auto sizes = DimsAt(tree, arguments[2]);
  const auto strides = DimsAt(tree, arguments[3]);
  const auto storage = FindStorage(reference->key);
  if (!storage || !offset || !sizes || !strides) {
    return DataLoss(
        "a tensor of storage \"" + std::string(reference->key) +
        (storage ? "\" has no valid offset, shape or strides" : "\", which is not there"));
  }
  ArchiveTensor tensor{.storage = *storage,
                       .dtype = *dtype,
                       .sizes = *std::move(sizes),
                       .strides = Strides(strides->begin(), strides->end())};
  if (v2 || v3) {
    tensor.requires_grad = requires_grad.value_or(IsTrue(tree, arguments[4]));
  }
  if (const std::size_t flags = v3 ? 7 : 6; flags < arguments.size() && (v2 || v3)) {
    tensor.conj = HasFlag(tree, arguments[flags], "conj");
    tensor.neg = HasFlag(tree, arguments[flags], "neg");
  }
  const std::uint64_t item_bytes = reference->type.item_bytes;
  const auto taken = CheckedMul(reference->count, item_bytes);
  if (!taken || *taken > storages_[*storage].bytes) {
    return DataLoss("storage \"" + std::string(reference->key) + "\" has " +
                    std::to_string(storages_[*storage].bytes) + " bytes, fewer than its " +
                    std::to_string(reference->count) + " elements take");
  }
  const auto first = CheckedAdd(reference->view_offset, *offset);
  if (!first || (reference->view_offset != 0 && item_bytes != ItemSize(*dtype))) {
    return DataLoss("a tensor begins outside of its storage \"" + std::string(reference->key) +
                    "\"");
  }
  tensor.offset = *first;
  Status place =
      CheckTensorPlace((reference->view_offset + reference->view_count) * item_bytes, &tensor);
  if (!place.ok()) {
    return place.Annotate("storage \"" + std::string(reference->key) + "\"");
  }
  return std::optional<ArchiveTensor>(std::move(tensor));
}

}  // namespace varve
