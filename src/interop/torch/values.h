/// Plain values out of a torch.save archive. Private to the decoders of such files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "interop/torch/archive.h"
#include "interop/torch/globals.h"
#include "varve/value.h"

namespace varve {

/// A mapping that a Value can be: dict, OrderedDict, Counter, defaultdict.
struct PickledMapping {
  ValueKind kind = ValueKind::kDict;
  std::string factory;           ///< Of a defaultdict: its name, or empty.
  std::vector<PickleRef> pairs;  ///< Key, value, key, value, ...
};

/// Turns nodes of one archive into Values. All calls together are limited: an object that is used
/// in many places becomes many copies, so a small archive could ask for any amount.
class TorchValues {
 public:
  /// Both must outlive this.
  TorchValues(const TorchArchive& archive, const RangeReader& read);

  /// Does the same as TorchArchive::ValueAt.
  Result<std::optional<Value>> At(PickleRef node);

  /// Returns the mapping that `node` is, or nothing. Errors: as At.
  Result<std::optional<PickledMapping>> MappingAt(PickleRef node);

  /// Counts one more value of `bytes` bytes that was made of the archive. Errors: as At.
  Status Charge(std::uint64_t bytes);

  /// Returns a kTorchSave without text that names what `node` needs, for which At has just given
  /// nothing.
  Value OpaqueAt(PickleRef node);

 private:
  // These return false when the node cannot be a Value, and when status_ is an error.
  bool Convert(PickleRef node, int depth, Value* out);
  bool ConvertPlain(PickleRef node, int depth, Value* out);
  bool ConvertObject(PickleRef node, int depth, Value* out);
  bool ConvertAll(std::span<const PickleRef> nodes, int depth, Value* out);
  bool ConvertMapping(PickleRef node, int depth, Value* out);
  bool ConvertCollection(std::span<const PickleRef> arguments, int depth, Value* out);
  bool ConvertNumbers(std::span<const PickleRef> arguments, ValueKind kind, int depth, Value* out);
  bool ConvertClock(std::span<const PickleRef> arguments, ValueKind kind, int depth, Value* out);
  bool ConvertTimeZone(std::span<const PickleRef> arguments, int depth, Value* out);
  bool ConvertTensor(PickleRef node, Value* out);
  bool Text(ValueKind kind, std::optional<std::string> text, Value* out);
  bool Take(Result<std::optional<Value>> value, Value* out);

  bool Spend(std::uint64_t bytes);

  const TorchArchive& archive_;
  const PickleTree& tree_;
  const RangeReader& read_;
  std::uint64_t nodes_left_;
  std::uint64_t bytes_left_;
  Status status_;
  std::string obstacle_;  // The innermost thing that could not be a Value.
};

// ---- pieces of it: objects.cc ----

/// Returns the global that was called to make the object `node`, if it is known.
std::optional<KnownGlobal> KnownCallee(const PickleTree& tree, PickleRef node);

/// Returns the content of a bytes object, however the protocol wrote it. Nothing when it is longer
/// than `max_bytes`.
std::optional<std::string> BytesAt(const PickleTree& tree, PickleRef node,
                                   std::uint64_t max_bytes = ~std::uint64_t{0});
/// Returns the content of a bytearray, from the arguments of its call.
std::optional<std::string> ByteArrayAt(const PickleTree& tree,
                                       std::span<const PickleRef> arguments);

/// Returns true when all but the entries say that `node` is a mapping.
bool IsMappingNode(const PickleTree& tree, PickleRef node);
/// Returns the mapping that `node` is. Takes time in proportion to its size.
std::optional<PickledMapping> PickledMappingAt(const PickleTree& tree, PickleRef node);

/// Returns the key of the ZoneInfo that the object `node` is.
std::optional<std::string> ZoneKeyAt(const PickleTree& tree, PickleRef node);

/// Returns str() of a PosixPath or PurePosixPath from the parts that it is made of: parts joined by
/// slashes, those before an absolute one dropped, without repeated slashes and single dots.
std::optional<std::string> PathText(const PickleTree& tree, std::span<const PickleRef> arguments);

/// Returns "cuda:1" from the arguments of torch.device.
std::optional<std::string> DeviceText(const PickleTree& tree, std::span<const PickleRef> arguments);

// ---- time.cc ----

/// Returns Python's isoformat() of the state that datetime, date and time pickle (10, 4 and 6
/// bytes), without time zone and fold. Nothing for an invalid state.
std::optional<std::string> DateTimeText(std::string_view state);
std::optional<std::string> DateText(std::string_view state);
std::optional<std::string> ClockText(std::string_view state);

/// Returns Python's name of a timezone that was given none: "UTC+01:00". Nothing for an offset of a
/// day or more.
std::optional<std::string> TimeZoneName(std::int64_t days, std::int64_t seconds,
                                        std::int64_t microseconds);

// ---- numpy.cc ----

/// Reads a numpy scalar (`scalar(dtype, bytes)`) or array (`_reconstruct(...)` with its state, or
/// `_frombuffer(...)`). Nothing for dtypes with objects or fields. Errors: DataLoss when the bytes
/// do not fit the shape.
Result<std::optional<Value>> NumpyScalarAt(const PickleTree& tree, PickleRef node);
Result<std::optional<Value>> NumpyArrayAt(const PickleTree& tree, PickleRef node);

// ---- gather.cc ----

/// Bytes from the first addressed element to the last, in the storage. Empty for an empty tensor.
struct TensorSpan {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
TensorSpan SpanOf(const ArchiveTensor& tensor);

/// Returns the elements of a tensor, row-major and packed, with conjugation and negation applied;
/// `span` is the content of SpanOf(tensor). Nothing where the dtype has no conjugate or negative.
std::optional<std::string> PackTensor(const ArchiveTensor& tensor, std::string_view span);

}  // namespace varve
