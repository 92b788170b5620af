// Single files: those that varve.olmo writes, and parts of those that varve.torch.dcp reads.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "interop/olmo/names.h"
#include "interruptible.h"
#include "save/state_file.h"
#include "varve/storage.h"

namespace varve::python {
namespace {

/// Writes a torch.save file; `storages` are addresses and sizes, and where they are.
std::uint64_t WriteTorchFile(
    const FsPath& path, const nb::bytes& pickle,
    const std::vector<std::tuple<std::uintptr_t, std::uint64_t, Cuda>>& storages) {
  std::vector<PackedMemory> memory;
  memory.reserve(storages.size());
  for (const auto& [address, bytes, cuda] : storages) {
    memory.push_back({MemoryAt<const std::byte>(address), bytes, OnCudaOf(cuda)});
  }
  std::string copy(pickle.c_str(), pickle.size());
  return Stoppable(path.text, [&](const std::stop_token& stop) {
    SaveOptions options;
    options.stop = stop;
    return WritePickledState(path.text, std::move(copy), memory, options);
  });
}

/// Writes a safetensors file; a tensor is its name, type, shape, address and where it is.
std::uint64_t WriteSafetensorsFile(
    const FsPath& path,
    const std::vector<std::tuple<std::string, DType, Dims, std::uintptr_t, Cuda>>& tensors) {
  std::vector<SafetensorsSource> sources;
  sources.reserve(tensors.size());
  for (const auto& [name, dtype, shape, address, cuda] : tensors) {
    if (!CanBeSafetensors(dtype, shape)) {
      Raise(Unimplemented("write " + path.text + ": \"" + name + "\" is " +
                          std::string(DTypeName(dtype)) + ", which safetensors cannot hold"));
    }
    sources.push_back({{name, dtype, shape}, MemoryAt<const std::byte>(address), OnCudaOf(cuda)});
  }
  return Stoppable(path.text, [&](const std::stop_token& stop) {
    SaveOptions options;
    options.stop = stop;
    return WriteSafetensors(path.text, std::move(sources), options);
  });
}

/// Reads a file from `begin` to `end`, or to its own end.
Result<std::string> ReadRange(const std::string& path, std::uint64_t begin,
                              std::optional<std::uint64_t> end) {
  VARVE_ASSIGN_OR_RETURN(const auto file, AnyStorage().OpenForRead(path));
  const std::uint64_t last = end.value_or(file->size());
  if (begin > last || last > file->size()) {
    return DataLoss(path + ": ends at byte " + std::to_string(file->size()) + ", bytes up to " +
                    std::to_string(last) + " are wanted");
  }
  std::string bytes(last - begin, '\0');
  VARVE_RETURN_IF_ERROR(
      file->ReadAt(begin, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  return bytes;
}

nb::bytes ReadBytes(const FsPath& path, std::uint64_t begin, std::optional<std::uint64_t> end) {
  return ToBytes(Stoppable(path.text, [&](const std::stop_token& /*stop*/) {
    return ReadRange(path.text, begin, end);
  }));
}

std::uint64_t FileSize(const FsPath& path) {
  return Stoppable(path.text, [&](const std::stop_token& /*stop*/) -> Result<std::uint64_t> {
    VARVE_ASSIGN_OR_RETURN(const auto file, AnyStorage().OpenForRead(path.text));
    return file->size();
  });
}

}  // namespace

void BindFiles(nb::module_& module) {
  module.def("write_torch_file", &WriteTorchFile, nb::arg("path"), nb::arg("pickle"),
             nb::arg("storages"));
  module.def("write_safetensors", &WriteSafetensorsFile, nb::arg("path"), nb::arg("tensors"));
  nb::module_ storage = module.def_submodule("storage");
  storage.def("read_bytes", &ReadBytes, nb::arg("path"), nb::arg("begin") = 0,
              nb::arg("end") = nb::none());
  storage.def("size_of", &FileSize, nb::arg("path"));
  nb::list same;
  for (const std::string_view key : kOlmoSameOnAllRanks) {
    same.append(nb::str(key.data(), key.size()));
  }
  module.attr("OLMO_SAME_ON_ALL_RANKS") = nb::tuple(same);
}

}  // namespace varve::python
