#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "bindings.h"
#include "varve/metadata.h"
#include "varve/tensor.h"

namespace varve::python {
namespace {

/// The engine's messages name options and means as callers of C++ have them: in Python they have
/// other names.
constexpr std::pair<std::string_view, std::string_view> kInPython[] = {
    {"pass overwrite to ", "pass overwrite=True to "},
    {"pass replace to ", "pass replace=True to "},
    {"Give what each rank has for itself a name of its own",
     "Wrap what each rank has for itself in varve.torch.PerRank, or give it a name of its own"},
};

std::string InPython(std::string message) {
  for (const auto& [engine, python] : kInPython) {
    if (const std::size_t at = message.rfind(engine); at != std::string::npos) {
      message.replace(at, engine.size(), python);
    }
  }
  return message;
}

/// errors.STAGER_LOST.
constexpr const char* kStagerLost = "StagerLost";

}  // namespace

namespace {

/// What each rank failed with, by rank.
nb::dict FailuresByRank(const ErrorDetails& details) {
  nb::dict out;
  for (const RankFailure& failure : details.failures) {
    const Status status(failure.code, failure.message);
    out[nb::int_(failure.rank)] = ToException(status.With(
        {.path = failure.path, .rank = failure.rank, .system_error = failure.system_error}));
  }
  return out;
}

}  // namespace

nb::object ToException(const Status& status) {
  const nb::object types = nb::module_::import_("varve.errors").attr("BY_CODE");
  const std::string_view code = StatusCodeName(status.code());
  const nb::object type = types[nb::str(code.data(), code.size())];
  const ErrorDetails& details = status.details();
  nb::dict known;
  if (!details.path.empty()) {
    known["path"] = ToPath(details.path);
  }
  if (details.rank >= 0) {
    known["rank"] = details.rank;
  }
  if (details.system_error != 0) {
    known["errno"] = details.system_error;
  }
  if (details.reason == ErrorReason::kStagerLost) {
    known["reason"] = kStagerLost;
  }
  if (!details.failures.empty()) {
    known["of_ranks"] = FailuresByRank(details);
  }
  return type(ToText(InPython(status.message())), **known);
}

Status ToStatus(nb::handle error, std::string message) {
  const nb::module_ errors = nb::module_::import_("varve.errors");
  if (!nb::isinstance(error, errors.attr("Error"))) {
    return InvalidArgument(std::move(message));
  }
  const auto name = nb::cast<std::string>(error.attr("code"));
  StatusCode code = StatusCode::kInvalidArgument;
  for (auto number = static_cast<int>(StatusCode::kInvalidArgument);
       number <= static_cast<int>(StatusCode::kInternal); ++number) {
    if (StatusCodeName(static_cast<StatusCode>(number)) == name) {
      code = static_cast<StatusCode>(number);
    }
  }
  ErrorDetails details;
  if (const nb::object path = error.attr("path"); !path.is_none()) {
    details.path = nb::cast<FsPath>(path).text;
  }
  if (const nb::object rank = error.attr("rank"); !rank.is_none()) {
    details.rank = nb::cast<int>(rank);
  }
  if (const nb::object number = nb::getattr(error, "errno", nb::none()); !number.is_none()) {
    details.system_error = nb::cast<int>(number);
  }
  if (nb::cast<std::string>(error.attr("reason")) == kStagerLost) {
    details.reason = ErrorReason::kStagerLost;
  }
  return Status(code, std::move(message)).With(std::move(details));
}

void Raise(const Status& status) {
  const nb::object error = ToException(status);
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

nb::object Raised(const nb::python_error& error) {
#if PY_VERSION_HEX < 0x030C0000
  PyObject* type = nb::borrow(error.type()).release().ptr();
  PyObject* value = nb::borrow(error.value()).release().ptr();
  PyObject* trace = error.traceback().release().ptr();
  PyErr_NormalizeException(&type, &value, &trace);
  nb::steal(type);
  nb::steal(trace);
  return nb::steal(value);
#else
  return nb::borrow(error.value());
#endif
}

nb::bytes ToBytes(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

nb::object ToText(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

nb::object ToPath(const std::string& path) {
  return nb::steal(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

}  // namespace varve::python

namespace varve::python {
namespace {

/// Raises OutOfSpaceError for memory that C++ could not get: the one exception that the engine lets
/// out, where no rank waits for another.
void TranslateBadAlloc(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    const nb::object error =
        ToException({StatusCode::kOutOfSpace, "the system has no memory left for this process"});
    PyErr_SetObject(error.type().ptr(), error.ptr());
  }
}

}  // namespace
}  // namespace varve::python

NB_MODULE(_core, module) {
  using namespace varve;  // NOLINT(google-build-using-namespace): one function
  namespace nb = nanobind;
  // Objects of a save that a forked child has inherited are no leak to report.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(python::TranslateBadAlloc);
  (void)python::TheInterpreter();
  python::HoldOffForks();
  module.doc() = "The binding to libvarve; use the varve package.";
  module.attr("__version__") = nb::str(Version().data(), Version().size());
  module.attr("FORMAT_VERSION") = kFormatVersion;
  nb::list dtypes;
  nb::list sizes;
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto name = DTypeName(static_cast<DType>(i));
    dtypes.append(nb::str(name.data(), name.size()));
    sizes.append(ItemSize(static_cast<DType>(i)));
  }
  module.attr("DTYPE_NAMES") = nb::tuple(dtypes);
  module.attr("DTYPE_SIZES") = nb::tuple(sizes);
  python::BindValues(module);
  python::BindReports(module);
  python::BindChannel(module);
  python::BindCheckpoint(module);
  python::BindTensors(module);
  python::BindReader(module);
  python::BindAsync(module);
  python::BindAgent(module);
  python::BindCatalogue(module);
  python::BindConvert(module);
  python::BindUpload(module);
  python::BindDcp(module);
  python::BindFiles(module);
  python::BindManage(module);
  python::BindStorage(module);
}
