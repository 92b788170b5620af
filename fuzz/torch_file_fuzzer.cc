// DecodeTorchFile, ReadTensorItem and ReadValueItem. An input that begins as a file of torch.save
// is taken for one; any other is the pickle of an archive with two storages, for no fuzzer guesses
// the pickle's checksum.

#include "fuzz_target.h"
#include "interop/torch/archive.h"
#include "interop/torch/state_reader.h"
#include "interop/zip/writer.h"
#include "tensor/box.h"

namespace varve::torch_file_fuzzer {
namespace {

Bytes ArchiveOf(std::string_view pickle) {
  Bytes file;
  ZipWriter writer;
  writer.AddRecord("archive/data.pkl", pickle, 1, &file);
  constexpr int kStorages = 12;
  for (int key = 0; key < kStorages; ++key) {
    const std::string content(key == 1 ? 7 : 512, static_cast<char>(key));
    writer.AddRecord("archive/data/" + std::to_string(key), content, 64, &file);
  }
  writer.Finish(&file);
  return file;
}

bool IsWholeFile(std::string_view input) {
  return input.starts_with("PK") || input.starts_with("\x80\x02\x8a\x0a");
}

/// Returns the bytes from the first to the last element of a chunk, as its strides say.
std::uint64_t SpanBytes(const TensorMetadata& tensor, const Chunk& chunk) {
  const Strides strides = chunk.strides.empty() ? RowMajorStrides(tensor.shape) : chunk.strides;
  VARVE_FUZZ_CHECK(strides.size() == tensor.shape.size());
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (tensor.shape[d] == 0) {
      return 0;
    }
    last += (tensor.shape[d] - 1) * static_cast<std::uint64_t>(strides[d]);
  }
  return (last + 1) * ItemSize(tensor.dtype);
}

void CheckDecoded(const Decoded& decoded, std::uint64_t size) {
  for (const TensorMetadata& tensor : decoded.metadata.tensors) {
    VARVE_FUZZ_CHECK(tensor.chunks.size() == 1);
    const Chunk& chunk = tensor.chunks[0];
    VARVE_FUZZ_CHECK(chunk.extent.begin <= chunk.extent.end && chunk.extent.end <= size);
    VARVE_FUZZ_CHECK(chunk.extent.end - chunk.extent.begin == SpanBytes(tensor, chunk));
    VARVE_FUZZ_CHECK(decoded.metadata.FindTensor(tensor.fqn) == &tensor);
  }
  for (const ObjectMetadata& object : decoded.metadata.objects) {
    VARVE_FUZZ_CHECK(object.extent.encoding == Encoding::kInline);
    VARVE_FUZZ_CHECK(object.extent.begin < decoded.inline_values.size());
    VARVE_FUZZ_CHECK(decoded.metadata.FindObject(object.fqn) == &object);
  }
  for (const std::string& value : decoded.inline_values) {
    VARVE_FUZZ_CHECK(DecodeValue(value).ok());
  }
  if (decoded.structure) {
    VARVE_FUZZ_CHECK(DecodeValue(EncodeValue(*decoded.structure)).ok());
  }
}

}  // namespace

VARVE_FUZZ_TARGET(torch_file) {
  const Bytes file = IsWholeFile(input) ? Bytes(input) : ArchiveOf(input);
  const RangeReader read = [&](std::uint64_t begin, std::uint64_t size) {
    VARVE_FUZZ_CHECK(begin <= file.size() && size <= file.size() - begin);
    return ReadFrom(file)(begin, size);
  };
  if (const auto decoded = DecodeTorchFile(file.size(), read, "file.pt"); decoded.ok()) {
    CheckDecoded(*decoded, file.size());
  }
  if (const auto item = ReadTensorItem(file.size(), read); item.ok()) {
    VARVE_FUZZ_CHECK(item->storage.begin + item->storage.bytes <= file.size());
    VARVE_FUZZ_CHECK(item->tensor.offset * ItemSize(item->tensor.dtype) <= item->storage.bytes);
  }
  if (const auto value = ReadValueItem(file); value.ok()) {
    const auto again = DecodeValue(EncodeValue(*value));
    VARVE_FUZZ_CHECK(again.ok() && *again == *value);
  }
}

}  // namespace varve::torch_file_fuzzer
