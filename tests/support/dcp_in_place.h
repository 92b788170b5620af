/// Saves of small DCP checkpoints into a directory that stays.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "publish/files_commit.h"
#include "save/dcp_file.h"
#include "save/dcp_index.h"
#include "storages/memory.h"
#include "tensor/box.h"

namespace varve::test {

using NamedSizes = std::vector<std::pair<std::string, std::uint64_t>>;

/// The files that ranks have written, and their index.
struct WrittenDcp {
  NamedSizes files;
  Metadata metadata;
};

/// Writes the file of `rank`: the tensor "w<rank>", whose bytes follow from `seed`.
inline Status WriteRank(Storage& storage, const std::string& directory, std::uint64_t number,
                        std::uint32_t rank, char seed, WrittenDcp* written) {
  const std::string name = "__" + std::to_string(rank) + "_" + std::to_string(number) + ".distcp";
  const std::string memory(5000 + static_cast<unsigned char>(seed), seed);
  const std::string fqn = "w" + std::to_string(rank);
  const DcpItem tensor_item =
      WholeDcpTensor(fqn, DType::kUInt8, {memory.size()}, HostMemory{memory.data()});
  VARVE_ASSIGN_OR_RETURN(const DcpFile file, WriteDcpFile(JoinPath(directory, name), {tensor_item},
                                                          {.block_bytes = 4096}, storage));
  const DcpExtent& item = file.items.front();
  written->metadata.block_bytes = file.block_bytes;
  TensorMetadata tensor{fqn, DType::kUInt8, {memory.size()}, {}};
  Chunk& chunk = tensor.chunks.Listed().emplace_back();
  chunk.box = WholeBox(tensor.shape);
  chunk.extent = {static_cast<std::uint32_t>(written->files.size()), item.offset,
                  item.offset + item.length, Encoding::kTorchItem};
  chunk.payload = item.payload;
  written->metadata.tensors.push_back(std::move(tensor));
  DataFile data;
  data.name = name;
  data.rank = rank;
  data.size = file.size;
  data.block_crc32c = file.block_crc32c;
  written->metadata.files.push_back(std::move(data));
  written->files.emplace_back(name, file.size);
  return Status::Ok();
}

/// Begins a save of all ranks, or of one, into a directory that stays.
inline Result<std::unique_ptr<FilesCommit>> BeginInPlace(Storage& storage, const std::string& path,
                                                         bool overwrite = true,
                                                         std::optional<std::uint32_t> rank = {}) {
  return FilesCommit::Begin(path,
                            {.overwrite = overwrite ? Overwrite::kAlways : Overwrite::kNever,
                             .rank = rank,
                             .stays = true},
                            storage);
}

/// Writes the files of `ranks` and publishes them.
inline Status FinishInPlace(Storage& storage, FilesCommit& commit,
                            const std::vector<std::uint32_t>& ranks, char seed) {
  WrittenDcp written;
  written.metadata.format = Format::kDcp;
  for (const std::uint32_t rank : ranks) {
    VARVE_RETURN_IF_ERROR(
        WriteRank(storage, commit.staging(), commit.first(), rank, seed, &written));
  }
  VARVE_ASSIGN_OR_RETURN(const std::string index, EncodeDcpIndex(written.metadata));
  return commit.Publish(written.files, index);
}

/// Saves a checkpoint of two ranks.
inline Status SaveInPlace(Storage& storage, const std::string& path, char seed,
                          bool overwrite = true) {
  VARVE_ASSIGN_OR_RETURN(const auto commit, BeginInPlace(storage, path, overwrite));
  return FinishInPlace(storage, *commit, {0, 1}, seed);
}

/// Saves one rank's state without a coordinator.
inline Status SaveRankInPlace(Storage& storage, const std::string& path, std::uint32_t rank,
                              char seed, bool overwrite = true) {
  VARVE_ASSIGN_OR_RETURN(const auto commit, BeginInPlace(storage, path, overwrite, rank));
  return FinishInPlace(storage, *commit, {rank}, seed);
}

}  // namespace varve::test
