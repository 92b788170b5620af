/// Safetensors of other writers: one file, a folder with `model.safetensors.index.json`, or the
/// shards of PyTorch's HuggingFaceStorageWriter, which say in their header which part of each
/// tensor they hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "interop/decoded.h"
#include "interop/zip/directory.h"
#include "varve/status.h"

namespace varve {

/// A file of a folder: its name and size, and how to read it.
struct NamedFile {
  std::string name;
  std::uint64_t size = 0;
  RangeReader read;
};

/// The parsed header of one file.
struct SafetensorsHeader {
  struct Tensor {
    std::string fqn;
    DType dtype = DType::kUInt8;
    Dims shape;    ///< Shape of the part in this file.
    Dims offsets;  ///< In the whole tensor; empty when the file does not say (then zeros).
    std::uint64_t begin = 0;  ///< In the file.
    std::uint64_t end = 0;
  };
  std::vector<Tensor> tensors;                                ///< By fqn.
  std::vector<std::pair<std::string, std::string>> metadata;  ///< `__metadata__`, by key.
};

/// Reads a file's header. Errors: DataLoss for a malformed header, offsets outside the file,
/// overlapping tensors, bytes that do not fit dtype and shape, or a duplicate name; Unimplemented
/// for an unknown dtype, which is named.
Result<SafetensorsHeader> ReadSafetensorsHeader(const NamedFile& file);

/// Decodes several files as one checkpoint. The shape of a tensor that is stored in parts is the
/// box around them. Errors: as ReadSafetensorsHeader; DataLoss when a file goes on behind its last
/// tensor, files disagree about a dtype or parts overlap.
Result<Decoded> DecodeSafetensors(const std::vector<NamedFile>& files);

/// `model.safetensors.index.json`: which file holds which tensor.
struct HfIndex {
  std::vector<std::pair<std::string, std::string>> weight_map;  ///< fqn to file name, by fqn.
  [[nodiscard]] std::vector<std::string> FileNames() const;     ///< Sorted, each once.
};

/// Decodes the index. Errors: DataLoss for malformed JSON; InvalidArgument for a file name that
/// leaves the folder.
Result<HfIndex> DecodeHfIndex(std::string_view json);
std::string EncodeHfIndex(const HfIndex& index, std::uint64_t total_size);

/// Tells what DecodeHfFolder does with a tensor that a file holds and the index does not name. Other
/// software may mean to leave it out. Varve's own index names every tensor, so it was damaged.
enum class NotInIndex : std::uint8_t { kLeftOut, kRefused };

/// Returns a checkpoint of the folder: only the tensors of the weight map, each in the file it
/// names. Errors: as DecodeSafetensors; DataLoss for a tensor that its file does not hold, and for
/// one that is refused.
Result<Decoded> DecodeHfFolder(const HfIndex& index, const std::vector<NamedFile>& files,
                               NotInIndex others = NotInIndex::kLeftOut);

}  // namespace varve
