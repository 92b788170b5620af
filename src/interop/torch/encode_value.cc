// Plain values as torch.save would pickle them at protocol 2, its default: by the calls that each
// type's own __reduce__ gives, so that every unpickler knows them. Two points differ. Nothing is
// shared, as nothing is in a Value; and empty bytes are the same call as others, which torch's
// restricted unpickler knows while it refuses Python's `bytes()`.

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/checksum.h"
#include "interop/torch/encode.h"
#include "interop/torch/encode_parts.h"

namespace varve {
namespace {

constexpr int kMaxEncodedDepth = 256;  // As DecodeValue.
// About as Python: keeps the unpickler's stack small. Even, so that keys stay with their values.
constexpr std::size_t kBatchItems = 1000;

/// Returns true for letters, digits and underscores, as in the name of a dtype.
bool IsName(std::string_view text) {
  constexpr std::string_view kChars =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
  return !text.empty() && text.find_first_not_of(kChars) == std::string_view::npos;
}

/// Returns protocol 2's name of the built-in class that a defaultdict has as its factory.
std::string_view PickledFactory(std::string_view name) {
  constexpr std::string_view kUnchanged = " bool dict float list set tuple ";
  if (name == "int") {
    return "long";
  }
  if (name == "str") {
    return "unicode";
  }
  return IsName(name) && kUnchanged.find(" " + std::string(name) + " ") != std::string_view::npos
             ? name
             : "";
}

/// A tensor inside a value: the storage that it needs, which is the record `data/KEY`.
struct InnerTensor {
  std::string key;
  std::string_view content;
};

/// Leaves have the number of a tensor for their text.
std::optional<std::size_t> LeafNumber(std::string_view text, std::size_t count) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number < count
             ? std::optional(number)
             : std::nullopt;
}

class ValuePickler {
 public:
  /// `leaves`: the tensors that kTensorLeafs stand for.
  explicit ValuePickler(Bytes* out, std::span<const StateTensor> leaves = {})
      : pickle_(out), leaves_(leaves) {}

  /// Writes a value. Errors: as EncodeValueArchive.
  Status Write(const Value& value, int depth);
  Status Finish() { return pickle_.Finish(); }

  [[nodiscard]] const std::vector<InnerTensor>& tensors() const { return tensors_; }

 private:
  Status WriteContainer(const Value& value, int depth);
  Status WriteMapping(const Value& value, int depth);
  Status WriteDefaultDict(const Value& value, int depth);
  Status WriteObject(const Value& value, int depth);
  Status WriteTensor(const Value& value);
  Status WriteTuple(const std::vector<Value>& items, int depth);
  /// Writes the items, or the keys and values, into the list or mapping that lies on top.
  Status WriteItems(const std::vector<Value>& items, bool pairs, int depth);

  Status WriteLeaf(const Value& value);

