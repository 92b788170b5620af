// The tensors and values of a save, and the tensors of a load. They are added one by one to the
// state or the request, and are no objects of Python: a state has a hundred thousand of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "bound.h"
#include "plain_items.h"
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

void Add(State& state, std::string fqn, PlainTensor plain) {
  TensorSource source = SourceOf(plain);
  Box box = plain.box ? *std::move(plain.box) : WholeBox(plain.shape);
  state.tensors.push_back(
      {std::move(fqn), plain.dtype, std::move(plain.shape), std::move(box), std::move(source)});
}

void Add(LoadRequest& request, std::string fqn, PlainTensor plain) {
  AddPlainTarget(request, std::move(fqn), std::move(plain));
}

/// Adds a tensor that is there. Returns its storage, which must be kept as long as `into` is used;
/// None for none.
template <class Into>
nb::object AddFound(Into& into, std::string fqn, std::optional<PlainTensor> plain) {
  if (!plain) {
    return nb::none();
  }
  nb::object storage = std::move(plain->storage);
  Add(into, std::move(fqn), *std::move(plain));
  return storage;
}

/// Adds a whole plain tensor of torch in row-major memory, which is what nearly all are; likewise,
/// None for all others, which are added otherwise.
template <class Into>
nb::object AddPlain(Into& into, std::string fqn, nb::handle tensor, bool devices) {
  return AddFound(into, std::move(fqn), PlainTensorOf(tensor, devices));
}

/// A dict of a million plain values must not take the memory of a million tensors.
constexpr std::size_t kMostRoom = 65'536;

/// Makes room for as many more as `entries` says that it has, at most kMostRoom.
template <class Item>
void MakeRoom(nb::handle entries, std::vector<Item>* items) {
  const nb::object hint = nb::module_::import_("operator").attr("length_hint");
  const auto more = nb::cast<std::size_t>(hint(entries, 0));
  const std::size_t wanted = items->size() + std::min(more, kMostRoom);
  if (wanted > items->capacity()) {
    items->reserve(std::max(wanted, 2 * items->capacity()));
  }
}

/// Adds the plain tensors of a dict to a save, and DTensors of which this rank holds one plain box,
/// up to the first other entry.
///
/// `names` has what each name of the state is, `items` gets `leaf` for each key, `taken` the
/// storages; `places` is HeldTensorOf's. Returns the first other (key, value), None at the end.
nb::object AddPlainItems(State& state, nb::handle entries, const std::optional<std::string>& path,
                         nb::dict names, nb::dict items, nb::handle leaf, nb::list taken,
                         bool devices, nb::dict places) {
  const nb::str word("tensor");
  MakeRoom(entries, &state.tensors);
  return TakeWhile(entries, [&](nb::handle key, nb::handle tensor) {
    auto name = NameAt(path, key);
    if (!name) {
      return false;
    }
    const nb::str text(name->c_str(), name->size());
    if (names.contains(text)) {
      return false;
    }
    const nb::object storage =
        AddFound(state, *std::move(name), HeldTensorOf(tensor, devices, places));
    if (storage.is_none()) {
      return false;
    }
    names[text] = word;
    items[key] = leaf;
    taken.append(storage);
    return true;
  });
}

/// Returns whether a name is that of one rank's value: "rank3", "rng/rank3" (RANK_PART of
/// _tree.py).
bool IsOfOneRank(std::string_view name) {
  const std::size_t last = name.find_last_not_of("0123456789");
  return last != std::string_view::npos && last + 1 < name.size() &&
         name.substr(0, last + 1).ends_with("rank");
}

/// Adds the plain tensors of a dict that are to be filled, and for which `stored` has a `leaf`
/// under the same key, up to the first other entry; likewise.
///
/// `taken` gets (name, tensor), `keep` the storages.
nb::object MatchPlainItems(LoadRequest& request, nb::handle entries,
                           const std::optional<std::string>& path, nb::dict stored, nb::handle leaf,
                           nb::list taken, nb::list keep, bool devices, nb::dict places) {
  MakeRoom(entries, &request.targets);
  return TakeWhile(entries, [&](nb::handle key, nb::handle tensor) {
    auto name = NameAt(path, key);
    if (!name) {
      return false;
    }
    PyObject* const found = PyDict_GetItemWithError(stored.ptr(), key.ptr());
    if (found == nullptr && PyErr_Occurred() != nullptr) {
      throw nb::python_error();
    }
    if (found == nullptr || Py_TYPE(found) != Py_TYPE(leaf.ptr()) || IsOfOneRank(*name) ||
        IsViewOfDTensor(tensor)) {
      return false;
    }
    const nb::str text(name->c_str(), name->size());
    const nb::object storage =
        AddFound(request, *std::move(name), HeldTensorOf(tensor, devices, places));
    if (storage.is_none()) {
      return false;
    }
    taken.append(nb::make_tuple(text, tensor));
    keep.append(storage);
    return true;
  });
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

std::optional<std::string> NameAt(const std::optional<std::string>& path, nb::handle key) {
  if (!PyUnicode_CheckExact(key.ptr())) {
    return std::nullopt;
  }
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();  // A lone surrogate.
    return std::nullopt;
  }
  if (PyUnicode_GetLength(key.ptr()) != size) {
    return std::nullopt;
  }
  std::string name = path ? *path + "." : std::string();
  name.append(text, static_cast<std::size_t>(size));
  return name;
}

void BindTensors(nb::module_& parent) {
  nb::module_ module = parent.def_submodule("states");
  BindPlainTensors(module);
  nb::class_<State>(module, "State")
      .def(nb::init<>())
      .def("add", &AddSource, nb::arg("fqn"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("address"), nb::arg("strides") = nb::none(), nb::arg("offsets") = nb::none(),
           nb::arg("sizes") = nb::none(), nb::arg("cuda") = nb::none())
      .def("add_plain", &AddPlain<State>, nb::arg("fqn"), nb::arg("tensor"), nb::arg("devices"))
      .def("add_plain_items", &AddPlainItems, nb::arg("entries"), nb::arg("path").none(),
           nb::arg("names"), nb::arg("items"), nb::arg("leaf"), nb::arg("taken"),
           nb::arg("devices"), nb::arg("places"))
      .def("note_copied", &NoteCopied<State>, nb::arg("problem"))
      .def(
          "add_object",
          [](State& state, std::string fqn, const nb::bytes& encoded,
             std::vector<std::string> storages) {
            state.objects.push_back({std::move(fqn), BytesOf(encoded), std::move(storages)});
          },
          nb::arg("fqn"), nb::arg("encoded"), nb::arg("storages") = std::vector<std::string>())
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
      .def("add_plain", &AddPlain<LoadRequest>, nb::arg("fqn"), nb::arg("tensor"),
           nb::arg("devices"))
      .def("match_plain_items", &MatchPlainItems, nb::arg("entries"), nb::arg("path").none(),
           nb::arg("stored"), nb::arg("leaf"), nb::arg("taken"), nb::arg("keep"),
           nb::arg("devices"), nb::arg("places"))
      .def("clear_targets", [](LoadRequest& request) { request.targets.clear(); })
      .def("note_copied", &NoteCopied<LoadRequest>, nb::arg("problem"))
      .def("place", &Place, nb::arg("shape"), nb::arg("offsets"))
      .def_rw("objects", &LoadRequest::objects)
      .def_rw("missing", &LoadRequest::missing)
      .def_rw("mismatched", &LoadRequest::mismatched)
      .def_rw("ignored", &LoadRequest::ignored)
      .def_rw("one_will_do", &LoadRequest::one_will_do);
}

}  // namespace varve::python
