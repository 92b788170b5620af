/// Types and functions that the decoders of torch.save's files share. Private to them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "interop/pickle/tree.h"
#include "interop/torch/archive.h"
#include "interop/zip/directory.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// An unpacked container, of either kind.
struct TorchContainer {
  std::unique_ptr<OwnedPickle> pickle;
  ArchiveStorage pickle_record;
  std::vector<ArchiveStorage> storages;
};

/// A pickle of more bytes than this is not read.
inline constexpr std::uint64_t kMaxTorchPickleBytes = std::uint64_t{1} << 30;

/// Reads a zip container. Errors: as TorchArchive::Open.
Result<TorchContainer> ReadZipContainer(std::uint64_t size, const RangeReader& read);
Result<TorchContainer> ReadLegacyContainer(std::uint64_t size, const RangeReader& read);

/// Reads the tree of the pickle that `bytes` begin with.
Result<std::unique_ptr<OwnedPickle>> ReadOwnedPickle(std::string bytes,
                                                     std::uint64_t* consumed = nullptr);

/// Returns true when `head`, the first bytes of a file, begin a legacy container.
bool BeginsLegacyContainer(std::string_view head);

/// The element type of the storage class `module.name`, or of a dtype that stands for one.
struct StorageType {
  std::uint64_t item_bytes = 1;
  std::optional<DType> dtype;  ///< Nothing for types that no DType is for (quantized).
};
std::optional<StorageType> FindStorageType(std::string_view module, std::string_view name);

/// A storage as the pickle refers to it: a persistent id. Numbers are in elements.
struct StorageReference {
  std::string_view key;
  StorageType type;
  std::uint64_t count = 0;
  std::uint64_t view_offset = 0;  ///< Legacy files: a storage may be a part of another one,
  std::uint64_t view_count = 0;   ///< which is what `key` names.
};
std::optional<StorageReference> StorageReferenceAt(const PickleTree& tree, PickleRef node);

/// Returns the nodes that can be reached from `root`, each once, at most `max_nodes` of them.
std::vector<PickleRef> ReachableNodes(const PickleTree& tree, PickleRef root,
                                      std::uint64_t max_nodes);

/// Returns the arguments of an object; empty where they are no tuple.
std::span<const PickleRef> ArgumentsOf(const PickleTree& tree, PickleRef object);

/// Returns a kInt that is not negative.
std::optional<std::uint64_t> CountAt(const PickleTree& tree, PickleRef node);

/// Returns the ints of a tuple, list or torch.Size. Nothing when one is negative or no int, or when
/// they are more than any tensor has dimensions.
std::optional<Dims> DimsAt(const PickleTree& tree, PickleRef node);

/// Returns true for a dict that can be an object's attributes: one of few entries, since they are
/// searched one by one and many objects may share it.
bool IsAttributes(const PickleTree& tree, PickleRef node);

/// Checks a tensor's place. Errors: DataLoss when not all of the tensor's elements are among the
/// first `storage_bytes` of the storage, or there are too many of them; InvalidArgument when its
/// strides repeat the storage too often (kMaxRepeats). The offset of an empty tensor is brought
/// into it.
Status CheckTensorPlace(std::uint64_t storage_bytes, ArchiveTensor* tensor);

/// Returns true for a tensor of any kind, also one that TensorAt gives nothing for.
bool IsTensorNode(const PickleTree& tree, PickleRef node);

}  // namespace varve
