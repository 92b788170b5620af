/// The index of a DCP checkpoint from what the ranks have written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "save/dcp_file.h"
#include "save/written_format.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/value.h"

namespace varve {

/// Encodes the index of a checkpoint whose files were written by a plan of one's own. `metadata`
/// has tensors with chunks, objects, and files. Its extents are those of WriteDcpFile, of
/// Encoding::kTorchItem; files with block_crc32c get checksums as SealDcpIndex adds them.
/// `structure`, the containers of the state as docs/format.md has them, may be null: PyTorch then
/// knows entries by name only. Errors: InvalidArgument for extents outside the files or of another
/// encoding.
Result<std::string> EncodeDcpIndex(const Metadata& metadata, const Value* structure = nullptr);

/// A file that an index names, and its writer's report.
struct DcpNamedFile {
  std::string name;  ///< As the index has it.
  DcpFile file;      ///< Of its items, those without a payload may be left out.
};

/// Adds Varve's checksums of `files` to an index that another library has pickled: as one more
/// attribute of the Metadata object, `varve_checksums`, which PyTorch keeps and ignores and which
/// every load by Varve compares. It also covers the index itself.
///
/// `index` is a pickle of protocol 2 or 3 whose last object is the Metadata, as Python makes it.
/// Files that are not in `files` are left without. Errors: InvalidArgument for another pickle, and
/// when files differ in block_bytes; those of reading an index.
Result<std::string> SealDcpIndex(std::string index, const std::vector<DcpNamedFile>& files);

/// Returns "__3_0.distcp" for rank 3. Files of saves into a directory that stays have other
/// numbers.
std::string DcpFileName(std::uint32_t rank, std::uint64_t number = 0);

/// Returns the chunk that an item of data file number `file` holds.
Chunk DcpChunkOf(std::uint32_t file, Box box, const DcpExtent& item);

/// Gathers files, tensors and values in any order, then encodes them. Threads: one.
class DcpIndexBuilder {
 public:
  /// `block_bytes` of all files' checksums; `save_id` is for the index, zero for none.
  explicit DcpIndexBuilder(std::uint64_t block_bytes, const SaveId& save_id = {});

  /// Adds the data file DcpFileName(rank, number) and returns its place among the files. Errors:
  /// InvalidArgument when its checksums are of blocks of another size.
  Result<std::uint32_t> AddFile(std::uint32_t rank, const DcpFile& file, std::uint64_t number = 0);

  /// Returns the chunks of a tensor, to be added to; makes the tensor first when it is new.
  std::vector<Chunk>& AddTensor(const std::string& fqn, DType dtype, const Dims& shape);

  /// Adds a plain value. One that several ranks have stored keeps the last place that was added.
  void AddObject(const std::string& fqn, std::uint32_t file, const DcpExtent& item);

  /// Returns `.metadata` and the files it counts on. `structure` holds the containers of the state.
  /// In the index `below` stands before the names of all files, see Commit::below. Errors:
  /// InvalidArgument as EncodeDcpIndex.
  Result<CheckpointIndex> Finish(const std::optional<Value>& structure,
                                 std::vector<StoredFile> side_files, const std::string& below);

 private:
  std::uint64_t block_bytes_;
  SaveId save_id_;
  std::vector<DataFile> files_;
  std::map<std::string, TensorMetadata> tensors_;
  std::map<std::string, ObjectMetadata> objects_;
};

}  // namespace varve
