// The Python forms of C++ types for which nanobind has none: paths, times, and enums by name.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "varve/async_save.h"
#include "varve/catalogue.h"
#include "varve/convert.h"
#include "varve/options.h"
#include "varve/tensor.h"

namespace varve::python {

/// A path as Python gives it: a str, which is encoded as os.fsencode does, or bytes.
struct FsPath {
  std::string text;
};

/// The values of an enum and their names in Python. A name is a str; "True" and "False" are the
/// bools.
template <class E>
struct Names;

template <>
struct Names<Strict> {
  static constexpr std::pair<const char*, Strict> kAll[] = {
      {"False", Strict::kOff}, {"True", Strict::kWanted}, {"exact", Strict::kExact}};
};

template <>
struct Names<Fit> {
  static constexpr std::pair<const char*, Fit> kAll[] = {{"exact", Fit::kExact},
                                                         {"overlap", Fit::kOverlap}};
};

template <>
struct Names<DryRun> {
  static constexpr std::pair<const char*, DryRun> kAll[] = {{"False", DryRun::kNo},
                                                            {"True", DryRun::kYes}};
};

/// Returns the values of an enum from 0 to `last`, by their names in C++.
template <class E>
std::vector<std::pair<const char*, E>> AllNamed(std::string_view (*name)(E), E last) {
  std::vector<std::pair<const char*, E>> all;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    all.emplace_back(name(static_cast<E>(i)).data(), static_cast<E>(i));
  }
  return all;
}

template <>
struct Names<Format> {
  static inline const auto kAll = AllNamed(&FormatName, Format::kHfai);
};

template <>
struct Names<CheckpointState> {
  static inline const auto kAll = AllNamed(&StateName, CheckpointState::kQuarantined);
};

template <>
struct Names<ConvertTarget> {
  static constexpr std::pair<const char*, ConvertTarget> kAll[] = {
      {"varve", ConvertTarget::kVarve},
      {"dcp", ConvertTarget::kDcp},
      {"safetensors", ConvertTarget::kSafetensors},
      {"hf", ConvertTarget::kHf},
      {"torch", ConvertTarget::kTorch}};
};

template <>
struct Names<Difference::Kind> {
  static constexpr std::pair<const char*, Difference::Kind> kAll[] = {
      {"only in a", Difference::Kind::kOnlyInA},
      {"only in b", Difference::Kind::kOnlyInB},
      {"shape", Difference::Kind::kShape},
      {"dtype", Difference::Kind::kDType},
      {"values", Difference::Kind::kValues}};
};

template <>
struct Names<WhenBusy> {
  static constexpr std::pair<const char*, WhenBusy> kAll[] = {
      {"wait", WhenBusy::kWait}, {"skip", WhenBusy::kSkip}, {"replace", WhenBusy::kReplace}};
};

template <>
struct Names<CheckReplicas> {
  static constexpr std::pair<const char*, CheckReplicas> kAll[] = {
      {"samples", CheckReplicas::kSamples}, {"full", CheckReplicas::kFull}};
};

template <>
struct Names<OnDifference> {
  static constexpr std::pair<const char*, OnDifference> kAll[] = {{"keep", OnDifference::kKeep},
                                                                  {"first", OnDifference::kFirst},
                                                                  {"error", OnDifference::kError}};
};

template <>
struct Names<OnDifferenceAtLoad> {
  static constexpr std::pair<const char*, OnDifferenceAtLoad> kAll[] = {
      {"keep", OnDifferenceAtLoad::kKeep}, {"first", OnDifferenceAtLoad::kFirst}};
};

template <>
struct Names<Overwrite> {
  static constexpr std::pair<const char*, Overwrite> kAll[] = {{"False", Overwrite::kNever},
                                                               {"True", Overwrite::kAlways},
                                                               {"damaged", Overwrite::kDamaged},
                                                               {"in_place", Overwrite::kInPlace}};
};

inline bool IsBool(std::string_view name) { return name == "True" || name == "False"; }

/// Returns true for the Python object that a name in Names stands for.
inline bool IsNamed(nanobind::handle object, std::string_view name) noexcept {
  if (PyBool_Check(object.ptr())) {
    return name == (object.ptr() == Py_True ? "True" : "False");
  }
  if (!PyUnicode_Check(object.ptr())) {
    return false;  // An array's own equality is never asked.
  }
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    return false;
  }
  return !IsBool(name) && name == std::string_view(text, static_cast<std::size_t>(size));
}

}  // namespace varve::python

namespace nanobind::detail {

/// Casts an enum by its Names.
template <class E>
  requires requires { varve::python::Names<E>::kAll; }
struct type_caster<E, enable_if_t<std::is_enum_v<E>>> {
  NB_TYPE_CASTER(E, const_name("bool | str"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    for (const auto& [name, named] : varve::python::Names<E>::kAll) {
      if (varve::python::IsNamed(source, name)) {
        value = named;
        return true;
      }
    }
    return false;
  }

  static handle from_cpp(E given, rv_policy, cleanup_list*) noexcept {
    for (const auto& [name, named] : varve::python::Names<E>::kAll) {
      if (given == named) {
        const std::string_view text = name;
        return varve::python::IsBool(text) ? bool_(text == "True").release()
                                           : str(text.data(), text.size()).release();
      }
    }
    return {};
  }
};

template <>
struct type_caster<varve::Dims> : list_caster<varve::Dims, std::uint64_t> {};

template <>
struct type_caster<varve::python::FsPath> {
  NB_TYPE_CASTER(varve::python::FsPath, const_name("str | bytes"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    object bytes = borrow(source);
    if (PyUnicode_Check(source.ptr()) != 0) {
      bytes = steal(PyUnicode_EncodeFSDefault(source.ptr()));
    }
    if (!bytes.is_valid() || PyBytes_Check(bytes.ptr()) == 0) {
      PyErr_Clear();
      return false;
    }
    value.text.assign(PyBytes_AsString(bytes.ptr()),
                      static_cast<std::size_t>(PyBytes_Size(bytes.ptr())));
    return true;
  }
};

/// A number of seconds from 0 on; infinity: there is no limit.
template <>
struct type_caster<std::chrono::milliseconds> {
  NB_TYPE_CASTER(std::chrono::milliseconds, const_name("float"))

  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    constexpr double kForEver = 1e9;  // 31 years: may be added to a time without overflow.
    make_caster<double> seconds;
    if (!seconds.from_python(source, flags, cleanup) || !(seconds.value >= 0)) {
      return false;  // Also for what is not a number.
    }
    value = std::chrono::milliseconds(
        static_cast<std::int64_t>(std::min(seconds.value, kForEver) * 1000));
    return true;
  }

  static handle from_cpp(std::chrono::milliseconds given, rv_policy, cleanup_list*) noexcept {
    return PyFloat_FromDouble(std::chrono::duration<double>(given).count());
  }
};

/// The number of a dtype, its index in DTYPE_NAMES.
template <>
struct type_caster<varve::DType> {
  NB_TYPE_CASTER(varve::DType, const_name("int"))

  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<int> number;
    if (!number.from_python(source, flags, cleanup) || number.value < 0 ||
        number.value >= varve::kDTypeCount) {
      return false;
    }
    value = static_cast<varve::DType>(number.value);
    return true;
  }

  static handle from_cpp(varve::DType given, rv_policy, cleanup_list*) noexcept {
    return PyLong_FromLong(static_cast<long>(given));
  }
};

}  // namespace nanobind::detail
