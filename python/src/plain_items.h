// Loops over the entries of a dict: a call of Python for each tensor costs more than all the rest
// of it.
#pragma once

#include <optional>
#include <string>

#include "bindings.h"

namespace varve::python {

/// Returns the name of an entry at `path`; nothing where the key is no str of ASCII.
std::optional<std::string> NameAt(const std::optional<std::string>& path, nb::handle key);

/// Returns whether an object has an attribute by which torch's planners ask it what it is a part
/// of.
inline bool HasAttribute(nb::handle object, const char* name) {
  return PyObject_HasAttrString(object.ptr(), name) != 0;
}

/// Takes (key, value) pairs as long as `take` returns true for them. Returns the first other pair,
/// None at the end.
template <class Take>
nb::object TakeWhile(nb::handle entries, const Take& take) {
  while (PyObject* const next = PyIter_Next(entries.ptr())) {
    nb::object entry = nb::steal(next);
    const bool is_pair = PyTuple_Check(next) && PyTuple_Size(next) == 2;
    if (!is_pair || !take(PyTuple_GetItem(next, 0), PyTuple_GetItem(next, 1))) {
      return entry;
    }
  }
  if (PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  return nb::none();
}

}  // namespace varve::python
