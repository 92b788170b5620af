#include "save/tensor_source.h"

#include <set>
#include <string>
#include <utility>

#include "tensor/box.h"

namespace varve {
namespace {

const Strides& StridesOf(const TensorSource& source) {
  static const Strides row_major;
  const auto* host = std::get_if<HostMemory>(&source);
  return host != nullptr ? host->strides : row_major;
}

}  // namespace

std::optional<int> DeviceOf(const TensorSource& source) {
  const auto* cuda = std::get_if<CudaMemory>(&source);
  return cuda != nullptr ? std::optional(cuda->device) : std::nullopt;
}

const void* AddressOf(const TensorSource& source) {
  if (const auto* producer = std::get_if<Producer>(&source)) {
    return producer->identity;
  }
  const auto* cuda = std::get_if<CudaMemory>(&source);
  return cuda != nullptr ? cuda->data : std::get<HostMemory>(source).data;
}

StridedMemory MemoryOf(const TensorSource& source, DType dtype, const Box& box) {
  const Strides& strides = StridesOf(source);
  return {static_cast<std::byte*>(const_cast<void*>(AddressOf(source))), box,
          strides.empty() ? RowMajorStrides(box.sizes) : strides, ItemSize(dtype)};
}

Status CheckSource(const TensorSource& source, const Box& box) {
  const Strides& strides = StridesOf(source);
  if (!strides.empty() && strides.size() != box.sizes.size()) {
    return InvalidArgument(std::to_string(strides.size()) + " strides for " +
                           std::to_string(box.sizes.size()) + " dimensions");
  }
  const auto* producer = std::get_if<Producer>(&source);
  if (producer != nullptr ? producer->fill == nullptr : AddressOf(source) == nullptr) {
    return IsEmpty(box) ? Status::Ok() : InvalidArgument("there is no memory to read it from");
  }
  return Status::Ok();
}

Status ReadFrom(const TensorSource& source, DType dtype, const Box& box, const Box& part,
                FileSegment* segment) {
  if (const auto* producer = std::get_if<Producer>(&source)) {
    if (part != box) {
      return InvalidArgument(
          "it is produced while it is written, so only a save by a single rank can have it");
    }
    segment->produce = producer->fill;
    return Status::Ok();
  }
  segment->region = Region(part, MemoryOf(source, dtype, box), part);
  segment->device = DeviceOf(source);
  return Status::Ok();
}

Status AwaitDeviceWork(const State& state, CudaReader* reader) {
  std::set<std::pair<int, void*>> seen;
  for (const SourceTensor& tensor : state.tensors) {
    const auto* cuda = std::get_if<CudaMemory>(&tensor.source);
    if (cuda == nullptr || !seen.emplace(cuda->device, cuda->stream).second) {
      continue;
    }
    if (reader == nullptr) {
      return InvalidArgument("tensor \"" + tensor.fqn + "\" is on CUDA device " +
                             std::to_string(cuda->device) +
                             ": only AsyncSave can copy it, with a Stager that was made with "
                             "copy_from_devices");
    }
    VARVE_RETURN_IF_ERROR(
        reader->After(cuda->device, cuda->stream).Annotate("tensor \"" + tensor.fqn + "\""));
  }
  return Status::Ok();
}

}  // namespace varve
