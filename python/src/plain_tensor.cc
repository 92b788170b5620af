// Torch gives the memory of a tensor to C callers by DLPack's exchange interface: a table of
// functions in a capsule, torch.Tensor.__dlpack_c_exchange_api__ (torch 2.10 and later). A state
// has tens of thousands of tensors, and ten attributes read from Python cost a microsecond each
// tensor. The structs follow DLPack 1.2 (dlpack.h); the header names the version and is the same in
// all.

#include "plain_tensor.h"

#include <cstdint>
#include <map>
#include <new>
#include <utility>

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>

#include "pipeline/host_copies.h"

namespace varve::python {
namespace {

struct DlDevice {
  std::int32_t type;  // 1: host memory, 2: CUDA.
  std::int32_t id;
};

struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t dimensions;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct ExchangeInterface {
  std::uint32_t major;
  std::uint32_t minor;
  void* older;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*borrow)(void* object, DlTensor* out);
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

constexpr std::int32_t kHost = 1;
constexpr std::int32_t kCuda = 2;

/// Arguments of set_torch. Never destroyed: the interpreter may end first.
struct Torch {
  const ExchangeInterface* exchange = nullptr;
  PyObject* tensor_type = nullptr;
  PyObject* parameter_type = nullptr;
  std::map<std::pair<int, int>, DType> dtypes;  // By code and bits.
  PyObject* stored = nullptr;                   // The dtypes of torch that these are.
  // Called as they are: a lookup by name for each tensor would cost more than the call.
  PyObject* is_neg = nullptr;
  PyObject* is_conj = nullptr;
  PyObject* storage_offset = nullptr;
  PyObject* untyped_storage = nullptr;
  PyObject* storage_nbytes = nullptr;
  PyObject* hasattr = nullptr;
  PyObject* dtype = nullptr;
  PyObject* global_shape = nullptr;
};
Torch& g_torch = *new Torch;

/// Arguments of set_dtensors, likewise.
struct DTensors {
  PyObject* type = nullptr;
  PyObject* place_of = nullptr;
  PyObject* is_view = nullptr;
  PyObject* local_tensor = nullptr;
  PyObject* spec = nullptr;
  PyObject* mesh = nullptr;
  PyObject* placements = nullptr;
  PyObject* shape = nullptr;
};
DTensors& g_dtensors = *new DTensors;

/// The box of a tensor that this rank holds.
struct HeldPlace {
  Dims shape;
  Box box;
};

void SetDTensors(const nb::object& type, const nb::object& place_of) {
  if (g_dtensors.type == type.ptr()) {
    return;
  }
  g_dtensors.type = nb::object(type).release().ptr();
  g_dtensors.place_of = nb::object(place_of).release().ptr();
  g_dtensors.is_view = nb::object(type.attr("_is_view")).release().ptr();
  g_dtensors.local_tensor = PyUnicode_InternFromString("_local_tensor");
  g_dtensors.spec = PyUnicode_InternFromString("_spec");
  g_dtensors.mesh = PyUnicode_InternFromString("mesh");
  g_dtensors.placements = PyUnicode_InternFromString("placements");
  g_dtensors.shape = PyUnicode_InternFromString("shape");
}

nb::object Attribute(nb::handle object, PyObject* name) {
  PyObject* const value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) {
    throw nb::python_error();
  }
  return nb::steal(value);
}

/// Takes the interface from torch's capsule. One of another major version is left alone.
void SetTorch(const nb::object& capsule, const nb::object& tensor_type,
              const nb::object& parameter_type, std::map<std::pair<int, int>, DType> dtypes,
              const nb::frozenset& stored) {
  auto* const exchange = static_cast<const ExchangeInterface*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (exchange == nullptr) {
    throw nb::python_error();
  }
  if (exchange->major != 1 || exchange->borrow == nullptr || exchange->current_stream == nullptr) {
    return;
  }
  g_torch.tensor_type = nb::object(tensor_type).release().ptr();
  g_torch.parameter_type = nb::object(parameter_type).release().ptr();
  g_torch.dtypes = std::move(dtypes);
  g_torch.stored = nb::object(stored).release().ptr();
  const auto method = [](nb::handle type, const char* name) {
    return nb::object(type.attr(name)).release().ptr();
  };
  g_torch.is_neg = method(tensor_type, "is_neg");
  g_torch.is_conj = method(tensor_type, "is_conj");
  g_torch.storage_offset = method(tensor_type, "storage_offset");
  g_torch.untyped_storage = method(tensor_type, "untyped_storage");
  g_torch.storage_nbytes = method(nb::module_::import_("torch").attr("UntypedStorage"), "nbytes");
  g_torch.hasattr = method(nb::module_::import_("builtins"), "hasattr");
  g_torch.dtype = PyUnicode_InternFromString("dtype");
  g_torch.global_shape = PyUnicode_InternFromString("global_shape");
  g_torch.exchange = exchange;
}

bool IsRowMajor(const DlTensor& tensor) {
  std::int64_t step = 1;
  for (std::int32_t d = tensor.dimensions; d-- > 0;) {
    if (tensor.shape[d] == 0) {
      return true;
    }
    if (tensor.shape[d] != 1 && tensor.strides[d] != step) {
      return false;
    }
    step *= tensor.shape[d];
  }
  return true;
}

/// Calls a function of torch with objects. Raises what it raises.
template <class... Arguments>
nb::object Call(PyObject* function, Arguments... arguments) {
  PyObject* const all[] = {nullptr, arguments...};
  PyObject* const result = PyObject_Vectorcall(
      function, &all[1], sizeof...(Arguments) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (result == nullptr) {
    throw nb::python_error();
  }
  return nb::steal(result);
}

template <class... Arguments>
bool IsTrue(PyObject* function, Arguments... arguments) {
  return Call(function, arguments...).ptr() == Py_True;
}

template <class... Arguments>
std::uint64_t NumberOf(PyObject* function, Arguments... arguments) {
  return nb::cast<std::uint64_t>(Call(function, arguments...));
}

/// Returns what the places have for a DTensor, asking for it once; None where nothing can be said.
nb::object HeldPlaceOf(nb::handle tensor, const nb::dict& places) {
  const nb::object spec = Attribute(tensor, g_dtensors.spec);
  const nb::object mesh = Attribute(spec, g_dtensors.mesh);
  const nb::object placements = Attribute(spec, g_dtensors.placements);
  const nb::object shape = Attribute(tensor, g_dtensors.shape);
  const nb::tuple key = nb::make_tuple(mesh, placements, shape);
  if (PyObject* const known = PyDict_GetItemWithError(places.ptr(), key.ptr())) {
    return nb::borrow(known);
  }
  if (PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  nb::object place = Call(g_dtensors.place_of, mesh.ptr(), placements.ptr(), shape.ptr());
  places[key] = place;
  return place;
}

/// DLPack calls a uint4 a uint8: torch's own dtype tells them apart.
bool IsStored(PyObject* tensor) {
  const nb::object dtype = Attribute(tensor, g_torch.dtype);
  const int found = PySet_Contains(g_torch.stored, dtype.ptr());
  if (found < 0) {
    throw nb::python_error();
  }
  return found == 1;
}

bool IsComplex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

}  // namespace

std::optional<PlainTensor> PlainTensorOf(nb::handle tensor, bool devices) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
  if (g_torch.exchange == nullptr ||
      (type != g_torch.tensor_type && type != g_torch.parameter_type)) {
    return std::nullopt;
  }
  DlTensor found{};
  if (g_torch.exchange->borrow(tensor.ptr(), &found) != 0) {
    PyErr_Clear();  // Of a layout or dtype that DLPack has no name for.
    return std::nullopt;
  }
  const auto dtype = g_torch.dtypes.find({found.code, found.bits});
  const bool here = found.device.type == kHost || (devices && found.device.type == kCuda);
  if (dtype == g_torch.dtypes.end() || found.lanes != 1 || !here || !IsRowMajor(found)) {
    return std::nullopt;
  }
  PlainTensor plain;
  plain.dtype = dtype->second;
  std::uint64_t bytes = ItemSize(plain.dtype);
  for (std::int32_t d = 0; d < found.dimensions; ++d) {
    plain.shape.push_back(static_cast<std::uint64_t>(found.shape[d]));
    bytes *= plain.shape.back();
  }
  plain.data = static_cast<std::byte*>(found.data) + found.byte_offset;
  // A view that is conjugated or negated when it is read; a shard with a place of its own; a
  // storage that ends before the last element, of which Python tells why.
  PyObject* const object = tensor.ptr();
  if (IsTrue(g_torch.is_neg, object) ||
      (IsComplex(plain.dtype) && IsTrue(g_torch.is_conj, object)) ||
      IsTrue(g_torch.hasattr, object, g_torch.global_shape) || !IsStored(object) ||
      (bytes > 0 && found.data == nullptr)) {
    return std::nullopt;
  }
  plain.storage = Call(g_torch.untyped_storage, object);
  const std::uint64_t there = NumberOf(g_torch.storage_nbytes, plain.storage.ptr());
  const std::uint64_t offset = NumberOf(g_torch.storage_offset, object);
  if (there < bytes + offset * ItemSize(plain.dtype)) {
    return std::nullopt;
  }
  if (found.device.type == kCuda) {
    OnCuda cuda{found.device.id, nullptr};
    if (g_torch.exchange->current_stream(kCuda, found.device.id, &cuda.stream) != 0) {
      PyErr_Clear();
      return std::nullopt;
    }
    plain.cuda = cuda;
  }
  return plain;
}

std::optional<PlainTensor> HeldTensorOf(nb::handle tensor, bool devices, const nb::dict& places) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) != g_dtensors.type) {
    return PlainTensorOf(tensor, devices);
  }
  auto plain = PlainTensorOf(Attribute(tensor, g_dtensors.local_tensor), devices);
  if (!plain) {
    return std::nullopt;
  }
  const nb::object found = HeldPlaceOf(tensor, places);
  if (found.is_none()) {
    return std::nullopt;
  }
  const auto& place = nb::cast<const HeldPlace&>(found);
  if (plain->shape != place.box.sizes) {
    return std::nullopt;
  }
  plain->shape = place.shape;
  plain->box = place.box;
  return plain;
}

bool IsViewOfDTensor(nb::handle tensor) {
  return reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) == g_dtensors.type &&
         IsTrue(g_dtensors.is_view, tensor.ptr());
}

void BindPlainTensors(nb::module_& module) {
  nb::class_<HeldPlace>(module, "Place")
      .def(
          "__init__",
          [](HeldPlace* place, Dims shape, Dims offsets, Dims sizes) {
            new (place) HeldPlace{std::move(shape), {std::move(offsets), std::move(sizes)}};
          },
          nb::arg("shape"), nb::arg("offsets"), nb::arg("sizes"));
  module.def("set_dtensors", &SetDTensors, nb::arg("dtensor"), nb::arg("place_of"));
  module.def("set_torch", &SetTorch, nb::arg("capsule"), nb::arg("tensor"), nb::arg("parameter"),
             nb::arg("dtypes"), nb::arg("stored"));
  module.def("device_problem", [] {
    const GilReleased release;
    return DeviceProblem();
  });
}

}  // namespace varve::python
