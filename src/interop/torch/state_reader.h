/// Reads a torch.save archive, or parts of it, into a StateNode tree.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "interop/decoded.h"
#include "interop/state_tree.h"
#include "interop/torch/archive.h"
#include "interop/torch/values.h"
#include "interop/zip/directory.h"
#include "varve/status.h"

namespace varve {

/// Returns the stored tensor of an archive that is data file number `file`: one chunk, of the
/// whole.
StoredTensor StoredWhole(const TorchArchive& archive, const ArchiveTensor& tensor,
                         std::uint32_t file);

/// Returns the checksums of the storages of an archive that is data file number `file`.
std::vector<RecordCrc> StorageRecords(const TorchArchive& archive, std::uint32_t file);

/// A mapping of a pickle whose keys are all plain values.
struct StateMapping {
  ValueKind kind = ValueKind::kDict;
  std::string factory;
  std::vector<Value> keys;
  std::vector<PickleRef> items;

  /// Returns the item of a str key, or kNoPickle.
  [[nodiscard]] PickleRef Find(std::string_view key) const;
};

/// Opens containers as DCP does: dicts always, lists only if they, or lists nested in them, hold a
/// tensor or a dict, tuples never. All calls together are limited as those of TorchValues are. An
/// object that no Value can be becomes a kTorchSave without text: a part of a file is no archive of
/// its own.
class StateReader {
 public:
  /// Returns what a node is that a layout gives a meaning of its own, or nothing.
  using Hook = std::function<Result<std::optional<StateNode>>(PickleRef node)>;

  /// `archive` and `read` must outlive this. `file` is the archive's number in Metadata::files.
  StateReader(const TorchArchive& archive, const RangeReader& read, std::uint32_t file,
              Hook hook = {});

  /// Reads the subtree at `node`. `name` is its FQN, for messages. Errors: as TorchArchive;
  /// InvalidArgument for one that is too deep, or that would be many times larger than the archive.
  Result<StateNode> At(PickleRef node, const std::string& name);

  /// Reads `node` as one leaf, whatever it is: a container is one value, which holds its tensors.
  Result<StateNode> LeafAt(PickleRef node, const std::string& name);

  /// Returns the mapping that `node` is; nothing for anything else. Errors: as At.
  Result<std::optional<StateMapping>> MappingAt(PickleRef node);

  /// Returns the plain value that `node` is, or nothing. Errors: as At.
  Result<std::optional<Value>> ValueAt(PickleRef node) { return values_.At(node); }

 private:
  Result<StateNode> Walk(PickleRef node, const std::string& name, int depth);
  bool Opens(PickleRef list, int depth = 0);

  const TorchArchive& archive_;
  const PickleTree& tree_;
  TorchValues values_;
  std::uint32_t file_;
  Hook hook_;
  std::unordered_map<PickleRef, bool> opens_;  // Looked up only.
};

/// Reads a whole file of torch.save as a checkpoint: flattens the saved object as StateReader opens
/// it; an object that is no dict is one entry with the empty name. Reads the container and the
/// pickle, and of the storages only those of tensors that are part of a value.
///
/// Tensors get extents of Encoding::kPlain, values Encoding::kInline. `file_name` is the name of
/// the one data file. Errors: as TorchArchive::Open; InvalidArgument when two entries get one name.
Result<Decoded> DecodeTorchFile(std::uint64_t size, const RangeReader& read, std::string file_name);

}  // namespace varve
