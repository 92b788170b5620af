// Our backend for a checkpoint id.

#include <memory>
#include <string>

#include "varve/protocol/checkpoint.h"
#include "varve/protocol/file_system.h"

namespace varve::protocol {
namespace {

/// Makes the part of our backend, of which there is one.
template <class Part, class Interface>
Result<std::unique_ptr<Interface>> Make(std::string_view checkpoint_id) {
  if (!Part::ValidateCheckpointId(checkpoint_id)) {
    return InvalidArgument("\"" + std::string(checkpoint_id) +
                           "\": no backend of Varve takes this checkpoint id; want a path, or a "
                           "StorageWriter and StorageReader of your own");
  }
  return std::unique_ptr<Interface>(std::make_unique<Part>(std::string(checkpoint_id)));
}

}  // namespace

Result<std::unique_ptr<StorageWriter>> MakeStorageWriter(std::string_view checkpoint_id) {
  return Make<FileSystemWriter, StorageWriter>(checkpoint_id);
}

Result<std::unique_ptr<StorageReader>> MakeStorageReader(std::string_view checkpoint_id) {
  return Make<FileSystemReader, StorageReader>(checkpoint_id);
}

}  // namespace varve::protocol
