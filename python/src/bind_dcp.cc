#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "publish/files_commit.h"
#include "save/dcp_file.h"
#include "save/dcp_index.h"

namespace varve::python {
namespace {

/// The items of a file, added one by one.
class PythonDcpItems {
 public:
  void AddArchive(std::string fqn, const nb::bytes& archive) {
    items_.push_back({std::move(fqn), std::string(archive.c_str(), archive.size())});
  }

  void AddTensor(std::string fqn, DType dtype, const Dims& sizes, std::uintptr_t address,
                 const std::optional<Strides>& strides, const Cuda& cuda) {
    TensorSource source = HostMemory{MemoryAt(address), strides.value_or(Strides{})};
    if (cuda) {
      source = CudaMemory{MemoryAt(address), cuda->first, MemoryAt(cuda->second),
                          strides.value_or(Strides{})};
    }
    items_.push_back(WholeDcpTensor(std::move(fqn), dtype, sizes, std::move(source)));
  }

  void AddProduced(std::string fqn, DType dtype, const Dims& sizes, nb::object produce) {
    const auto fill = [this, call = Shared(std::move(produce))](
                          std::uint64_t at, std::span<std::byte> out) -> Status {
      const GilHeld gil;
      try {
        UntilTheInterpreterEnds(
            [&] { (*call)(at, reinterpret_cast<std::uintptr_t>(out.data()), out.size()); });
        return Status::Ok();
      } catch (nb::python_error& error) {
        raised_.emplace(std::move(error));
        return Internal("a producer has raised");
      }
    };
    items_.push_back(WholeDcpTensor(std::move(fqn), dtype, sizes, Producer{fill}));
  }

  [[nodiscard]] std::vector<std::uint64_t> Fingerprints() const {
    Result<std::vector<std::uint64_t>> prints = Internal("not run");
    {
      const GilReleased release;
      prints = FingerprintDcpItems(items_);
    }
    return ValueOrRaise(std::move(prints));
  }

  /// Writes the file; raises what a producer has raised.
  DcpFile Write(const FsPath& path) {
    try {
      return Stoppable(path.text, [&](const std::stop_token& stop) {
        SaveOptions options;
        options.stop = stop;
        return WriteDcpFile(path.text, items_, options);
      });
    } catch (nb::python_error&) {
      if (raised_) {
        throw std::move(*raised_);
      }
      throw;
    }
  }

 private:
  std::vector<DcpItem> items_;
  std::optional<nb::python_error> raised_;
};

/// `files`: (name, DcpFile.report).
nb::bytes SealPython(const nb::bytes& index, const nb::list& files) {
  std::vector<DcpNamedFile> named;
  for (const nb::handle tuple : files) {
    const auto report = nb::cast<nb::bytes>(nb::object(tuple[1]));
    named.push_back({nb::cast<std::string>(nb::object(tuple[0])),
                     ValueOrRaise(DecodeDcpFile({report.c_str(), report.size()}))});
  }
  std::string text(index.c_str(), index.size());
  Result<std::string> sealed = Internal("not run");
  {
    const GilReleased release;
    sealed = SealDcpIndex(std::move(text), named);
  }
  return ToBytes(ValueOrRaise(std::move(sealed)));
}

using NamedSizes = std::vector<std::pair<std::string, std::uint64_t>>;

/// A FilesCommit until it has ended.
class PythonFilesCommit {
 public:
  PythonFilesCommit(const FsPath& path, bool overwrite, std::string mark,
                    std::optional<std::uint32_t> rank, bool stays) {
    const FilesTerms terms{.overwrite = overwrite ? Overwrite::kAlways : Overwrite::kNever,
                           .mark = std::move(mark),
                           .rank = rank,
                           .stays = stays};
    Result<std::unique_ptr<FilesCommit>> begun = Internal("not run");
    {
      const GilReleased release;
      begun = FilesCommit::Begin(path.text, terms);
    }
    commit_ = ValueOrRaise(std::move(begun));
  }

