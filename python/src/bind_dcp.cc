#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "interruptible.h"
#include "varve/dcp.h"

namespace varve::python {
namespace {

/// What a producer has raised.
using Raised = std::optional<nb::python_error>;

/// Calls `produce(at, address, size)` with the GIL. `raised` lives as long as the items.
auto Filling(nb::object produce, Raised* raised) {
  return [call = Shared(std::move(produce)), raised](std::uint64_t at,
                                                     std::span<std::byte> out) -> Status {
    const nb::gil_scoped_acquire gil;
    try {
      (*call)(at, reinterpret_cast<std::uintptr_t>(out.data()), out.size());
      return Status::Ok();
    } catch (nb::python_error& error) {
      raised->emplace(std::move(error));
      return Internal("a producer has raised");
    }
  };
}

/// (fqn, bytes), (fqn, dtype number, sizes, address, strides or None), or (fqn, dtype number,
/// sizes, producer).
DcpItem ItemFrom(nb::handle tuple, Raised* raised) {
  auto fqn = nb::cast<std::string>(nb::object(tuple[0]));
  if (nb::len(tuple) == 2) {
    const auto bytes = nb::cast<nb::bytes>(nb::object(tuple[1]));
    return {std::move(fqn), std::string(bytes.c_str(), bytes.size())};
  }
  const DType dtype = DTypeAt(nb::object(tuple[1]));
  const Dims sizes = Integers<Dims>(nb::object(tuple[2]));
  if (nb::len(tuple) == 4) {
    return WholeDcpTensor(std::move(fqn), dtype, sizes,
                          Producer{Filling(nb::object(tuple[3]), raised)});
  }
  HostMemory memory{reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(nb::object(tuple[3])))};
  if (const nb::object strides = tuple[4]; !strides.is_none()) {
    memory.strides = Integers<Strides>(strides);
  }
  return WholeDcpTensor(std::move(fqn), dtype, sizes, std::move(memory));
}

void PutNumber(std::uint64_t number, std::string* out) {
  for (int shift = 0; shift < 64; shift += 8) {
    out->push_back(static_cast<char>(number >> shift));
  }
}

/// What the coordinator needs of a file for its checksums, to travel from rank to rank: numbers of
/// eight bytes, each list behind its length.
std::string EncodeReport(const DcpFile& file) {
  std::string out;
  PutNumber(file.size, &out);
  PutNumber(file.block_bytes, &out);
  PutNumber(file.block_crc32c.size(), &out);
  for (const std::uint32_t crc : file.block_crc32c) {
    PutNumber(crc, &out);
  }
  for (const DcpExtent& item : file.items) {
    if (item.payload > 0) {
      PutNumber(item.offset, &out);
      PutNumber(item.payload, &out);
    }
  }
  return out;
}

Result<DcpFile> DecodeReport(std::string_view bytes) {
  std::size_t at = 0;
  const auto number = [&] {
    std::uint64_t value = 0;
    for (std::size_t i = 8; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    }
    at += 8;
    return value;
  };
  constexpr std::size_t kFixed = 3;
  if (bytes.size() % 8 != 0 || bytes.size() / 8 < kFixed) {
    return InvalidArgument("the report of a written file is not what write_dcp_file gave");
  }
  DcpFile file;
  file.size = number();
  file.block_bytes = number();
  const std::uint64_t blocks = number();
  const std::size_t rest = bytes.size() / 8 - kFixed;
  if (blocks > rest || (rest - blocks) % 2 != 0) {
    return InvalidArgument("the report of a written file is cut short");
  }
  for (std::uint64_t i = 0; i < blocks; ++i) {
    file.block_crc32c.push_back(static_cast<std::uint32_t>(number()));
  }
  while (at < bytes.size()) {
    DcpExtent item;
    item.offset = number();
    item.payload = number();
    file.items.push_back(item);
  }
  return file;
}

std::vector<DcpItem> ItemsFrom(const nb::list& tuples, Raised* raised) {
  std::vector<DcpItem> items;
  items.reserve(nb::len(tuples));
  for (const nb::handle tuple : tuples) {
    items.push_back(ItemFrom(tuple, raised));
  }
  return items;
}

/// `tuples` as write_dcp_file takes them.
std::vector<std::uint64_t> FingerprintPython(const nb::list& tuples) {
  Raised raised;  // Nothing is produced here.
  const std::vector<DcpItem> items = ItemsFrom(tuples, &raised);
  const nb::gil_scoped_release release;
  return FingerprintDcpItems(items);
}

nb::dict WritePython(const FsPath& path, const nb::list& tuples, const nb::dict& options) {
  Raised raised;
  const std::vector<DcpItem> items = ItemsFrom(tuples, &raised);
  SaveOptions save;
  if (options.contains("direct")) {
    save.direct = nb::cast<bool>(nb::object(options["direct"]));
  }
  DcpFile file;
  try {
    file = Stoppable(path.text, [&](const std::stop_token& stop) {
      save.stop = stop;
      return WriteDcpFile(path.text, items, save);
    });
  } catch (nb::python_error&) {
    if (raised) {
      throw std::move(*raised);
    }
    throw;
  }
  nb::list extents;
  for (const DcpExtent& extent : file.items) {
    extents.append(nb::make_tuple(extent.offset, extent.length));
  }
  nb::dict out;
  out["items"] = extents;
  out["size"] = file.size;
  out["direct"] = file.direct;
  out["report"] = ToBytes(EncodeReport(file));
  return out;
}

/// `files`: (name, report of write_dcp_file).
nb::bytes SealPython(const nb::bytes& index, const nb::list& files) {
  std::vector<DcpNamedFile> named;
  for (const nb::handle tuple : files) {
    const auto report = nb::cast<nb::bytes>(nb::object(tuple[1]));
    named.push_back({nb::cast<std::string>(nb::object(tuple[0])),
                     ValueOrRaise(DecodeReport({report.c_str(), report.size()}))});
  }
  std::string text(index.c_str(), index.size());
  Result<std::string> sealed = Internal("not run");
  {
    const nb::gil_scoped_release release;
    sealed = SealDcpIndex(std::move(text), named);
  }
  return ToBytes(ValueOrRaise(std::move(sealed)));
}

using NamedSizes = std::vector<std::pair<std::string, std::uint64_t>>;

/// DcpCommit or DcpInPlaceCommit, until it has ended.
template <class Commit>
class PythonCommit {
 public:
  template <class... Options>
  explicit PythonCommit(const FsPath& path, const Options&... options) {
    Result<std::unique_ptr<Commit>> begun = Internal("not run");
    {
      const nb::gil_scoped_release release;
      begun = Commit::Begin(path.text, options...);
    }
    commit_ = ValueOrRaise(std::move(begun));
  }

