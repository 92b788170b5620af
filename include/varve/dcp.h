/// The parts of a save whose checkpoint stock PyTorch opens, for a caller with a plan of its own
/// (PyTorch's planners, say). To convert a checkpoint see varve/convert.h; to read one,
/// CheckpointReader opens DCP directories like any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/dtype.h"
#include "varve/metadata.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"
#include "varve/tensor.h"
#include "varve/value.h"

namespace varve {

/// A tensor of a `.distcp` file: `part` of the elements that `source` holds, which are `box` of the
/// whole. Its bytes must stay valid and unchanged until the file is written; not on a CUDA device.
struct DcpTensor {
  DType dtype = DType::kUInt8;
  Box box;
  Box part;
  TensorSource source;
};

/// One item of a `.distcp` file.
struct DcpItem {
  std::string fqn;                               ///< For messages.
  std::variant<DcpTensor, std::string> content;  ///< A string is an archive of torch.save already.
};

/// Returns the item of a tensor of these sizes, all of which `source` holds.
DcpItem WholeDcpTensor(std::string fqn, DType dtype, const Dims& sizes, TensorSource source);

struct DcpExtent {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  /// Of a tensor: bytes from `offset` to its elements, row-major and packed. 0 for other items.
  std::uint64_t payload = 0;
};

/// A written file.
struct DcpFile {
  std::vector<DcpExtent> items;  ///< In the order given.
  std::uint64_t size = 0;
  std::uint64_t block_bytes = 0;
  std::vector<std::uint32_t> block_crc32c;  ///< Of every block of the file; the last may be short.
  bool direct = false;
};

/// Writes a `.distcp` file and makes its content durable; its name is not. Payloads of 4096 bytes
/// and more begin at multiples of 4096. Errors: AlreadyExists; OutOfSpace; Unavailable;
/// Unimplemented for a dtype torch.save has no name for; InvalidArgument for an item that is on a
/// device or has no memory.
Result<DcpFile> WriteDcpFile(const std::string& path, const std::vector<DcpItem>& items,
                             const SaveOptions& options = {}, Storage& storage = PosixStorage());

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

/// The right to write one DCP checkpoint under a name; for the coordinator alone. Any rank writes
/// data files into staging(); nothing is visible under the name before Publish. Destroying it
/// without Publish abandons the save: the staging directory is removed. The steps, and the crash
/// each one closes, are those of src/publish/commit.cc.
class DcpCommit {
 public:
  /// Claims the name and makes the staging directory. Errors: AlreadyExists without `overwrite`;
  /// FailedPrecondition when another save of this name is under way, or when something else than a
  /// checkpoint stands there.
  static Result<std::unique_ptr<DcpCommit>> Begin(const std::string& path, Overwrite overwrite,
                                                  Storage& storage = PosixStorage());
  DcpCommit(const DcpCommit&) = delete;
  DcpCommit& operator=(const DcpCommit&) = delete;
  ~DcpCommit();

  [[nodiscard]] const std::string& staging() const;

  /// Checks that each of `files` (name in staging, exact size) is there, writes `metadata` as
  /// `.metadata`, makes all durable and visible. Files must have been synced by their writers.
  Status Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                 const std::string& metadata);

  /// Returns paths of files that stay under hidden names: they were put beside an old checkpoint
  /// while it was replaced, and the new one's directory has another file of that name. Known after
  /// Publish.
  [[nodiscard]] const std::vector<std::string>& conflicts() const;

 private:
  struct Impl;
  explicit DcpCommit(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns true when DcpCommit is the way to save at `path`, as far as names tell: nothing is
/// there, an empty directory, a checkpoint in Varve's own format, or a DCP checkpoint and nothing
/// else. Returns false when the directory holds other things and stays where it is; see
/// DcpInPlaceCommit. Returns true also for a path that cannot be listed: DcpCommit reports why.
bool DcpReplacesDirectory(const std::string& path, Storage& storage = PosixStorage());

struct DcpInPlaceOptions {
  bool overwrite = false;  ///< False: an index that is there ends the save.
  /// Set for a save of this rank alone, of which the other ranks do not know; its index is
  /// `__R.metadata`. Empty for the coordinator of all ranks, whose index is `.metadata`.
  std::optional<std::uint32_t> rank;
};

/// The right to write a DCP checkpoint into a directory that stays: because it holds other things,
/// is a mount point, or because ranks save without a coordinator. Data files are written into
/// directory() under numbers from first() on; nothing reads them before Publish replaces the index
/// in one step. Destroying it without Publish removes the files that this save has written. The
/// steps, and the crash each one closes, are at the top of src/publish/dcp_in_place.cc.
/// Threads: one at a time.
class DcpInPlaceCommit {
 public:
  /// Makes the directory if there is none. Errors: AlreadyExists without `overwrite`;
  /// FailedPrecondition when another save of this name is under way, and when the directory holds a
  /// checkpoint that readers would open instead of this one.
  static Result<std::unique_ptr<DcpInPlaceCommit>> Begin(const std::string& path,
                                                         const DcpInPlaceOptions& options,
                                                         Storage& storage = PosixStorage());
  DcpInPlaceCommit(const DcpInPlaceCommit&) = delete;
  DcpInPlaceCommit& operator=(const DcpInPlaceCommit&) = delete;
  ~DcpInPlaceCommit();

  /// Returns the directory for data files, under names `__R_N.distcp` with N from first() on.
  [[nodiscard]] const std::string& directory() const;
  [[nodiscard]] std::uint64_t first() const;

  /// Checks that each of `files` (name in directory(), exact size) is there, and replaces the index
  /// by `metadata`. Then removes the files of the checkpoint that was there, and nothing else.
  /// Files must have been synced by their writers. Errors: FailedPrecondition for a missing file,
  /// DataLoss for one of another size; the old checkpoint stays.
  Status Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                 const std::string& metadata);

  /// Returns paths of files of the user's that stay under hidden names, where dead saves had them:
  /// the directory has another file of that name.
  [[nodiscard]] const std::vector<std::string>& conflicts() const;

 private:
  struct Impl;
  explicit DcpInPlaceCommit(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns a fingerprint of each item, by which ranks find replicas that differ: of all bytes up to
/// 64 KiB, else of 64 samples of 64 bytes. Items with equal fingerprints, dtypes and sizes count as
/// equal. 0 for items without host memory: archives, empty tensors, those that are produced.
std::vector<std::uint64_t> FingerprintDcpItems(const std::vector<DcpItem>& items);

}  // namespace varve
