/// Files written by `torch.save`: the zip container of torch >= 1.6 and the legacy one, which is a
/// run of pickles followed by the storages. Nothing in them is ever run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/pickle/tree.h"
#include "interop/zip/directory.h"
#include "varve/status.h"
#include "varve/tensor.h"
#include "varve/value.h"

namespace varve {

/// Strides of 0 repeat what is stored. Above this size, an archive may not ask for more than so
/// many times its bytes: a file of a few hundred would otherwise fill any memory and any disk.
inline constexpr std::uint64_t kAnyTensorBytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kMaxRepeats = 256;

/// Bytes of one storage, which tensors are views of.
struct ArchiveStorage {
  std::string key;
  std::uint64_t begin = 0;  ///< In the archive.
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> crc32;  ///< Of the whole storage; none where none was stored.
};

/// A strided tensor of an archive: element (i, j, ...) is at element offset + i * strides[0] + ...
/// of the storage. Checked to lie in it.
struct ArchiveTensor {
  std::uint32_t storage = 0;
  DType dtype = DType::kUInt8;
  Dims sizes;
  Strides strides;
  std::uint64_t offset = 0;  ///< Elements.
  bool conj = false;         ///< The stored bytes are the conjugate of the values.
  bool neg = false;          ///< The stored bytes are the negative of the values.
  bool requires_grad = false;
};

/// A pickle's tree with the bytes that it views.
struct OwnedPickle {
  std::string bytes;
  PickleTree tree;
};

/// An opened archive: its pickle and where the storages lie. The pickle's bytes are owned.
class TorchArchive {
 public:
  /// Reads the container and the pickle, not the storages. Errors: DataLoss, also where the
  /// pickle's checksum does not match; Unimplemented for big-endian archives, TorchScript and what
  /// else cannot be read; the message says what.
  static Result<TorchArchive> Open(std::uint64_t size, const RangeReader& read);

  /// Makes an archive of a bare pickle: one without storages. Errors: DataLoss.
  static Result<TorchArchive> OfPickle(std::string pickle);

  [[nodiscard]] const PickleTree& tree() const { return pickle_->tree; }
  [[nodiscard]] const std::vector<ArchiveStorage>& storages() const { return storages_; }
  /// Returns the place of the pickle; it has no key.
  [[nodiscard]] const ArchiveStorage& pickle_record() const { return pickle_record_; }

  /// Returns the tensor that a node stands for (`_rebuild_tensor_v2`, `_rebuild_tensor_v3`, a
  /// Parameter, ...). Nothing when it is no strided CPU-readable tensor of a known dtype. Errors:
  /// DataLoss for one that does not lie in its storage.
  [[nodiscard]] Result<std::optional<ArchiveTensor>> TensorAt(PickleRef node) const;

  /// Returns a node as a plain Value, tensors inside as kTensor with their bytes read through
  /// `read`. Nothing when it holds anything that a Value cannot be: such an object stays opaque.
  /// Errors: DataLoss; InvalidArgument when objects that are used many times over would make it
  /// many times larger than the archive.
  [[nodiscard]] Result<std::optional<Value>> ValueAt(PickleRef node, const RangeReader& read) const;

 private:
  [[nodiscard]] std::optional<std::uint32_t> FindStorage(std::string_view key) const;

  std::unique_ptr<OwnedPickle> pickle_;
  ArchiveStorage pickle_record_;
  std::vector<ArchiveStorage> storages_;
  std::vector<std::pair<std::string, std::uint32_t>> by_key_;  // Sorted.
};

/// A tensor that is all of an archive.
struct TensorItem {
  ArchiveTensor tensor;  ///< Its storage's number is 0.
  ArchiveStorage storage;
};

/// Reads the only tensor of an archive, as DCP stores each chunk. Reads at most 2 KiB at either
/// end, of an archive as torch writes it. Errors: DataLoss when the archive holds anything else;
/// otherwise as TorchArchive::Open.
Result<TensorItem> ReadTensorItem(std::uint64_t size, const RangeReader& read);

/// Reads an archive that holds one object, as DCP stores plain values. What no Value can be comes
/// back as a kTorchSave with the archive's bytes.
Result<Value> ReadValueItem(std::string_view archive);

}  // namespace varve
