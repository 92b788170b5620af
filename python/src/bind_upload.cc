#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <utility>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/storage.h"
#include "varve/upload.h"

namespace varve::python {
namespace {

constexpr const char* kUploadReportDoc = R"(What `upload` has done; the same on all ranks.

Attributes:
    bytes: Of all files of the copy; 0 where it was there.
    files: Number of them.
    was_there: The target held this save already.
    left_out: Names of files in the directory that are no part of the checkpoint and are not in the copy.
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

/// Lists the files below a directory, with their sizes; `below` is their folder in it.
Status AddFiles(const std::string& directory, const std::string& below, const std::stop_token& stop,
                std::map<std::string, std::uint64_t>* files) {
  if (stop.stop_requested()) {
    return {StatusCode::kCancelled, "interrupted"};
  }
  VARVE_ASSIGN_OR_RETURN(const auto entries, AnyStorage().List(JoinPath(directory, below)));
  for (const DirectoryEntry& entry : entries) {
    const std::string name = below.empty() ? entry.name : JoinPath(below, entry.name);
    if (entry.is_directory) {
      VARVE_RETURN_IF_ERROR(AddFiles(directory, name, stop, files));
    } else {
      files->emplace(name, entry.size);
    }
  }
  return Status::Ok();
}

nb::dict ListFiles(const FsPath& directory) {
  const auto files =
      Stoppable(directory.text,
                [&](const std::stop_token& stop) -> Result<std::map<std::string, std::uint64_t>> {
                  std::map<std::string, std::uint64_t> found;
                  VARVE_RETURN_IF_ERROR(AddFiles(directory.text, "", stop, &found));
                  return found;
                });
  nb::dict out;
  for (const auto& [name, size] : files) {
    out[ToText(name)] = size;
  }
  return out;
}

}  // namespace

void BindUpload(nb::module_& parent) {
  nb::module_ module = parent.def_submodule("uploads");
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
      .Field("left_out", &UploadReport::left_out)
      .Field("seconds", &UploadReport::seconds)
      .Public("varve");
  nb::class_<UploadStop>(module, "UploadStop")
      .def(nb::init<>())
      .def("cancel", [](UploadStop& self) { self.source.request_stop(); });
  module.def("upload", &UploadPython, nb::arg("source"), nb::arg("target"), nb::arg("options"),
             nb::arg("coordinator").none(), nb::arg("stop").none() = nb::none());
  module.def(
      "upload_file",
      [](const FsPath& source, const FsPath& target, bool overwrite) {
        Stoppable(target.text, [&](const std::stop_token& stop) -> Result<bool> {
          VARVE_RETURN_IF_ERROR(
              UploadFile(source.text, target.text, overwrite, AnyStorage(), stop));
          return true;
        });
      },
      nb::arg("source"), nb::arg("target"), nb::arg("overwrite"));
  module.def("list_files", &ListFiles, nb::arg("directory"));
  module.def(
      "note_pending_upload",
      [](const FsPath& path, const FsPath& to) {
        RaiseIfError(Unlocked(path.text, [&] { return NotePendingUpload(path.text, to.text); }));
      },
      nb::arg("path"), nb::arg("to"));
  module.def(
      "forget_pending_upload",
      [](const FsPath& path) {
        RaiseIfError(Unlocked(path.text, [&] { return ForgetPendingUpload(path.text); }));
      },
      nb::arg("path"));
  module.def(
      "pending_upload",
      [](const FsPath& path) -> nb::object {
        const auto to =
            ValueOrRaise(Unlocked(path.text, [&] { return PendingUploadOf(path.text); }));
        return to ? nb::object(ToBytes(*to)) : nb::none();
      },
      nb::arg("path"));
  module.def(
      "pending_uploads",
      [](const FsPath& directory) {
        std::vector<std::pair<nb::bytes, nb::bytes>> found;
        auto pending = Unlocked(directory.text, [&] { return ListPendingUploads(directory.text); });
        for (const PendingUpload& one : ValueOrRaise(std::move(pending))) {
          found.emplace_back(ToBytes(one.path), ToBytes(one.to));
        }
        return found;
      },
      nb::arg("directory"));
}

}  // namespace varve::python
