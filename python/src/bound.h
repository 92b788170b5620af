// Structs of the C++ API as Python classes. Their fields are typed in varve/_core/, which a test
// compares with the classes here.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace varve::python {

/// Returns the values that a field takes, for people: "True or False".
template <class D>
std::string WantedFor() {
  if constexpr (requires { Names<D>::kAll; }) {
    std::string text;
    std::size_t left = std::size(Names<D>::kAll);
    for (const auto& [name, value] : Names<D>::kAll) {
      text += IsBool(name) ? name : "\"" + std::string(name) + "\"";
      text += --left > 1 ? ", " : (left == 1 ? " or " : "");
    }
    return text;
  } else if constexpr (std::is_same_v<D, bool>) {
    return "True or False";
  } else if constexpr (std::is_same_v<D, std::chrono::milliseconds>) {
    return "a number of seconds from 0 on";
  } else if constexpr (std::is_same_v<D, std::string>) {
    return "a str";
  } else if constexpr (requires {
                         typename D::value_type;
                         *std::declval<D&>();
                       }) {
    return "None or " + WantedFor<typename D::value_type>();  // Of std::optional.
  } else if constexpr (std::is_integral_v<D>) {
    return std::is_unsigned_v<D> ? "a whole number from 0 on" : "a whole number";
  } else {
    return "a value of another type";
  }
}

/// How a field looks in Python: as nanobind has it. A form may say which values it takes, kWanted.
struct AsIs {
  template <class D>
  static nb::object ToPython(const D& value) {
    return nb::cast(value);
  }
  template <class D>
  static bool FromPython(nb::handle given, D* out) {
    return nb::try_cast(given, *out);
  }
};

/// A path, or a list of paths; see ToPath.
struct AsPath {
  static nb::object ToPython(const std::string& path) { return ToPath(path); }
  static nb::object ToPython(const std::vector<std::string>& paths) {
    nb::list out;
    for (const std::string& path : paths) {
      out.append(ToPath(path));
    }
    return out;
  }
  static bool FromPython(nb::handle given, std::string* out) {
    FsPath path;
    const bool fits = nb::try_cast(given, path);
    *out = std::move(path.text);
    return fits;
  }
  static bool FromPython(nb::handle given, std::vector<std::string>* out) {
    std::vector<FsPath> paths;
    const bool fits = nb::try_cast(given, paths);
    for (FsPath& path : paths) {
      out->push_back(std::move(path.text));
    }
    return fits;
  }
};

/// A message for people; see ToText.
struct AsMessage : AsIs {
  static nb::object ToPython(const std::string& text) { return ToText(text); }
};

/// A list of numbers as a tuple.
struct AsTuple : AsIs {
  template <class D>
  static nb::object ToPython(const D& value) {
    return nb::tuple(nb::cast(value));
  }
};

/// 16 bytes, or as reports have them: 32 hex digits.
struct AsSaveId {
  static constexpr const char* kWanted = "16 bytes";

  static nb::object ToPython(const SaveId& id) { return nb::cast(ToString(id)); }
  static nb::object ToPython(const std::optional<SaveId>& id) {
    return id ? ToPython(*id) : nb::none();
  }
  static bool FromPython(nb::handle given, SaveId* out) {
    nb::object bytes = nb::borrow(given);
    if (nb::isinstance<nb::str>(given)) {
      bytes = nb::borrow(reinterpret_cast<PyObject*>(&PyBytes_Type)).attr("fromhex")(given);
    }
    if (!nb::isinstance<nb::bytes>(bytes) || nb::len(bytes) != out->bytes.size()) {
      return false;
    }
    std::memcpy(out->bytes.data(), PyBytes_AsString(bytes.ptr()), out->bytes.size());
    return true;
  }
  static bool FromPython(nb::handle given, std::optional<SaveId>* out) {
    return given.is_none() || FromPython(given, &out->emplace());
  }
};

