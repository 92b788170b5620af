/// Save and load. Start here: State and Save to write a checkpoint, CheckpointReader and Load to
/// read one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "varve/coordinator.h"
#include "varve/metadata.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"
#include "varve/value.h"

namespace varve {

/// Memory of this process.
struct HostMemory {
  const void* data = nullptr;  ///< The element at the first corner of the box.
  Strides strides{};           ///< In elements; empty means row-major.
};

/// Memory of a CUDA device. The engine loads the driver when it first meets some.
struct CudaMemory {
  const void* data = nullptr;  ///< An address of the device: the element at the first corner.
  int device = 0;              ///< As the driver numbers those that this process sees.
  /// The stream (cudaStream_t, CUstream) that the last write to the memory was queued on; null is
  /// the default stream.
  void* stream = nullptr;
  Strides strides{};  ///< In elements; empty means row-major.
};

/// Makes the bytes of a tensor while they are written. Only for saves by a single rank.
struct Producer {
  /// Fills `out` with the box's row-major bytes from `at` on. A save calls it for one tensor after
  /// the other, in the order in which the data file has them, for each byte once, on the thread
  /// that called Save.
  std::function<Status(std::uint64_t at, std::span<std::byte> out)> fill;
  /// Any address that stands for the bytes: tensors with the same one are tied, and only the one
  /// with the lowest name is produced. Null: the tensor is tied to no other.
  const void* identity = nullptr;
};

/// The memory or function that a tensor's elements come from.
using TensorSource = std::variant<HostMemory, CudaMemory, Producer>;

/// A shard this rank holds: `box` of the tensor `fqn`. Memory must stay valid and unchanged until
/// Save returns.
struct SourceTensor {
  std::string fqn;
  DType dtype = DType::kUInt8;
  Dims shape;  ///< Of the whole tensor.
  Box box;
  TensorSource source{};
};

/// A plain value this rank holds, as EncodeValue gives it.
struct SourceObject {
  std::string fqn;
  std::string encoded;
  /// Not empty for a tensor that is made of others, in Format::kDcp alone: the names of those, each
  /// of which this rank holds whole and row-major. `encoded` is then its pickle, as torch.save
  /// writes it, and the N-th of them its storage "N". Both lie in one archive.
  std::vector<std::string> storages{};
};

/// A file that is saved with a checkpoint as it is: a `config.json`, a tokenizer.
struct SideFile {
  /// Relative to the checkpoint's directory, '/' between folders. Not a name that checkpoints use
  /// themselves, such as "varve.json" or "data-00000-of-00001.safetensors".
  std::string name;
  std::string content;
};

/// The state that one rank saves. Ranks that hold the same box of the same tensor are replicas: it
/// is stored once.
struct State {
  std::vector<SourceTensor> tensors;
  std::vector<SourceObject> objects;
  /// The containers around them, as EncodeValue gives it; may be empty. See docs/format.md.
  std::string structure;
  /// Files that belong to the checkpoint and are replaced with it. Those of rank 0 count. At most
  /// 256 MiB in all. Not for uncoordinated saves.
  std::vector<SideFile> files{};
  CopiedAhead copied_ahead{};
};

/// Saves the ranks' states as the checkpoint directory `path`. Collective: all ranks call it with
/// the same path and options (not when options.coordinate is false). Blocks until the checkpoint is
/// durable and visible, or returns an error that is the same on every rank; then no checkpoint has
/// become visible and an older one at `path` is intact. Two exceptions, both after the checkpoint
/// has become visible: the last sync of the parent directory fails (the message says so), or rank 0
/// dies before it has reported to the others (which then name rank 0). Errors: AlreadyExists
/// without overwrite; InvalidArgument when ranks disagree about a tensor; FailedPrecondition when
/// another save of this name is under way, when `path` holds something else than a checkpoint, or
/// when ranks do not share the storage; OutOfSpace; Unavailable. The checkpoint is written to
/// `storage`, which must outlive the call.
Result<SaveReport> Save(const State& state, const std::string& path, const SaveOptions& options,
                        Coordinator& coordinator, Storage& storage = AnyStorage());

/// Saves by a single process.
Result<SaveReport> Save(const State& state, const std::string& path,
                        const SaveOptions& options = {}, Storage& storage = AnyStorage());

/// The CUDA device that a target is on, as in CudaMemory. Work that has been queued on the stream
/// comes before the load writes there; when the load has returned, its bytes are there for all
/// streams.
struct OnCuda {
  int device = 0;
  void* stream = nullptr;
};

/// A box of a tensor to fill. `data` and `strides` as in HostMemory, or as in CudaMemory where the
/// target is on a device. Memory belongs to the caller.
struct TargetTensor {
  std::string fqn;
  DType dtype = DType::kUInt8;
  Dims shape;
  Box box;
  void* data = nullptr;
  Strides strides;
  std::optional<OnCuda> cuda{};
};

/// An open checkpoint. Threads: const after Open apart from the reads, which are safe to call
/// concurrently.
class CheckpointReader {
 public:
  /// Opens the checkpoint at `path`: a committed one, a complete set of rank-local files, or one
  /// that an interrupted overwrite has displaced. Reads the index only.
  /// Errors: NotFound; FailedPrecondition for an incomplete rank-local save, naming the missing
  /// ranks; DataLoss; Unimplemented when a newer version wrote it; Cancelled on `stop`.
  static Result<std::unique_ptr<CheckpointReader>> Open(const std::string& path,
                                                        Storage& storage = AnyStorage(),
                                                        const std::stop_token& stop = {});

