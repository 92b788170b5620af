// Tensors of torch as plain memory, without a call of Python for each attribute.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "varve/checkpoint.h"
#include "varve/tensor.h"

namespace varve::python {

/// Row-major memory of a tensor, or of the one box of it that this rank holds.
struct PlainTensor {
  DType dtype = DType::kUInt8;
  Dims shape;              ///< Of the whole tensor.
  std::optional<Box> box;  ///< Nothing for all of it.
  void* data = nullptr;
  nb::object storage{};  ///< Keeps the memory, also where the tensor gets another storage.
  std::optional<OnCuda> cuda{};
};

/// Returns the memory of a torch.Tensor or torch.nn.Parameter in row-major order, in host memory or
/// with `devices` on a CUDA device, with the stream that is current there. Returns nothing for all
/// other objects and layouts, and before set_torch was called with an interface. Needs the GIL.
std::optional<PlainTensor> PlainTensorOf(nb::handle tensor, bool devices);

/// Returns likewise the memory of a DTensor whose local tensor is such a tensor and one box of the
/// whole. `places` keeps what set_dtensors' function has returned for each mesh, placements and
/// shape: a state has many tensors and few of these.
std::optional<PlainTensor> HeldTensorOf(nb::handle tensor, bool devices, const nb::dict& places);

/// Returns true for a DTensor that is a view. It may be a view of a copy, which a load must not
/// fill.
bool IsViewOfDTensor(nb::handle tensor);

/// Returns the memory as a save reads it.
inline TensorSource SourceOf(const PlainTensor& plain) {
  if (plain.cuda) {
    return CudaMemory{plain.data, plain.cuda->device, plain.cuda->stream, {}};
  }
  return HostMemory{plain.data, {}};
}

/// Adds the memory to what a load fills.
inline void AddPlainTarget(LoadRequest& request, std::string fqn, PlainTensor plain) {
  Box box = plain.box ? *std::move(plain.box) : WholeBox(plain.shape);
  request.targets.push_back({std::move(fqn),
                             plain.dtype,
                             std::move(plain.shape),
                             std::move(box),
                             plain.data,
                             {},
                             plain.cuda});
}

void BindPlainTensors(nb::module_& module);

}  // namespace varve::python