  PickleWriter pickle_;
  std::span<const StateTensor> leaves_;
  std::vector<InnerTensor> tensors_;
};

Status ValuePickler::Write(const Value& value, int depth) {
  if (depth > kMaxEncodedDepth) {
    return InvalidArgument("a value nests deeper than " + std::to_string(kMaxEncodedDepth) +
                           " levels");
  }
  switch (value.kind) {
    case ValueKind::kNone: pickle_.None(); return Status::Ok();
    case ValueKind::kFalse: pickle_.Bool(false); return Status::Ok();
    case ValueKind::kTrue: pickle_.Bool(true); return Status::Ok();
    case ValueKind::kInt: pickle_.Int(value.text); return Status::Ok();
    case ValueKind::kFloat: pickle_.Float(value.number); return Status::Ok();
    case ValueKind::kStr: return PickleText(value.text, &pickle_);
    case ValueKind::kBytes: pickle_.BytesObject(value.text); return Status::Ok();
    case ValueKind::kList:
    case ValueKind::kTuple:
    case ValueKind::kDict:
    case ValueKind::kOrderedDict:
    case ValueKind::kCounter:
    case ValueKind::kDefaultDict:
    case ValueKind::kNamedDict:
    case ValueKind::kWrapped:
    case ValueKind::kSet:
    case ValueKind::kFrozenSet:
    case ValueKind::kTorchSize: return WriteContainer(value, depth);
    case ValueKind::kNumpyScalar: return PickleNumpyScalar(value, &pickle_);
    case ValueKind::kNumpyArray: return PickleNumpyArray(value, &pickle_);
    case ValueKind::kTensor: return WriteTensor(value);
    case ValueKind::kPickle: return Unimplemented("a value that is stored as a pickle of its own");
    case ValueKind::kTorchSave:
      return Unimplemented("an archive of torch.save inside another value");
    case ValueKind::kTensorLeaf: return WriteLeaf(value);
    case ValueKind::kNamed:  // A pickle that any reader opens holds the plain value.
      return value.items.size() > 1 ? Write(value.items[1], depth + 1)
                                    : InvalidArgument("an object without its plain value");
    case ValueKind::kObjectLeaf: return Unimplemented("a leaf of a structure, which is no value");
    default: return WriteObject(value, depth);
  }
}

Status ValuePickler::WriteContainer(const Value& value, int depth) {
  switch (value.kind) {
    case ValueKind::kTuple: return WriteTuple(value.items, depth);
    case ValueKind::kList: pickle_.List(); return WriteItems(value.items, false, depth);
    case ValueKind::kSet:
    case ValueKind::kFrozenSet:
      pickle_.Global("__builtin__", value.kind == ValueKind::kSet ? "set" : "frozenset");
      pickle_.List();
      VARVE_RETURN_IF_ERROR(WriteItems(value.items, false, depth));
      break;
    case ValueKind::kTorchSize:
      for (const Value& size : value.items) {
        VARVE_RETURN_IF_ERROR(IntOf(size, "an item of a torch.Size").status());
      }
      pickle_.Global("torch", "Size");
      VARVE_RETURN_IF_ERROR(WriteTuple(value.items, depth));
      break;
    default: return WriteMapping(value, depth);
  }
  pickle_.Tuple1();
  pickle_.Reduce();
  return Status::Ok();
}

Status ValuePickler::WriteMapping(const Value& value, int depth) {
  if (value.items.size() % 2 != 0) {
    return InvalidArgument("a mapping with a key but no value");
  }
  switch (value.kind) {
    case ValueKind::kOrderedDict:
      pickle_.Global("collections", "OrderedDict");
      pickle_.Tuple0();
      pickle_.Reduce();
      return WriteItems(value.items, true, depth);
    case ValueKind::kCounter:
      pickle_.Global("collections", "Counter");
      pickle_.Dict();
      VARVE_RETURN_IF_ERROR(WriteItems(value.items, true, depth));
      pickle_.Tuple1();
      pickle_.Reduce();
      return Status::Ok();
    case ValueKind::kDefaultDict: return WriteDefaultDict(value, depth);
    default: pickle_.Dict(); return WriteItems(value.items, true, depth);
  }
}

Status ValuePickler::WriteDefaultDict(const Value& value, int depth) {
  pickle_.Global("collections", "defaultdict");
  if (value.text.empty()) {
    pickle_.Tuple0();
  } else {
    const std::string_view factory = PickledFactory(value.text);
    if (factory.empty()) {
      return Unimplemented("a defaultdict with the factory " + QuotedStart(value.text));
    }
    pickle_.Global("__builtin__", factory);
    pickle_.Tuple1();
  }
  pickle_.Reduce();
  return WriteItems(value.items, true, depth);
}

Status ValuePickler::WriteObject(const Value& value, int depth) {
  switch (value.kind) {
    case ValueKind::kComplex:
      pickle_.Global("__builtin__", "complex");
      pickle_.Float(value.number);
      pickle_.Float(value.imaginary);
      pickle_.Tuple2();
      break;
    case ValueKind::kByteArray:
      pickle_.Global("__builtin__", "bytearray");
      pickle_.BytesObject(value.text);
      pickle_.Tuple1();
      break;
    case ValueKind::kTorchDevice:
      pickle_.Global("torch", "device");
      VARVE_RETURN_IF_ERROR(PickleText(value.text, &pickle_));
      pickle_.Tuple1();
      break;
    case ValueKind::kPath:
      if (value.items.size() != 1 ||
          (value.items[0].text != "PosixPath" && value.items[0].text != "PurePosixPath")) {
        return InvalidArgument("a path of a class that is not known");
      }
      pickle_.Global("pathlib", value.items[0].text);
      VARVE_RETURN_IF_ERROR(PickleText(value.text, &pickle_));
      pickle_.Tuple1();
      break;
    case ValueKind::kSlice:
      pickle_.Global("__builtin__", "slice");
      if (value.items.size() != 3) {
        return InvalidArgument("a slice of " + std::to_string(value.items.size()) + " parts");
      }
      VARVE_RETURN_IF_ERROR(WriteTuple(value.items, depth));
      break;
    case ValueKind::kTorchDType:
      if (!IsName(value.text)) {
        return InvalidArgument(QuotedStart(value.text) + " is no torch dtype");
      }
      pickle_.Global("torch", value.text);
      return Status::Ok();
    case ValueKind::kRange: return PickleRange(value, &pickle_);
    case ValueKind::kDateTime:
    case ValueKind::kDate:
    case ValueKind::kTime:
    case ValueKind::kTimeDelta:
    case ValueKind::kTimeZone:
    case ValueKind::kZoneInfo: return PickleTime(value, &pickle_);
    default:
      return Unimplemented("a value of kind " + std::to_string(static_cast<int>(value.kind)));
  }
  pickle_.Reduce();
  return Status::Ok();
}

Status ValuePickler::WriteTensor(const Value& value) {
  if (value.items.size() != 2 || value.items[0].kind != ValueKind::kStr) {
    return InvalidArgument("a tensor without dtype and shape");
  }
  const auto dtype = DTypeFromName(value.items[0].text);
  if (!dtype) {
    return Unimplemented("a tensor of type " + QuotedStart(value.items[0].text));
  }
  VARVE_ASSIGN_OR_RETURN(const Dims shape, ShapeOf(value.items[1], "the shape of a tensor"));
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t bytes, TorchTensorBytes(*dtype, shape));
  if (bytes != value.text.size()) {
    return InvalidArgument("a tensor of " + value.items[0].text + " and shape " + ToString(shape) +
                           " with " + std::to_string(value.text.size()) + " bytes");
  }
  // The leaves' records have the first keys.
  tensors_.push_back({std::to_string(leaves_.size() + tensors_.size()), value.text});
  PickleTensor(*dtype, shape, tensors_.back().key, &pickle_);
  return Status::Ok();
}

