// Python objects to values and back. The common types are handled here; everything that needs
// another module (datetime, numpy, torch, pickle) by varve/_values.py, which sees them as
// (kind, text, items).

#include <nanobind/stl/string.h>

#include "bindings.h"

namespace varve::python {
namespace {

constexpr int kMaxDepth = 200;  // Below the decoder's limit, so that what is saved can be loaded.

nb::object Hook(const char* name) { return nb::module_::import_("varve._values").attr(name); }

/// The leaf objects of varve/_values.py: a structure holds one per tensor, so they are told apart
/// without calling Python. Never freed: the module lives as long as the interpreter.
struct Leaves {
  nb::object torch, numpy, object;
};

const Leaves& TheLeaves() {
  static const auto* leaves = new Leaves{nb::object(Hook("LEAVES")["torch"]),
                                         nb::object(Hook("LEAVES")["numpy"]), Hook("OBJECT")};
  return *leaves;
}

std::string BytesOf(nb::handle object) {
  const nb::bytes bytes = nb::cast<nb::bytes>(object);
  return {bytes.c_str(), bytes.size()};
}

std::string IntBytes(nb::handle object) {
  // The shortest two's complement form, as Value::Int has it: a negative number needs as many bits
  // as its complement, and either one more for the sign.
  const bool negative = nb::cast<bool>(object.attr("__lt__")(0));
  const nb::object magnitude =
      negative ? nb::object(object.attr("__invert__")()) : nb::borrow(object);
  const auto bits = nb::cast<std::size_t>(magnitude.attr("bit_length")());
  return BytesOf(object.attr("to_bytes")(bits / 8 + 1, "little", nb::arg("signed") = true));
}

nb::object TextFrom(const std::string& text) {
  PyObject* object =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass");
  if (object == nullptr) {
    throw nb::python_error();
  }
  return nb::steal(object);
}

/// Returns repr(key), without the call for the common case.
std::string KeyText(nb::handle key) {
  return PyUnicode_CheckExact(key.ptr()) ? "'" + TextOf(key) + "'"
                                         : nb::cast<std::string>(nb::repr(key));
}

class Encoder {
 public:
  explicit Encoder(bool allow_pickle) : allow_pickle_(allow_pickle) {}

  Value Convert(nb::handle object, const std::string& path, int depth) {
    if (depth > kMaxDepth) {
      Raise(InvalidArgument("\"" + path + "\" nests deeper than 200 levels"));
    }
    Value value;
    PyObject* raw = object.ptr();
    // Exact types only: a subclass would come back as its base, so it takes the hook's verdict.
    if (raw == Py_None) {
      value.kind = ValueKind::kNone;
    } else if (raw == Py_True) {
      value.kind = ValueKind::kTrue;
    } else if (raw == Py_False) {
      value.kind = ValueKind::kFalse;
    } else if (PyLong_CheckExact(raw)) {
      value.kind = ValueKind::kInt;
      value.text = IntBytes(object);
    } else if (PyFloat_CheckExact(raw)) {
      value = Value::Float(PyFloat_AsDouble(raw));
    } else if (PyComplex_CheckExact(raw)) {
      value.kind = ValueKind::kComplex;
      value.number = PyComplex_RealAsDouble(raw);
      value.imaginary = PyComplex_ImagAsDouble(raw);
    } else if (PyUnicode_CheckExact(raw)) {
      value = Value::Str(TextOf(object));
    } else if (PyBytes_CheckExact(raw)) {
      value.kind = ValueKind::kBytes;
      value.text = BytesOf(object);
    } else if (PyByteArray_CheckExact(raw)) {
      value.kind = ValueKind::kByteArray;
      value.text.assign(PyByteArray_AsString(raw), static_cast<std::size_t>(PyByteArray_Size(raw)));
    } else if (PyList_CheckExact(raw)) {
      Sequence(ValueKind::kList, object, path, depth, &value);
    } else if (PyTuple_CheckExact(raw)) {
      Sequence(ValueKind::kTuple, object, path, depth, &value);
    } else if (PyDict_CheckExact(raw)) {
      Mapping(ValueKind::kDict, object, path, depth, &value);
    } else if (Py_TYPE(raw) == &PySet_Type) {
      Sequence(ValueKind::kSet, nb::list(nb::borrow(object)), path, depth, &value);
    } else if (PyFrozenSet_CheckExact(raw)) {
      Sequence(ValueKind::kFrozenSet, nb::list(nb::borrow(object)), path, depth, &value);
    } else if (raw == TheLeaves().torch.ptr() || raw == TheLeaves().numpy.ptr()) {
      value.kind = ValueKind::kTensorLeaf;
      value.text = raw == TheLeaves().torch.ptr() ? "torch" : "numpy";
    } else if (raw == TheLeaves().object.ptr()) {
      value.kind = ValueKind::kObjectLeaf;
    } else {
      Other(object, path, depth, &value);
    }
    return value;
  }

 private:
  void Sequence(ValueKind kind, nb::handle items, const std::string& path, int depth,
                Value* value) {
    value->kind = kind;
    std::size_t i = 0;
    for (const nb::handle item : nb::borrow<nb::iterable>(items)) {
      value->items.push_back(Convert(item, path + "[" + std::to_string(i++) + "]", depth + 1));
    }
  }

