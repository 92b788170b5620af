// The tensors of a load. They are added one by one to the request, and are no objects of Python: a
// state has a hundred thousand of them.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "bound.h"
#include "varve/checkpoint.h"

namespace varve::python {
namespace {

void AddTarget(LoadRequest& request, std::string fqn, DType dtype, Dims shape,
               std::uintptr_t address, std::optional<Strides> strides, std::optional<Dims> offsets,
               std::optional<Dims> sizes) {
  Box box = offsets && sizes ? Box{*std::move(offsets), *std::move(sizes)} : WholeBox(shape);
  request.targets.push_back({std::move(fqn), dtype, std::move(shape), std::move(box),
                             reinterpret_cast<void*>(address),
                             std::move(strides).value_or(Strides{})});
}

void Place(LoadRequest& request, const Dims& shape, const Dims& offsets) {
  for (TargetTensor& target : request.targets) {
    target.shape = shape;
    target.box.offsets = offsets;
  }
}

}  // namespace

void BindTensors(nb::module_& module) {
  nb::class_<LoadRequest>(module, "LoadRequest")
      .def(nb::init<>())
      .def("add", &AddTarget, nb::arg("fqn"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("address"), nb::arg("strides") = nb::none(), nb::arg("offsets") = nb::none(),
           nb::arg("sizes") = nb::none())
      .def("place", &Place, nb::arg("shape"), nb::arg("offsets"))
      .def_rw("objects", &LoadRequest::objects)
      .def_rw("missing", &LoadRequest::missing)
      .def_rw("mismatched", &LoadRequest::mismatched)
      .def_rw("known", &LoadRequest::known);
}

}  // namespace varve::python