Status ValuePickler::WriteLeaf(const Value& value) {
  if (leaves_.empty()) {
    return Unimplemented("a leaf of a structure, which is no value");
  }
  const auto number = LeafNumber(value.text, leaves_.size());
  if (!number) {
    return InvalidArgument("a leaf of a structure that stands for no tensor");
  }
  const StateTensor& tensor = leaves_[*number];
  VARVE_RETURN_IF_ERROR(TorchTensorBytes(tensor.dtype, tensor.sizes).status());
  PickleTensor(tensor.dtype, tensor.sizes, std::to_string(*number), &pickle_);
  return Status::Ok();
}

Status ValuePickler::WriteTuple(const std::vector<Value>& items, int depth) {
  if (items.size() > 3) {
    pickle_.Mark();
  }
  for (const Value& item : items) {
    VARVE_RETURN_IF_ERROR(Write(item, depth + 1));
  }
  switch (items.size()) {
    case 0: pickle_.Tuple0(); break;
    case 1: pickle_.Tuple1(); break;
    case 2: pickle_.Tuple2(); break;
    case 3: pickle_.Tuple3(); break;
    default: pickle_.Tuple(); break;
  }
  return Status::Ok();
}

Status ValuePickler::WriteItems(const std::vector<Value>& items, bool pairs, int depth) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i % kBatchItems == 0) {
      pickle_.Mark();
    }
    VARVE_RETURN_IF_ERROR(Write(items[i], depth + 1));
    if ((i + 1) % kBatchItems != 0 && i + 1 < items.size()) {
      continue;
    }
    if (pairs) {
      pickle_.SetItems();
    } else {
      pickle_.Appends();
    }
  }
  return Status::Ok();
}

