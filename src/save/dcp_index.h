/// The index of a DCP checkpoint from what the ranks have written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "save/written_format.h"
#include "varve/dcp.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/value.h"

namespace varve {

/// Returns "__3_0.distcp" for rank 3. Files of saves into a directory that stays have other
/// numbers.
std::string DcpFileName(std::uint32_t rank, std::uint64_t number = 0);

/// Returns the chunk that an item of data file number `file` holds.
Chunk DcpChunkOf(std::uint32_t file, Box box, const DcpExtent& item);

/// Gathers files, tensors and values in any order, then encodes them. Threads: one.
class DcpIndexBuilder {
 public:
  /// `block_bytes` of all files' checksums.
  explicit DcpIndexBuilder(std::uint64_t block_bytes);

  /// Adds the data file DcpFileName(rank, number) and returns its place among the files. Errors:
  /// InvalidArgument when its checksums are of blocks of another size.
  Result<std::uint32_t> AddFile(std::uint32_t rank, const DcpFile& file, std::uint64_t number = 0);

  /// Returns the chunks of a tensor, to be added to; makes the tensor first when it is new.
  std::vector<Chunk>& AddTensor(const std::string& fqn, DType dtype, const Dims& shape);

  /// Adds a plain value. One that several ranks have stored keeps the last place that was added.
  void AddObject(const std::string& fqn, std::uint32_t file, const DcpExtent& item);

  /// Returns `.metadata` and the files it counts on. `structure` holds the containers of the state.
  /// Errors: InvalidArgument as EncodeDcpIndex.
  Result<CheckpointIndex> Finish(const std::optional<Value>& structure,
                                 std::vector<StoredFile> side_files);

 private:
  std::uint64_t block_bytes_;
  std::vector<DataFile> files_;
  std::map<std::string, TensorMetadata> tensors_;
  std::map<std::string, ObjectMetadata> objects_;
};

}  // namespace varve
