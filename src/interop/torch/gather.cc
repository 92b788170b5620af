// Elements of a strided tensor, one after the other.

#include <cstddef>

#include "interop/torch/values.h"
#include "tensor/box.h"
#include "tensor/floats.h"

namespace varve {
namespace {

/// Calls `copy` with the byte offset in the span of each run along the last dimension, in row-major
/// order.
template <class Copy>
void ForEachRow(const ArchiveTensor& tensor, Copy copy) {
  const std::size_t rank = tensor.sizes.size();
  const std::size_t outer = rank == 0 ? 0 : rank - 1;
  const std::uint64_t item_bytes = ItemSize(tensor.dtype);
  Dims index(outer, 0);
  std::uint64_t at = 0;
  while (true) {
    copy(at * item_bytes);
    std::size_t d = outer;
    for (; d > 0; --d) {
      const auto stride = static_cast<std::uint64_t>(tensor.strides[d - 1]);
      if (++index[d - 1] < tensor.sizes[d - 1]) {
        at += stride;
        break;
      }
      index[d - 1] = 0;
      at -= stride * (tensor.sizes[d - 1] - 1);
    }
    if (d == 0) {
      return;
    }
  }
}

/// Flips the signs that conjugation and negation flip; false where the dtype knows neither.
bool ApplySigns(const ArchiveTensor& tensor, std::string* elements) {
  if (!tensor.conj && !tensor.neg) {
    return true;
  }
  const Floats floats = FloatsOf(tensor.dtype);
  if (floats.count == 0 || (tensor.conj && floats.count != 2)) {
    return false;
  }
  // Little-endian: the sign is the top bit of a float's last byte.
  for (std::size_t i = 0; i * floats.width < elements->size(); ++i) {
    if (tensor.neg != (tensor.conj && i % 2 == 1)) {
      char& top = (*elements)[(i + 1) * floats.width - 1];
      top = static_cast<char>(top ^ 0x80);
    }
  }
  return true;
}

}  // namespace

TensorSpan SpanOf(const ArchiveTensor& tensor) {
  const std::uint64_t item_bytes = ItemSize(tensor.dtype);
  const std::uint64_t begin = tensor.offset * item_bytes;
  if (Volume(tensor.sizes) == 0) {
    return {begin, begin};
  }
  std::uint64_t last = tensor.offset;
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    last += (tensor.sizes[d] - 1) * static_cast<std::uint64_t>(tensor.strides[d]);
  }
  return {begin, (last + 1) * item_bytes};
}

std::optional<std::string> PackTensor(const ArchiveTensor& tensor, std::string_view span) {
  const std::uint64_t item_bytes = ItemSize(tensor.dtype);
  std::string elements;
  if (const std::uint64_t count = Volume(tensor.sizes); count != 0) {
    elements.reserve(count * item_bytes);
    const std::uint64_t row = tensor.sizes.empty() ? 1 : tensor.sizes.back();
    const std::uint64_t step =
        item_bytes * (tensor.sizes.empty() ? 1 : static_cast<std::uint64_t>(tensor.strides.back()));
    ForEachRow(tensor, [&](std::uint64_t begin) {
      if (step == item_bytes) {
        elements.append(span.substr(begin, row * item_bytes));
        return;
      }
      for (std::uint64_t i = 0; i < row; ++i) {
        elements.append(span.substr(begin + i * step, item_bytes));
      }
    });
  }
  if (!ApplySigns(tensor, &elements)) {
    return std::nullopt;
  }
  return elements;
}

bool TorchValues::ConvertTensor(PickleRef node, Value* out) {
  auto found = archive_.TensorAt(node);
  if (!found.ok()) {
    status_ = found.status();
    return false;
  }
  if (!*found) {
    return false;
  }
  const ArchiveTensor& tensor = **found;
  const ArchiveStorage& storage = archive_.storages()[tensor.storage];
  const TensorSpan span = SpanOf(tensor);
  std::uint64_t bytes = ItemSize(tensor.dtype);
  for (const std::uint64_t size : tensor.sizes) {
    bytes *= size;  // Checked by TensorAt.
  }
  if (!Spend(span.end - span.begin) || !Spend(bytes)) {
    return false;
  }
  auto content = read_(storage.begin + span.begin, span.end - span.begin);
  if (!content.ok()) {
    status_ = content.status();
    return false;
  }
  auto packed = PackTensor(tensor, *content);
  if (!packed) {
    return false;
  }
  out->kind = ValueKind::kTensor;
  out->text = *std::move(packed);
  Value shape{.kind = ValueKind::kTuple};
  for (const std::uint64_t size : tensor.sizes) {
    shape.items.push_back(Value::Int(static_cast<std::int64_t>(size)));
  }
  out->items = {Value::Str(std::string(DTypeName(tensor.dtype))), std::move(shape)};
  return true;
}

}  // namespace varve