  void Mapping(ValueKind kind, nb::handle mapping, const std::string& path, int depth,
               Value* value) {
    value->kind = kind;
    for (const nb::handle pair : nb::borrow<nb::iterable>(mapping.attr("items")())) {
      const nb::object key = pair[0];
      const std::string item_path = path + "[" + KeyText(key) + "]";
      value->items.push_back(Convert(key, item_path, depth + 1));
      if (value->items.back().kind == ValueKind::kNamed) {
        // Its part of a name, which the class decides: str() of a member of an enum.
        value->items.back().items.push_back(Value::Str(TextOf(Hook("key_text")(key, item_path))));
      }
      value->items.push_back(Convert(nb::object(pair[1]), item_path, depth + 1));
    }
  }

  void Other(nb::handle object, const std::string& path, int depth, Value* value) {
    const nb::object parts = Hook("to_parts")(object, path, allow_pickle_);
    value->kind = static_cast<ValueKind>(nb::cast<int>(parts[0]));
    value->text = BytesOf(nb::object(parts[1]));
    if (const nb::object mapping = parts[3]; !mapping.is_none()) {
      Mapping(value->kind, mapping, path, depth, value);
    } else {
      Sequence(value->kind, nb::object(parts[2]), path, depth, value);
    }
  }

  bool allow_pickle_;
};

nb::list Items(const Value& value, bool allow_pickle) {
  nb::list items;
  for (const Value& item : value.items) {
    items.append(FromValue(item, allow_pickle));
  }
  return items;
}

nb::object MakeDict(const Value& value, bool allow_pickle) {
  nb::dict dict;
  for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
    const Value& key = value.items[i];
    if (key.kind == ValueKind::kNamed) {
      const nb::object made = Hook("key_from_parts")(ToBytes(key.text), Items(key, allow_pickle));
      dict[made] = FromValue(value.items[i + 1], allow_pickle);
      continue;
    }
    dict[FromValue(key, allow_pickle)] = FromValue(value.items[i + 1], allow_pickle);
  }
  return dict;
}

nb::object Builtin(const char* name) { return nb::module_::import_("builtins").attr(name); }

}  // namespace

std::string TextOf(nb::handle object) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size); utf8 != nullptr) {
    return {utf8, static_cast<std::size_t>(size)};
  }
  PyErr_Clear();
  return BytesOf(object.attr("encode")("utf-8", "surrogatepass"));
}

Value ToValue(nb::handle object, const std::string& path, bool allow_pickle) {
  return Encoder(allow_pickle).Convert(object, path, 0);
}

nb::object FromValue(const Value& value, bool allow_pickle) {
  switch (value.kind) {
    case ValueKind::kNone: return nb::none();
    case ValueKind::kTrue: return nb::bool_(true);
    case ValueKind::kFalse: return nb::bool_(false);
    case ValueKind::kInt:
      return Builtin("int").attr("from_bytes")(ToBytes(value.text), "little",
                                               nb::arg("signed") = true);
    case ValueKind::kFloat: return nb::float_(value.number);
    case ValueKind::kComplex:
      return nb::steal(PyComplex_FromDoubles(value.number, value.imaginary));
    case ValueKind::kStr: return TextFrom(value.text);
    case ValueKind::kObjectLeaf: return TheLeaves().object;
    case ValueKind::kTensorLeaf:
      if (value.text == "torch" || value.text == "numpy") {
        return value.text == "torch" ? TheLeaves().torch : TheLeaves().numpy;
      }
      return Hook("from_parts")(static_cast<int>(value.kind), ToBytes(value.text), nb::list(),
                                allow_pickle);
    case ValueKind::kBytes: return ToBytes(value.text);
    case ValueKind::kByteArray:
      return nb::steal(PyByteArray_FromStringAndSize(value.text.data(),
                                                     static_cast<Py_ssize_t>(value.text.size())));
    case ValueKind::kList: return Items(value, allow_pickle);
    case ValueKind::kTuple: return nb::tuple(Items(value, allow_pickle));
    case ValueKind::kSet: return Builtin("set")(Items(value, allow_pickle));
    case ValueKind::kFrozenSet: return Builtin("frozenset")(Items(value, allow_pickle));
    case ValueKind::kDict: return MakeDict(value, allow_pickle);
    case ValueKind::kOrderedDict:
    case ValueKind::kCounter:
    case ValueKind::kDefaultDict:
    case ValueKind::kNamedDict:
    case ValueKind::kWrapped:
      return Hook("mapping_from_parts")(static_cast<int>(value.kind), ToBytes(value.text),
                                        MakeDict(value, allow_pickle));
    default:
      return Hook("from_parts")(static_cast<int>(value.kind), ToBytes(value.text),
                                Items(value, allow_pickle), allow_pickle);
  }
}

void BindValues(nb::module_& module) {
  module.def(
      "encode_value",
      [](nb::handle object, const std::string& path, bool allow_pickle) {
        return ToBytes(EncodeValue(ToValue(object, path, allow_pickle)));
      },
      nb::arg("object").none(), nb::arg("path"), nb::arg("allow_pickle") = false);
  module.def(
      "decode_value",
      [](const nb::bytes& bytes, bool allow_pickle) {
        return FromValue(ValueOrRaise(DecodeValue({bytes.c_str(), bytes.size()})), allow_pickle);
      },
      nb::arg("bytes"), nb::arg("allow_pickle") = false);
}

}  // namespace varve::python
