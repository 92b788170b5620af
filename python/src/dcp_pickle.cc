#include "dcp_pickle.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "interop/pickle/writer.h"

namespace varve::python {
namespace {

constexpr int kDeepest = 16;  // torch's own objects nest seven deep.

struct Field {
  PyObject* name = nullptr;
  bool is_optional = false;
};

/// A dataclass whose pickle is its fields.
struct Class {
  std::string module;
  std::string name;
  std::vector<Field> fields;
};

nb::object AttributeOf(PyObject* object, PyObject* name) {
  nb::object value = nb::steal(PyObject_GetAttr(object, name));
  if (!value.is_valid()) {
    throw nb::python_error();
  }
  return value;
}

/// Writes objects one inside the other. Those that are written must outlive it: strings are known
/// by their address.
class MetadataPickler {
 public:
  MetadataPickler(const nb::dict& classes, const nb::tuple& torch, Bytes* out)
      : out_(out),
        size_(nb::handle(torch[0]).ptr()),
        properties_(nb::handle(torch[1]).ptr()),
        layout_(nb::handle(torch[2]).ptr()),
        memory_format_(nb::handle(torch[3]).ptr()),
        dtype_(nb::handle(torch[4]).ptr()) {
    for (const auto& [type, described] : classes) {
      Class made{nb::cast<std::string>(described[0]), nb::cast<std::string>(described[1]), {}};
      for (const nb::handle name : nb::cast<nb::tuple>(described[2])) {
        made.fields.push_back({name.ptr(), false});
      }
      for (const nb::handle name : nb::cast<nb::tuple>(described[3])) {
        made.fields.push_back({name.ptr(), true});
      }
      classes_.emplace(type.ptr(), std::move(made));
    }
  }

  /// Returns false for what is not known here.
  bool Save(PyObject* object, int depth = 0) {  // NOLINT(misc-no-recursion): at most kDeepest.
    if (depth > kDeepest) {
      return false;
    }
    auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (object == Py_None) {
      out_.None();
      return true;
    }
    if (PyUnicode_CheckExact(object)) {
      return Text(object);
    }
    if (type == size_) {
      out_.Global("torch", "Size");
      if (!Tuple(object, depth)) {
        return false;
      }
      out_.Tuple1();
      out_.Reduce();
      return true;
    }
    if (const auto found = classes_.find(type); found != classes_.end()) {
      return Instance(object, found->second, depth);
    }
    if (type == properties_) {
      return Properties(object);
    }
    if (object == Py_True || object == Py_False) {
      out_.Bool(object == Py_True);
      return true;
    }
    if (PyLong_CheckExact(object)) {
      return Number(object);
    }
    if (PyTuple_CheckExact(object)) {
      return IsFirst(object, PyTuple_Size(object)) && Tuple(object, depth);
    }
    if (PyList_CheckExact(object)) {
      return IsFirst(object, PyList_Size(object)) && List(object, depth);
    }
    return PyDict_CheckExact(object) && IsFirst(object, PyDict_Size(object)) && Dict(object, depth);
  }

  Status Finish() { return out_.Finish(); }

 private:
  /// Returns false for a container that has been written: a pickle has it once, and here it would
  /// be written in full each time.
  bool IsFirst(PyObject* container, Py_ssize_t size) {
    return size == 0 || containers_.insert(container).second;
  }

  bool Text(PyObject* text) {
    if (const auto found = texts_.find(text); found != texts_.end()) {
      out_.Recall(found->second);
      return true;
    }
    Py_ssize_t size = 0;
    const char* const utf8 = PyUnicode_AsUTF8AndSize(text, &size);
    if (utf8 == nullptr) {
      PyErr_Clear();  // A lone surrogate.
      return false;
    }
    out_.Str({utf8, static_cast<std::size_t>(size)});
    texts_.emplace(text, out_.Remember());
    return true;
  }

  bool Number(PyObject* number) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    out_.Int(value);
    return overflow == 0;
  }

