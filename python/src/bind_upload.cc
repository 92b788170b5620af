#include <stop_token>
#include <string>
#include <utility>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/upload.h"

namespace varve::python {
namespace {

constexpr const char* kUploadReportDoc = R"(What `upload` has done; the same on all ranks.

Attributes:
    bytes: Of all files of the copy; 0 where it was there.
    files: Number of them.
    was_there: The target held this save already.
    seconds: How long it took.
)";

/// Ends an upload that another thread makes.
struct UploadStop {
  std::stop_source source;
};

UploadReport UploadPython(const FsPath& source, const FsPath& target, UploadOptions options,
                          const nb::object& coordinator, const UploadStop* from_outside) {
  ProgressCount count;
  options.progress = Counting(&count, std::move(options.progress));
  std::stop_source stop = from_outside != nullptr ? from_outside->source : std::stop_source();
  options.stop = stop.get_token();
  const auto ranks = MakeCoordinator(coordinator);
  Result<UploadReport> report = Internal("not run");
  RunCollective([&] { report = Upload(source.text, target.text, options, *ranks); }, coordinator,
                [&] { stop.request_stop(); }, &count, "uploading");
  return ValueOrRaise(std::move(report).With({.path = target.text}));
}

nb::bytes AsBytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

}  // namespace

void BindUpload(nb::module_& module) {
  Bound<UploadOptions>(module, "UploadOptions", nullptr)
      .Field("overwrite", &UploadOptions::overwrite)
      .Field("in_place", &UploadOptions::in_place)
      .Field("own_files", &UploadOptions::own_files)
      .Field("mark", &UploadOptions::mark)
      .Field("timeout", &UploadOptions::timeout)
      .Field("threads", &UploadOptions::threads)
      .Keyword<AsProgress>("progress", &UploadOptions::progress);
  Bound<UploadReport>(module, "UploadReport", kUploadReportDoc)
      .Field("bytes", &UploadReport::bytes)
      .Field("files", &UploadReport::files)
      .Field("was_there", &UploadReport::was_there)
      .Field("seconds", &UploadReport::seconds)
      .Public("varve");
  nb::class_<UploadStop>(module, "UploadStop")
      .def(nb::init<>())
      .def("cancel", [](UploadStop& self) { self.source.request_stop(); });
  module.def("upload", &UploadPython, nb::arg("source"), nb::arg("target"), nb::arg("options"),
             nb::arg("coordinator").none(), nb::arg("stop").none() = nb::none());
  module.def(
      "note_pending_upload",
      [](const FsPath& path, const FsPath& to) {
        RaiseIfError(NotePendingUpload(path.text, to.text).With({.path = path.text}));
      },
      nb::arg("path"), nb::arg("to"));
  module.def(
      "forget_pending_upload",
      [](const FsPath& path) {
        RaiseIfError(ForgetPendingUpload(path.text).With({.path = path.text}));
      },
      nb::arg("path"));
  module.def(
      "pending_upload",
      [](const FsPath& path) -> nb::object {
        const auto to = ValueOrRaise(PendingUploadOf(path.text).With({.path = path.text}));
        return to ? nb::object(AsBytes(*to)) : nb::none();
      },
      nb::arg("path"));
  module.def(
      "pending_uploads",
      [](const FsPath& directory) {
        std::vector<std::pair<nb::bytes, nb::bytes>> found;
        for (const PendingUpload& one :
             ValueOrRaise(ListPendingUploads(directory.text).With({.path = directory.text}))) {
          found.emplace_back(AsBytes(one.path), AsBytes(one.to));
        }
        return found;
      },
      nb::arg("directory"));
}

}  // namespace varve::python