/// A function that C++ calls; Python does not read it.
struct AsProgress {
  static constexpr const char* kWanted = "a function of bytes done and bytes in all";
  static bool FromPython(nb::handle given, ProgressFunction* out) {
    if (!given.is_none() && !nb::isinstance<nb::callable>(given)) {
      return false;
    }
    *out = MakeProgress(nb::borrow(given));
    return true;
  }
};

/// Returns an argument of a function. Raises InvalidArgumentError, with its name.
template <class D>
D Argument(const char* name, nb::handle given) {
  D value{};
  if (!nb::try_cast(given, value)) {
    RaiseUnfit(name, given, WantedFor<D>());
  }
  return value;
}

/// A struct as a Python class. Its constructor takes the fields by keyword and raises
/// InvalidArgumentError, with the field's name, for a value that the field cannot have. Its
/// attributes are read-only.
/// `Bases` are the classes of its base structs, bound before it.
template <class T, class... Bases>
class Bound {
 public:
  Bound(const nb::module_& module, const char* name, const char* doc)
      : class_(module, name, doc), name_(name) {
    class_.def("__init__", [name](T* self, const nb::kwargs& given) {
      new (self) T(Make(name, nb::borrow<nb::dict>(given)));
    });
    class_.def("__repr__", [name](const T& self) {
      return nb::module_::import_("varve._arguments").attr("fields_shown")(name, State(self));
    });
  }

  /// Adds a field. `Form` is how it looks in Python.
  template <class Form = AsIs, class C, class D>
  Bound& Field(const char* name, D C::* member) {
    Keyword<Form>(name, member);
    Fields().back().get = [member](const T& self) { return Form::ToPython(self.*member); };
    class_.def_prop_ro(name, Fields().back().get);
    return *this;
  }

  /// Adds a field that the constructor takes and Python cannot read: a function.
  template <class Form, class C, class D>
  Bound& Keyword(const char* name, D C::* member) {
    Fields().push_back({name, {}, [member, name](T* self, nb::handle given) {
                          if (Form::FromPython(given, &(self->*member))) {
                            return;
                          }
                          if constexpr (requires { Form::kWanted; }) {
                            RaiseUnfit(name, given, Form::kWanted);
                          } else {
                            RaiseUnfit(name, given, WantedFor<D>());
                          }
                        }});
    return *this;
  }

  /// Adds equality by all fields, and pickling; the class belongs to the module `home`.
  Bound& Public(const char* home) {
    class_.attr("__module__") = home;
    class_.attr("__hash__") = nb::none();
    class_.def("__eq__", [](const T& self, nb::handle other) -> nb::object {
      if (!nb::isinstance<T>(other)) {
        return nb::borrow(Py_NotImplemented);
      }
      return nb::bool_(State(self).equal(State(nb::cast<const T&>(other))));
    });
    class_.def("__getstate__", &State);
    class_.def("__setstate__", [name = name_](T& self, const nb::dict& state) {
      new (&self) T(Make(name, state));
    });
    return *this;
  }

  nb::class_<T, Bases...>& get() { return class_; }

 private:
  struct AField {
    const char* name;
    std::function<nb::object(const T&)> get;
    std::function<void(T*, nb::handle)> set;
  };

  static std::vector<AField>& Fields() {
    static std::vector<AField> fields;
    return fields;
  }

  static T Make(const char* name, const nb::dict& given) {
    T made{};
    for (const auto& [key, value] : given) {
      const std::string wanted = nb::cast<std::string>(key);
      const auto field = std::find_if(Fields().begin(), Fields().end(),
                                      [&](const AField& one) { return one.name == wanted; });
      if (field == Fields().end()) {
        throw nb::type_error((std::string(name) + "() takes no " + wanted).c_str());
      }
      field->set(&made, value);
    }
    return made;
  }

  static nb::dict State(const T& self) {
    nb::dict state;
    for (const AField& field : Fields()) {
      if (field.get) {
        state[field.name] = field.get(self);
      }
    }
    return state;
  }

  nb::class_<T, Bases...> class_;
  const char* name_;
};

}  // namespace varve::python