  bool Tuple(PyObject* tuple, int depth) {  // NOLINT(misc-no-recursion)
    const Py_ssize_t size = PyTuple_Size(tuple);
    if (size > 3) {
      out_.Mark();
    }
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!Save(PyTuple_GetItem(tuple, i), depth + 1)) {
        return false;
      }
    }
    switch (size) {
      case 0: out_.Tuple0(); break;
      case 1: out_.Tuple1(); break;
      case 2: out_.Tuple2(); break;
      case 3: out_.Tuple3(); break;
      default: out_.Tuple();
    }
    return true;
  }

  bool List(PyObject* list, int depth) {  // NOLINT(misc-no-recursion)
    const Py_ssize_t size = PyList_Size(list);
    out_.List();
    if (size == 0) {
      return true;
    }
    out_.Mark();
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!Save(PyList_GetItem(list, i), depth + 1)) {
        return false;
      }
    }
    out_.Appends();
    return true;
  }

  bool Dict(PyObject* dict, int depth) {  // NOLINT(misc-no-recursion)
    constexpr int kPortion = 1000;        // As in Python: an unpickler's stack stays small.
    out_.Dict();
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    int count = 0;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value) != 0; ++count) {
      if (count % kPortion == 0) {
        if (count > 0) {
          out_.SetItems();
        }
        out_.Mark();
      }
      if (!Save(key, depth + 1) || !Save(value, depth + 1)) {
        return false;
      }
    }
    if (count > 0) {
      out_.SetItems();
    }
    return true;
  }

  bool Instance(PyObject* object, const Class& described,  // NOLINT(misc-no-recursion)
                int depth) {
    const nb::object state = AttributeOf(object, state_name_.ptr());
    out_.Global(described.module, described.name);
    out_.Tuple0();
    out_.NewObject();
    if (described.fields.empty()) {
      return PyDict_Size(state.ptr()) == 0;
    }
    out_.Dict();
    out_.Mark();
    Py_ssize_t known = 0;
    for (const Field& field : described.fields) {
      PyObject* const value = PyDict_GetItemWithError(state.ptr(), field.name);
      if (value == nullptr) {
        PyErr_Clear();
        return false;
      }
      ++known;
      if (field.is_optional && value == Py_None) {
        continue;
      }
      if (!Text(field.name) || !Save(value, depth + 1)) {
        return false;
      }
    }
    out_.SetItems();
    out_.Build();
    return PyDict_Size(state.ptr()) == known;
  }

  /// Writes TensorProperties.__getstate__, with the enum that stands for the memory format.
  bool Properties(PyObject* object) {
    const nb::object dtype = AttributeOf(object, dtype_name_.ptr());
    const nb::object layout = AttributeOf(object, layout_name_.ptr());
    const nb::object grad = AttributeOf(object, grad_name_.ptr());
    const nb::object memory_format = AttributeOf(object, format_name_.ptr());
    const nb::object pinned = AttributeOf(object, pinned_name_.ptr());
    const nb::object state = AttributeOf(object, state_name_.ptr());
    if (PyDict_Size(state.ptr()) != 5 || !layout.is(layout_) || !memory_format.is(memory_format_) ||
        !PyBool_Check(grad.ptr()) || !PyBool_Check(pinned.ptr())) {
      return false;
    }
    constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata";
    out_.Global(kMetadata, "TensorProperties");
    out_.Tuple0();
    out_.NewObject();
    out_.Mark();
    if (!DTypeOf(dtype)) {
      return false;
    }
    out_.Constant(&layout_memo_, "torch.serialization", "_get_layout",
                  [this] { out_.Str("torch.strided"); });
    out_.Bool(grad.ptr() == Py_True);
    out_.Constant(&format_memo_, kMetadata, "_MEM_FORMAT_ENCODING", [this] { out_.Int(0); });
    out_.Bool(pinned.ptr() == Py_True);
    out_.Tuple();
    out_.Build();
    return true;
  }

  bool DTypeOf(const nb::object& dtype) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(dtype.ptr())) != dtype_) {
      return false;
    }
    auto found = dtypes_.find(dtype.ptr());
    if (found == dtypes_.end()) {
      constexpr std::string_view kPrefix = "torch.";
      const std::string name = nb::cast<std::string>(nb::str(dtype));
      if (!name.starts_with(kPrefix)) {
        return false;
      }
      found = dtypes_.emplace(dtype.ptr(), name.substr(kPrefix.size())).first;
    }
    out_.Global("torch", found->second);
    return true;
  }

  static nb::object Interned(const char* name) {
    return nb::steal(PyUnicode_InternFromString(name));
  }

  PickleWriter out_;
  const nb::object state_name_ = Interned("__dict__");
  const nb::object dtype_name_ = Interned("dtype");
  const nb::object layout_name_ = Interned("layout");
  const nb::object grad_name_ = Interned("requires_grad");
  const nb::object format_name_ = Interned("memory_format");
  const nb::object pinned_name_ = Interned("pin_memory");
  PyObject* size_;
  PyObject* properties_;
  PyObject* layout_;
  PyObject* memory_format_;
  PyObject* dtype_;
  std::unordered_map<PyObject*, Class> classes_;
  std::unordered_map<PyObject*, PickleWriter::Memo> texts_;
  std::unordered_map<PyObject*, std::string> dtypes_;
  std::unordered_set<PyObject*> containers_;
  std::optional<PickleWriter::Memo> layout_memo_;
  std::optional<PickleWriter::Memo> format_memo_;
};

}  // namespace

std::optional<nb::bytes> PickleDcpMetadata(nb::handle metadata, const nb::dict& classes,
                                           const nb::tuple& torch) {
  Bytes bytes;
  MetadataPickler pickler(classes, torch, &bytes);
  if (!pickler.Save(metadata.ptr()) || !pickler.Finish().ok()) {
    return std::nullopt;
  }
  return ToBytes(bytes);
}

}  // namespace varve::python
