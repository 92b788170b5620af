#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "varve/dcp.h"

namespace varve::python {
namespace {

/// (fqn, bytes) or (fqn, dtype number, sizes, address, strides or None).
DcpItem ItemFrom(nb::handle tuple) {
  DcpItem item;
  item.fqn = nb::cast<std::string>(nb::object(tuple[0]));
  if (nb::len(tuple) == 2) {
    const auto bytes = nb::cast<nb::bytes>(nb::object(tuple[1]));
    item.bytes.assign(bytes.c_str(), bytes.size());
    return item;
  }
  item.is_tensor = true;
  item.dtype = DTypeAt(nb::object(tuple[1]));
  item.sizes = Integers<Dims>(nb::object(tuple[2]));
  item.data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(nb::object(tuple[3])));
  if (const nb::object strides = tuple[4]; !strides.is_none()) {
    item.strides = Integers<Strides>(strides);
  }
  return item;
}

nb::dict WritePython(const std::string& path, const nb::list& tuples, const nb::dict& options) {
  std::vector<DcpItem> items;
  items.reserve(nb::len(tuples));
  for (const nb::handle tuple : tuples) {
    items.push_back(ItemFrom(tuple));
  }
  SaveOptions save;
  if (options.contains("direct")) {
    save.direct = nb::cast<bool>(nb::object(options["direct"]));
  }
  Result<DcpFile> file = Internal("not run");
  {
    const nb::gil_scoped_release release;
    file = WriteDcpFile(path, items, save);
  }
  RaiseIfError(file.status());
  nb::list extents;
  for (const DcpExtent& extent : file->items) {
    extents.append(nb::make_tuple(extent.offset, extent.length));
  }
  std::string sums;
  for (const std::uint32_t crc : file->block_crc32c) {
    for (int shift = 0; shift < 32; shift += 8) {
      sums.push_back(static_cast<char>(crc >> shift));
    }
  }
  nb::dict out;
  out["items"] = extents;
  out["size"] = file->size;
  out["block_bytes"] = file->block_bytes;
  out["block_crc32c"] = ToBytes(sums);
  out["direct"] = file->direct;
  return out;
}

class PythonDcpCommit {
 public:
  PythonDcpCommit(const std::string& path, bool overwrite) {
    Result<std::unique_ptr<DcpCommit>> begun = Internal("not run");
    {
      const nb::gil_scoped_release release;
      begun = DcpCommit::Begin(path, overwrite);
    }
    commit_ = ValueOrRaise(std::move(begun));
    staging_ = commit_->staging();
  }

  [[nodiscard]] nb::object staging() const { return ToPath(staging_); }

  void Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
               const nb::bytes& metadata) {
    const std::string index(metadata.c_str(), metadata.size());
    if (commit_ == nullptr) {
      Raise(FailedPrecondition("this save has ended already"));
    }
    Status status;
    {
      const nb::gil_scoped_release release;
      status = commit_->Publish(files, index);
      commit_.reset();
    }
    RaiseIfError(status);
  }

  void Abandon() {
    const nb::gil_scoped_release release;
    commit_.reset();
  }

 private:
  std::unique_ptr<DcpCommit> commit_;
  std::string staging_;
};

}  // namespace

void BindDcp(nb::module_& module) {
  module.def("write_dcp_file", &WritePython, nb::arg("path"), nb::arg("items"), nb::arg("options"));
  nb::class_<PythonDcpCommit>(module, "DcpCommit")
      .def(nb::init<const std::string&, bool>(), nb::arg("path"), nb::arg("overwrite"))
      .def_prop_ro("staging", &PythonDcpCommit::staging)
      .def("publish", &PythonDcpCommit::Publish, nb::arg("files"), nb::arg("metadata"))
      .def("abandon", &PythonDcpCommit::Abandon);
}

}  // namespace varve::python
