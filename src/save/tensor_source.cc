#include "save/tensor_source.h"

#include <string>
#include <utility>

#include "tensor/box.h"

namespace varve {
namespace {

const Strides& StridesOf(const TensorSource& source) {
  static const Strides row_major;
  if (const auto* cuda = std::get_if<CudaMemory>(&source)) {
    return cuda->strides;
  }
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

Status DeviceWaits::Add(const TensorSource& source, const std::string& fqn) {
  const auto* cuda = std::get_if<CudaMemory>(&source);
  if (cuda == nullptr || !seen_.emplace(cuda->device, cuda->stream).second) {
    return Status::Ok();
  }
  const auto await = [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
    return devices->After(Direction::kToHost, cuda->device, cuda->stream);
  };
  return await().Annotate("tensor \"" + fqn + "\"");
}

Status AwaitDeviceWork(const State& state, bool allowed) {
  DeviceWaits waits;
  for (const SourceTensor& tensor : state.tensors) {
    if (const auto device = DeviceOf(tensor.source); device && !allowed) {
      return InvalidArgument("tensor \"" + tensor.fqn + "\" is on CUDA device " +
                             std::to_string(*device) +
                             ", and the stager was made with copy_from_devices = false");
    }
    VARVE_RETURN_IF_ERROR(waits.Add(tensor.source, tensor.fqn));
  }
  return Status::Ok();
}

std::optional<int> DeviceOf(const State& state) {
  for (const SourceTensor& tensor : state.tensors) {
    if (const auto device = DeviceOf(tensor.source)) {
      return device;
    }
  }
  return std::nullopt;
}

}  // namespace varve