  /// Opens what a node's own disk has of a checkpoint that `world_size` ranks saved, each of them
  /// the memory of its shards: OLMo's layout `local`. A load that needs the file of a rank that is
  /// not there is DataLoss. Errors: as Open; InvalidArgument for a checkpoint of another layout or
  /// of another number of ranks.
  static Result<std::unique_ptr<CheckpointReader>> OpenOwnRanks(const std::string& path,
                                                                std::uint32_t world_size,
                                                                Storage& storage = AnyStorage());

  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;
  ~CheckpointReader();

  /// Returns the version of the native format that the index has; 0 for other formats.
  [[nodiscard]] std::uint32_t format_version() const;
  /// Returns what the index says. The chunks of native checkpoints have no hashes in it.
  [[nodiscard]] const Metadata& metadata() const;
  /// Returns a tensor of metadata() with the hashes of its chunks, which it reads from the headers
  /// of their files. Tensors of other formats have none. Errors: DataLoss; FailedPrecondition when
  /// another save has replaced it; OutOfSpace; Unavailable.
  [[nodiscard]] Result<TensorMetadata> WithHashes(const TensorMetadata& tensor);
  /// Returns the checkpoint's directory; differs from the given path for a displaced checkpoint.
  [[nodiscard]] const std::string& directory() const;
  /// Returns the file of a checkpoint that is one, else its directory: its name in messages.
  [[nodiscard]] std::string path() const;
  /// Returns the directory that the names of data files begin in. In an object store, and in a copy
  /// from there, it is below the checkpoint's.
  [[nodiscard]] const std::string& files_directory() const;
  /// Returns the FQNs of entries that the checkpoint's own files store under another path, each
  /// with that path, sorted by FQN. OLMo keys optimizer state by parameter id, or puts prefixes
  /// before names. Empty for most formats.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& stored_names() const;

  /// From now on reads the values that rank `rank` held when it saved, where ranks held different
  /// ones under one name (Metadata::tensor_variants). Without this call they are the lowest rank's.
  /// Not during a read, nor while metadata() is being used.
  void TakeValuesOf(std::uint32_t rank);

  /// Reads the containers of the saved state, merged over ranks; a None value when none were saved.
  /// Errors: DataLoss; Cancelled on `stop`.
  [[nodiscard]] Result<Value> ReadStructure(const std::stop_token& stop = {});

  /// Reads the values with these names, in the same order. Errors: NotFound; DataLoss; Cancelled on
  /// `stop`.
  [[nodiscard]] Result<std::vector<Value>> ReadObjects(std::span<const std::string> fqns,
                                                       const std::stop_token& stop = {});

