#include "interop/torch/encode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "base/checked.h"
#include "interop/torch/encode_parts.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// Returns the class of torch's typed storages for a dtype; empty for younger dtypes, which have
/// none.
std::string_view StorageClass(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "BoolStorage";
    case DType::kUInt8: return "ByteStorage";
    case DType::kInt8: return "CharStorage";
    case DType::kInt16: return "ShortStorage";
    case DType::kInt32: return "IntStorage";
    case DType::kInt64: return "LongStorage";
    case DType::kFloat16: return "HalfStorage";
    case DType::kBFloat16: return "BFloat16Storage";
    case DType::kFloat32: return "FloatStorage";
    case DType::kFloat64: return "DoubleStorage";
    case DType::kComplex64: return "ComplexFloatStorage";
    case DType::kComplex128: return "ComplexDoubleStorage";
    default: return "";
  }
}

template <class Numbers>
void PickleInts(const Numbers& numbers, PickleWriter* pickle) {
  pickle->Mark();
  for (const auto number : numbers) {
    pickle->Int(static_cast<std::int64_t>(number));
  }
  pickle->Tuple();
}

}  // namespace

Result<std::uint64_t> TorchTensorBytes(DType dtype, const Dims& sizes) {
  // As many elements as the strides speak of: a dimension without elements counts as one.
  std::uint64_t extent = ItemSize(dtype);
  bool empty = false;
  for (const std::uint64_t size : sizes) {
    const auto next = CheckedMul(extent, std::max<std::uint64_t>(size, 1));
    if (!next || *next > (std::uint64_t{1} << 62)) {
      return InvalidArgument("a tensor of shape " + ToString(sizes) + " and type " +
                             std::string(DTypeName(dtype)) + " is larger than 2^62 bytes");
    }
    extent = *next;
    empty = empty || size == 0;
  }
  return empty ? 0 : extent;
}

void PickleTensor(DType dtype, const Dims& sizes, std::string_view key, PickleWriter* pickle) {
  // The calls of torch.Tensor.__reduce_ex__: with a typed storage
  //   _rebuild_tensor_v2(storage, offset, size, strides, requires_grad, hooks)
  // and without one _rebuild_tensor_v3(..., dtype), whose storage counts bytes.
  const std::string_view storage = StorageClass(dtype);
  const bool typed = !storage.empty();
  std::uint64_t count = typed ? 1 : ItemSize(dtype);
  for (const std::uint64_t size : sizes) {
    count *= size;
  }
  pickle->Global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickle->Mark();

  pickle->Mark();
  pickle->Str("storage");
  pickle->Global(typed ? "torch" : "torch.storage", typed ? storage : "UntypedStorage");
  pickle->Str(key);
  pickle->Str("cpu");
  pickle->Int(static_cast<std::int64_t>(count));
  pickle->Tuple();
  pickle->PersistentId();

  pickle->Int(0);
  PickleInts(sizes, pickle);
  PickleInts(RowMajorStrides(sizes), pickle);
  pickle->Bool(false);
  pickle->Global("collections", "OrderedDict");
  pickle->Tuple0();
  pickle->Reduce();
  if (!typed) {
    pickle->Global("torch", DTypeName(dtype));
  }
  pickle->Tuple();
  pickle->Reduce();
}

void AddTorchRecords(std::string_view pickle, ZipWriter* zip, Bytes* out) {
  // torch takes the folder from the first record. It needs the pickle and the version; the byte
  // order spares it a guess. It does not miss `.data/serialization_id`, nor `.format_version`, by
  // which it would take the places of storages to be those of its own writer.
  zip->AddRecord("archive/data.pkl", pickle, 1, out);
  zip->AddRecord("archive/byteorder", "little", 1, out);
  zip->AddRecord("archive/version", "3\n", 1, out);
}

std::uint64_t AddTorchStorage(std::string_view key, std::uint64_t bytes, std::uint32_t crc32,
                              std::uint64_t alignment, ZipWriter* zip, Bytes* out) {
  const std::string name = "archive/data/" + std::string(key);
  return zip->AddHeader({.name = name, .bytes = bytes, .crc32 = crc32, .alignment = alignment},
                        out);
}

Result<TensorArchive> EncodeTensorArchive(DType dtype, const Dims& sizes,
                                          std::optional<std::uint32_t> payload_crc32, bool align) {
  TensorArchive archive;
  VARVE_ASSIGN_OR_RETURN(archive.payload_bytes, TorchTensorBytes(dtype, sizes));
  Bytes content;
  content.reserve(512);
  PickleWriter pickle(&content);
  PickleTensor(dtype, sizes, "0", &pickle);
  VARVE_RETURN_IF_ERROR(pickle.Finish());

  const std::uint64_t alignment = align ? kTorchItemAlignment : kTorchStorageAlignment;
  ZipWriter zip;
  // The three small records take some 180 bytes beside the pickle.
  archive.head.reserve(RoundUp(content.size() + 512, alignment));
  AddTorchRecords(content, &zip, &archive.head);
  archive.filler_bytes = AddTorchStorage("0", archive.payload_bytes, payload_crc32.value_or(0),
                                         alignment, &zip, &archive.head);
  archive.tail.reserve(512);
  zip.Finish(&archive.tail);
  return archive;
}

StorageHeads EncodePickledArchive(std::string_view pickle,
                                  std::span<const std::uint64_t> storage_bytes) {
  StorageHeads archive;
  archive.heads.resize(storage_bytes.size());
  ZipWriter zip;
  AddTorchRecords(pickle, &zip, &archive.heads.front());
  for (std::size_t i = 0; i < storage_bytes.size(); ++i) {
    const bool align = storage_bytes[i] >= kTorchItemAlignment;
    archive.on_page = archive.on_page || align;
    archive.filler_bytes.push_back(AddTorchStorage(
        std::to_string(i), storage_bytes[i], 0,
        align ? kTorchItemAlignment : kTorchStorageAlignment, &zip, &archive.heads[i]));
  }
  zip.Finish(&archive.tail);
  return archive;
}

}  // namespace varve
