// The tensors and values of a save, and the tensors of a load. They are added one by one to the
// state or the request, and are no objects of Python: a state has a hundred thousand of them.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "bound.h"
#include "plain_tensor.h"
#include "varve/checkpoint.h"

namespace varve::python {
namespace {

Box BoxOf(std::optional<Dims> offsets, std::optional<Dims> sizes, const Dims& shape) {
  return offsets && sizes ? Box{*std::move(offsets), *std::move(sizes)} : WholeBox(shape);
}

void AddSource(State& state, std::string fqn, DType dtype, Dims shape, std::uintptr_t address,
               const std::optional<Strides>& strides, std::optional<Dims> offsets,
               std::optional<Dims> sizes, const Cuda& cuda) {
  const auto* const data = MemoryAt<const void>(address);
  TensorSource source = HostMemory{data, strides.value_or(Strides{})};
  if (cuda) {
    source = CudaMemory{data, cuda->first, MemoryAt(cuda->second), strides.value_or(Strides{})};
  }
  Box box = BoxOf(std::move(offsets), std::move(sizes), shape);
  state.tensors.push_back(
      {std::move(fqn), dtype, std::move(shape), std::move(box), std::move(source)});
}

void AddTarget(LoadRequest& request, std::string fqn, DType dtype, Dims shape,
               std::uintptr_t address, std::optional<Strides> strides, std::optional<Dims> offsets,
               std::optional<Dims> sizes, const Cuda& cuda) {
  Box box = BoxOf(std::move(offsets), std::move(sizes), shape);
  request.targets.push_back({std::move(fqn), dtype, std::move(shape), std::move(box),
                             MemoryAt(address), std::move(strides).value_or(Strides{}),
                             OnCudaOf(cuda)});
}

/// Adds a whole plain tensor of torch in row-major memory, which is what nearly all are. Returns
/// false for all others, which are added otherwise.
bool AddPlainSource(State& state, std::string fqn, nb::handle tensor, bool devices) {
  auto plain = PlainTensorOf(tensor, devices);
  if (!plain) {
    return false;
  }
  TensorSource source = HostMemory{plain->data, {}};
  if (plain->cuda) {
    source = CudaMemory{plain->data, plain->cuda->device, plain->cuda->stream, {}};
  }
  Box box = WholeBox(plain->shape);
  state.tensors.push_back(
      {std::move(fqn), plain->dtype, std::move(plain->shape), std::move(box), std::move(source)});
  return true;
}

bool AddPlainTarget(LoadRequest& request, std::string fqn, nb::handle tensor, bool devices) {
  auto plain = PlainTensorOf(tensor, devices);
  if (!plain) {
    return false;
  }
  Box box = WholeBox(plain->shape);
  request.targets.push_back({std::move(fqn),
                             plain->dtype,
                             std::move(plain->shape),
                             std::move(box),
                             plain->data,
                             {},
                             plain->cuda});
  return true;
}

/// Counts a tensor of a device that the caller copies by itself.
template <class Into>
void NoteCopied(Into& into, std::string problem) {
  ++into.copied_ahead.tensors;
  into.copied_ahead.problem = std::move(problem);
}

void Place(LoadRequest& request, const Dims& shape, const Dims& offsets) {
  for (TargetTensor& target : request.targets) {
    target.shape = shape;
    target.box.offsets = offsets;
  }
}

std::string BytesOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

}  // namespace

void BindTensors(nb::module_& module) {
  BindPlainTensors(module);
  nb::class_<State>(module, "State")
      .def(nb::init<>())
      .def("add", &AddSource, nb::arg("fqn"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("address"), nb::arg("strides") = nb::none(), nb::arg("offsets") = nb::none(),
           nb::arg("sizes") = nb::none(), nb::arg("cuda") = nb::none())
      .def("add_plain", &AddPlainSource, nb::arg("fqn"), nb::arg("tensor"), nb::arg("devices"))
      .def("note_copied", &NoteCopied<State>, nb::arg("problem"))
      .def(
          "add_object",
          [](State& state, std::string fqn, const nb::bytes& encoded) {
            state.objects.push_back({std::move(fqn), BytesOf(encoded)});
          },
          nb::arg("fqn"), nb::arg("encoded"))
      .def(
          "add_file",
          [](State& state, std::string name, const nb::bytes& content) {
            state.files.push_back({std::move(name), BytesOf(content)});
          },
          nb::arg("name"), nb::arg("content"))
      .def_prop_rw(
          "structure", [](const State& state) { return ToBytes(state.structure); },
          [](State& state, const nb::bytes& encoded) { state.structure = BytesOf(encoded); });
  nb::class_<LoadRequest>(module, "LoadRequest")
      .def(nb::init<>())
      .def("add", &AddTarget, nb::arg("fqn"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("address"), nb::arg("strides") = nb::none(), nb::arg("offsets") = nb::none(),
           nb::arg("sizes") = nb::none(), nb::arg("cuda") = nb::none())
      .def("add_plain", &AddPlainTarget, nb::arg("fqn"), nb::arg("tensor"), nb::arg("devices"))
      .def("note_copied", &NoteCopied<LoadRequest>, nb::arg("problem"))
      .def("place", &Place, nb::arg("shape"), nb::arg("offsets"))
      .def_rw("objects", &LoadRequest::objects)
      .def_rw("missing", &LoadRequest::missing)
      .def_rw("mismatched", &LoadRequest::mismatched)
      .def_rw("ignored", &LoadRequest::ignored)
      .def_rw("one_will_do", &LoadRequest::one_will_do);
}

}  // namespace varve::python