  /// Returns the content of a side file (Metadata::side_files), checked against its checksum.
  /// Errors: NotFound; DataLoss.
  [[nodiscard]] Result<std::string> ReadFile(const std::string& name);

  /// Fills all targets, reading only the blocks that overlap them and checking each. Returns the
  /// bytes read. Not collective. On error the message says which targets hold new bytes. Targets
  /// that share memory with each other get the bytes that were read last. Errors: as Load.
  [[nodiscard]] Result<std::uint64_t> ReadTensors(std::span<const TargetTensor> targets,
                                                  const LoadOptions& options);

  /// Returns what this rank needs to read for its targets: a message for ShareNeeds. With `serves`
  /// it may be told to read for ranks of other nodes too, and they for it: then it is to call
  /// EndSharing after all ranks have read, or have failed.
  [[nodiscard]] std::string NeedOf(std::span<const TargetTensor> targets, bool serves);
  /// Returns, by rank, the argument for each rank's BeginSharing, given what each needs. For
  /// callers whose ranks agree in their own way; a collective Load does so itself. Errors: DataLoss
  /// for a message that is none of NeedOf. An empty one is that of a rank that shares nothing.
  [[nodiscard]] Result<std::vector<std::string>> ShareNeeds(
      std::span<const std::string> needs) const;
  /// From now on reads together with the ranks that need the same bytes: see LoadOptions::share.
  /// Not during a read. Errors: DataLoss for a message that is none of ShareNeeds;
  /// FailedPrecondition where ranks read for each other already.
  Status BeginSharing(const std::string& sharing);
  /// From now on reads for itself alone, and no longer for others. Not during a read.
  void EndSharing();
  /// Returns LoadReport::storage_bytes of all reads of tensors and values since Open.
  [[nodiscard]] std::uint64_t storage_bytes() const;

  /// Makes reads of files in their order, each call a little of many files, fetch no block twice:
  /// keeps the last block of each file from now on, `max_bytes` in all. Not during a read.
  void KeepTails(std::uint64_t max_bytes);

  /// Returns the phases since Open, or since the last call: LoadReport::phases without "exchange".
  [[nodiscard]] std::vector<Phase> TakePhases();

 private:
  struct Impl;
  explicit CheckpointReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The entries that a rank wants from a checkpoint, beyond its tensors.
struct LoadRequest {
  std::vector<TargetTensor> targets;
  std::vector<std::string> objects;  ///< Names whose values this rank will read.
  /// Names of wanted entries that the caller found to be missing or of another kind.
  std::vector<std::string> missing;
  std::vector<std::string> mismatched;
  /// Names in the checkpoint that this rank leaves out on purpose: never reported as unexpected.
  std::vector<std::string> ignored;
  /// Names of which any rank's value will do, in OnDifferenceAtLoad::kKeep: buffers that training
  /// copies from the lowest rank to the others anyway.
  std::vector<std::string> one_will_do{};
  CopiedAhead copied_ahead{};
};

/// Loads collectively: the ranks first agree on the checkpoint and on the differences, then each
/// reads its targets, then all learn whether all succeeded. Nothing is written to any target before
/// the ranks agree. With Strict::kOff, targets that are missing or do not fit are left alone.
/// Where the ranks that saved held different values under a name, LoadOptions::on_difference says
/// which are read; a caller that reads plain values before this call makes reader.TakeValuesOf.
/// Targets may share memory where the same values are stored for them, as for a tied parameter
/// under two names; if the index cannot prove that, both are read twice. Errors (the same on every
/// rank): InvalidArgument that lists the differences which options.strict forbids, or names what
/// differed between the ranks that saved, which were more or fewer than these; or names targets
/// whose elements share memory, or two targets that share memory while different values are stored
/// for them; DataLoss naming file, offset and tensor; the message says which targets are partly
/// written.
Result<LoadReport> Load(CheckpointReader& reader, const LoadRequest& request,
                        const LoadOptions& options, Coordinator& coordinator);

/// Loads by a single process.
Result<LoadReport> Load(CheckpointReader& reader, const LoadRequest& request,
                        const LoadOptions& options = {});

}  // namespace varve