  [[nodiscard]] FilesCommit& get() const {
    if (commit_ == nullptr) {
      Raise(FailedPrecondition("this save has ended already"));
    }
    return *commit_;
  }

  /// Returns the paths of files that could not be put beside the new checkpoint. An exception from
  /// a signal handler ends the wait only: publishing goes on, and the checkpoint may appear.
  nb::list Publish(NamedSizes files, const nb::bytes& index) {
    (void)get();
    struct Run {
      std::unique_ptr<FilesCommit> commit;
      NamedSizes files;
      std::string index;
      Result<std::vector<std::string>> conflicts = Internal("not run");
    };
    const auto run = std::make_shared<Run>(
        Run{std::move(commit_), std::move(files), {index.c_str(), index.size()}});
    WaitOffMain([run] {
      const Status status = run->commit->Publish(run->files, run->index);
      if (status.ok()) {
        run->conflicts = run->commit->conflicts();
      } else {
        run->conflicts = status;
      }
      run->commit.reset();
    });
    nb::list out;
    for (const std::string& conflict : ValueOrRaise(std::move(run->conflicts))) {
      out.append(ToPath(conflict));
    }
    return out;
  }

  void Abandon() {
    const GilReleased release;
    commit_.reset();
  }

 private:
  std::unique_ptr<FilesCommit> commit_;
};

}  // namespace

void BindDcp(nb::module_& module) {
  nb::class_<DcpFile>(module, "DcpFile")
      .def_prop_ro("items",
                   [](const DcpFile& self) {
                     std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
                     extents.reserve(self.items.size());
                     for (const DcpExtent& extent : self.items) {
                       extents.emplace_back(extent.offset, extent.length);
                     }
                     return extents;
                   })
      .def_ro("size", &DcpFile::size)
      .def_ro("direct", &DcpFile::direct)
      .def_prop_ro("report", [](const DcpFile& self) { return ToBytes(EncodeDcpFile(self)); });
  nb::class_<PythonDcpItems>(module, "DcpItems")
      .def(nb::init<>())
      .def("add_archive", &PythonDcpItems::AddArchive, nb::arg("fqn"), nb::arg("archive"))
      .def("add_tensor", &PythonDcpItems::AddTensor, nb::arg("fqn"), nb::arg("dtype"),
           nb::arg("sizes"), nb::arg("address"), nb::arg("strides") = nb::none(),
           nb::arg("cuda") = nb::none())
      .def("add_produced", &PythonDcpItems::AddProduced, nb::arg("fqn"), nb::arg("dtype"),
           nb::arg("sizes"), nb::arg("produce"))
      .def("fingerprints", &PythonDcpItems::Fingerprints)
      .def("write", &PythonDcpItems::Write, nb::arg("path"));
  module.def("seal_dcp_index", &SealPython, nb::arg("index"), nb::arg("files"));
  module.def(
      "dcp_replaces_directory", [](const FsPath& path) { return DcpReplacesDirectory(path.text); },
      nb::arg("path"));
  nb::class_<PythonFilesCommit>(module, "FilesCommit")
      .def(nb::init<const FsPath&, bool, std::string, std::optional<std::uint32_t>, bool>(),
           nb::arg("path"), nb::arg("overwrite"), nb::arg("mark") = "",
           nb::arg("rank") = nb::none(), nb::arg("stays") = false)
      .def_prop_ro("staging",
                   [](const PythonFilesCommit& self) { return ToPath(self.get().staging()); })
      .def_prop_ro("below", [](const PythonFilesCommit& self) { return self.get().below(); })
      .def_prop_ro("first", [](const PythonFilesCommit& self) { return self.get().first(); })
      .def("publish", &PythonFilesCommit::Publish, nb::arg("files"), nb::arg("index"))
      .def("abandon", &PythonFilesCommit::Abandon);
}

}  // namespace varve::python