/// Returns true where a pickle of plain values is less than the value.
bool HoldsClasses(const Value& value) {  // NOLINT(misc-no-recursion)
  return value.kind == ValueKind::kNamed || value.kind == ValueKind::kNamedDict ||
         std::any_of(value.items.begin(), value.items.end(), HoldsClasses);
}

}  // namespace

Result<Bytes> EncodeValueArchive(const Value& value) {
  if (value.kind == ValueKind::kTorchSave) {
    return value.text;
  }
  Bytes content;
  ValuePickler pickler(&content);
  Status written = pickler.Write(value, 0);
  if (written.ok()) {
    written = pickler.Finish();
  }
  if (!written.ok()) {
    return written.Annotate("cannot be a torch.save archive");
  }
  ZipWriter zip;
  Bytes archive;
  std::uint64_t bytes = content.size() + 1024;
  for (const InnerTensor& tensor : pickler.tensors()) {
    bytes += tensor.content.size() + 256;  // With its header and directory entry.
  }
  archive.reserve(bytes);
  AddTorchRecords(content, &zip, &archive);
  for (const InnerTensor& tensor : pickler.tensors()) {
    AddTorchStorage(tensor.key, tensor.content.size(),
                    Crc32ZipExtend(0, AsByteSpan(tensor.content)), kTorchStorageAlignment, &zip,
                    &archive);
    archive.append(tensor.content);
  }
  if (HoldsClasses(value)) {
    const Bytes encoded = EncodeValue(value);
    if (encoded.size() <= kMaxValueRecordBytes) {
      zip.AddRecord(kValueRecord, encoded, 1, &archive);
    }
  }
  zip.Finish(&archive);
  return archive;
}

Result<PickledState> PickleState(const Value& state, std::span<const StateTensor> tensors) {
  PickledState pickled;
  ValuePickler pickler(&pickled.pickle, tensors);
  Status written = pickler.Write(state, 0);
  if (written.ok()) {
    written = pickler.Finish();
  }
  if (!written.ok()) {
    return written.Annotate("cannot be a torch.save archive");
  }
  for (const InnerTensor& tensor : pickler.tensors()) {
    pickled.small.emplace_back(tensor.key, tensor.content);
  }
  pickled.storage_bytes.reserve(tensors.size());
  for (const StateTensor& tensor : tensors) {
    VARVE_ASSIGN_OR_RETURN(const std::uint64_t bytes, TorchTensorBytes(tensor.dtype, tensor.sizes));
    pickled.storage_bytes.push_back(bytes);
  }
  return pickled;
}

StateArchive EncodeStateArchive(const PickledState& state,
                                std::span<const std::uint32_t> payload_crc32) {
  ZipWriter zip;
  StateArchive archive;
  archive.heads.resize(state.storage_bytes.size());
  // Small records come first: then all bytes behind a payload are known except its checksum.
  Bytes& first = archive.heads.empty() ? archive.tail : archive.heads[0];
  AddTorchRecords(state.pickle, &zip, &first);
  for (const auto& [key, content] : state.small) {
    AddTorchStorage(key, content.size(), Crc32ZipExtend(0, AsByteSpan(content)),
                    kTorchStorageAlignment, &zip, &first);
    first.append(content);
  }
  for (std::size_t i = 0; i < archive.heads.size(); ++i) {
    const std::string name = "archive/data/" + std::to_string(i);
    zip.AddHeader({.name = name,
                   .bytes = state.storage_bytes[i],
                   .crc32 = payload_crc32.empty() ? 0 : payload_crc32[i],
                   .alignment = kTorchStorageAlignment,
                   .descriptor = true},
                  &archive.heads[i]);
  }
  zip.Finish(&archive.tail);
  return archive;
}

}  // namespace varve
