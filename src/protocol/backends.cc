// The backends, and the choice of one for a checkpoint id.

#include <string>

#include "varve/protocol/checkpoint.h"
#include "varve/protocol/file_system.h"

namespace varve::protocol {
namespace {

struct Backend {
  bool (*takes)(std::string_view checkpoint_id);
  std::unique_ptr<StorageWriter> (*make_writer)(std::string path);
  std::unique_ptr<StorageReader> (*make_reader)(std::string path);
};

template <class Writer, class Reader>
constexpr Backend BackendOf() {
  return {
      &Writer::ValidateCheckpointId,
      [](std::string path) -> std::unique_ptr<StorageWriter> {
        return std::make_unique<Writer>(std::move(path));
      },
      [](std::string path) -> std::unique_ptr<StorageReader> {
        return std::make_unique<Reader>(std::move(path));
      },
  };
}

/// The first that takes an id serves it.
constexpr Backend kBackends[] = {BackendOf<FileSystemWriter, FileSystemReader>()};

Result<const Backend*> BackendFor(std::string_view checkpoint_id) {
  for (const Backend& backend : kBackends) {
    if (backend.takes(checkpoint_id)) {
      return &backend;
    }
  }
  return InvalidArgument("\"" + std::string(checkpoint_id) +
                         "\": no backend of Varve takes this checkpoint id; want a path, or a "
                         "StorageWriter and StorageReader of your own");
}

}  // namespace

Result<std::unique_ptr<StorageWriter>> MakeStorageWriter(std::string_view checkpoint_id) {
  VARVE_ASSIGN_OR_RETURN(const Backend* backend, BackendFor(checkpoint_id));
  return backend->make_writer(std::string(checkpoint_id));
}

Result<std::unique_ptr<StorageReader>> MakeStorageReader(std::string_view checkpoint_id) {
  VARVE_ASSIGN_OR_RETURN(const Backend* backend, BackendFor(checkpoint_id));
  return backend->make_reader(std::string(checkpoint_id));
}

}  // namespace varve::protocol