  [[nodiscard]] Commit& get() const {
    if (commit_ == nullptr) {
      Raise(FailedPrecondition("this save has ended already"));
    }
    return *commit_;
  }

  /// Returns the paths of files that could not be put beside the new checkpoint.
  nb::list Publish(const NamedSizes& files, const nb::bytes& metadata) {
    const std::string index(metadata.c_str(), metadata.size());
    Commit& commit = get();
    std::vector<std::string> conflicts;
    Status status;
    {
      const nb::gil_scoped_release release;
      status = commit.Publish(files, index);
      conflicts = commit.conflicts();
      commit_.reset();
    }
    RaiseIfError(status);
    nb::list out;
    for (const std::string& conflict : conflicts) {
      out.append(ToPath(conflict));
    }
    return out;
  }

  void Abandon() {
    const nb::gil_scoped_release release;
    commit_.reset();
  }

 private:
  std::unique_ptr<Commit> commit_;
};

class PythonDcpCommit : public PythonCommit<DcpCommit> {
 public:
  PythonDcpCommit(const FsPath& path, bool overwrite)
      : PythonCommit(path, overwrite ? Overwrite::kAlways : Overwrite::kNever) {}
};

class PythonDcpInPlaceCommit : public PythonCommit<DcpInPlaceCommit> {
 public:
  PythonDcpInPlaceCommit(const FsPath& path, bool overwrite, std::optional<std::uint32_t> rank)
      : PythonCommit(path, DcpInPlaceOptions{.overwrite = overwrite, .rank = rank}) {}
};

}  // namespace

void BindDcp(nb::module_& module) {
  module.def("write_dcp_file", &WritePython, nb::arg("path"), nb::arg("items"), nb::arg("options"));
  module.def("seal_dcp_index", &SealPython, nb::arg("index"), nb::arg("files"));
  module.def("fingerprint_dcp_items", &FingerprintPython, nb::arg("items"));
  module.def(
      "dcp_replaces_directory", [](const FsPath& path) { return DcpReplacesDirectory(path.text); },
      nb::arg("path"));
  nb::class_<PythonDcpCommit>(module, "DcpCommit")
      .def(nb::init<const FsPath&, bool>(), nb::arg("path"), nb::arg("overwrite"))
      .def_prop_ro("staging",
                   [](const PythonDcpCommit& self) { return ToPath(self.get().staging()); })
      .def("publish", &PythonDcpCommit::Publish, nb::arg("files"), nb::arg("metadata"))
      .def("abandon", &PythonDcpCommit::Abandon);
  nb::class_<PythonDcpInPlaceCommit>(module, "DcpInPlaceCommit")
      .def(nb::init<const FsPath&, bool, std::optional<std::uint32_t>>(), nb::arg("path"),
           nb::arg("overwrite"), nb::arg("rank").none())
      .def_prop_ro(
          "directory",
          [](const PythonDcpInPlaceCommit& self) { return ToPath(self.get().directory()); })
      .def_prop_ro("first", [](const PythonDcpInPlaceCommit& self) { return self.get().first(); })
      .def("publish", &PythonDcpInPlaceCommit::Publish, nb::arg("files"), nb::arg("metadata"))
      .def("abandon", &PythonDcpInPlaceCommit::Abandon);
}

}  // namespace varve::python
