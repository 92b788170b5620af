/// torch.save archives, as PyTorch Distributed Checkpoint stores each tensor and value: the bytes
/// before and behind the payload. Pure: the payload itself never passes through here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "varve/status.h"
#include "varve/tensor.h"
#include "varve/value.h"

namespace varve {

inline constexpr std::uint64_t kTorchItemAlignment = 4096;

/// The byte with which torch.save fills the gap before a payload.
inline constexpr char kTorchFiller = 'Z';

/// An archive that holds one contiguous tensor: `head`, then the tensor's row-major bytes, then
/// `tail`. If it was aligned and lies at a multiple of kTorchItemAlignment in a file, so does the
/// payload.
struct TensorArchive {
  Bytes head;
  /// Number of head's last bytes that are kTorchFiller: a caller that holds many archives can drop
  /// them.
  std::uint64_t filler_bytes = 0;
  std::uint64_t payload_bytes = 0;
  Bytes tail;
  [[nodiscard]] std::uint64_t size() const { return head.size() + payload_bytes + tail.size(); }
};

/// Encodes the archive of a tensor. `payload_crc32` goes into the zip directory; without it the
/// field is 0, which PyTorch (whose reader never looks) and Varve take as "none". With `align`
/// false the payload begins at a multiple of 64 bytes from the archive's beginning, as with
/// torch.save. All small records lie before the payload: `tail` is the directory alone. Errors:
/// InvalidArgument for sizes that overflow.
Result<TensorArchive> EncodeTensorArchive(DType dtype, const Dims& sizes,
                                          std::optional<std::uint32_t> payload_crc32, bool align);

/// Returns an archive that holds one plain value. Any reader gets from it what torch.save of the
/// value would give, with the same Python types; for a value of a class the plain one that stands
/// for it, and ReadValueItem the value itself if it is not large. Pickle protocol 2. A kPickle or
/// kTorchSave inside is refused; a kTorchSave as the whole value gives its archive back unchanged.
/// Errors: Unimplemented for what cannot be in such an archive; InvalidArgument for a value that
/// Python could not have (a date in month 13, text that is not UTF-8), one deeper than 256 levels,
/// and text or bytes of 4 GiB and more.
Result<Bytes> EncodeValueArchive(const Value& value);

/// The bytes around the storages of an archive: one head before each.
struct StorageHeads {
  std::vector<Bytes> heads;
  /// Of each head: how many of its last bytes are kTorchFiller.
  std::vector<std::uint64_t> filler_bytes;
  Bytes tail;            ///< Behind the last storage.
  bool on_page = false;  ///< Wants to lie at a multiple of kTorchItemAlignment.
};

/// Encodes the archive of a `pickle` that another software has made, which names its storages "0",
/// "1", .... Requires: there is one. A storage of a page and more begins at a multiple of
/// kTorchItemAlignment in the archive. No storage has a checksum.
StorageHeads EncodePickledArchive(std::string_view pickle,
                                  std::span<const std::uint64_t> storage_bytes);

/// A tensor that an archive of a whole state holds.
struct StateTensor {
  DType dtype = DType::kUInt8;
  Dims sizes;
};

/// A state as torch.save pickles it. The pickle names its storages by their numbers, "0", "1", ....
struct PickledState {
  Bytes pickle;
  std::vector<std::uint64_t> storage_bytes;  ///< By number.
  /// Storages that are written with the pickle: their names in it, and their bytes.
  std::vector<std::pair<std::string, Bytes>> small;
};

/// Pickles a state: containers and plain values as EncodeValueArchive takes them, in which a
/// kTensorLeaf stands for a tensor, its text the number in `tensors`, which is that of its storage
/// too. Errors: as EncodeValueArchive, and InvalidArgument for a leaf with no tensor.
Result<PickledState> PickleState(const Value& state, std::span<const StateTensor> tensors);

/// The bytes around the payloads of one torch.save file with many storages.
struct StateArchive {
  std::vector<Bytes> heads;  ///< One before the bytes of each storage, in their order.
  Bytes tail;                ///< Behind the last; of the same size whatever the checksums.
};

/// Returns an archive of a state. Behind each payload comes the ZipDescriptor of its checksum.
/// `payload_crc32`, by storage, go into the zip directory; while they are not known yet it may be
/// empty, and the directory holds 0.
StateArchive EncodeStateArchive(const PickledState& state,
                                std::span<const std::uint32_t> payload_crc32);

}  // namespace varve
