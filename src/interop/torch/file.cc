#include "interop/torch/file.h"

#include <utility>

#include "interop/state_tree.h"
#include "interop/torch/state_reader.h"

namespace varve {
namespace {

Status DecodeState(const TorchArchive& archive, const RangeReader& read, Decoded* out) {
  StateReader reader(archive, read, 0);
  const PickleRef root = archive.tree().root();
  VARVE_ASSIGN_OR_RETURN(const auto mapping, reader.MappingAt(root));
  VARVE_ASSIGN_OR_RETURN(StateNode state, mapping ? reader.At(root, "") : reader.LeafAt(root, ""));
  return FlattenState(std::move(state), out);
}

}  // namespace

Result<Decoded> DecodeTorchFile(std::uint64_t size, const RangeReader& read,
                                std::string file_name) {
  auto archive = TorchArchive::Open(size, read);
  if (!archive.ok()) {
    return archive.status().Annotate(file_name);
  }
  Decoded decoded;
  decoded.metadata.format = Format::kTorchSave;
  decoded.metadata.world_size = 1;
  decoded.records = StorageRecords(*archive, 0);
  if (const Status status = DecodeState(*archive, read, &decoded); !status.ok()) {
    return status.Annotate(file_name);
  }
  DataFile file{.name = std::move(file_name)};
  file.size = size;
  decoded.metadata.files.push_back(std::move(file));
  return decoded;
}

}  // namespace varve
