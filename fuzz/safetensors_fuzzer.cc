// ReadSafetensorsHeader and DecodeSafetensors. An input that begins with `{` is one or more headers
// as JSON, separated by zero bytes: each becomes a file with some data. Any other is one whole
// file.

#include "base/bytes.h"
#include "disjoint.h"
#include "fuzz_target.h"
#include "interop/safetensors/decode.h"
#include "tensor/box.h"

namespace varve::safetensors_fuzzer {
namespace {

constexpr std::uint64_t kDataBytes = 4096;

/// Returns a file of these bytes, followed by so much data that is never read.
NamedFile FileOf(std::size_t number, std::string bytes, std::uint64_t data_bytes) {
  const std::uint64_t size = bytes.size() + data_bytes;
  const auto read = [bytes = std::move(bytes)](std::uint64_t begin,
                                               std::uint64_t count) -> Result<std::string> {
    VARVE_FUZZ_CHECK(begin <= bytes.size() && count <= bytes.size() - begin);
    return bytes.substr(begin, count);
  };
  return {"file-" + std::to_string(number), size, read};
}

std::vector<NamedFile> FilesOf(std::string_view input) {
  if (!input.starts_with('{')) {
    return {FileOf(0, std::string(input), 0)};
  }
  std::vector<NamedFile> files;
  for (bool last = false; !last && files.size() < 16;) {
    const std::size_t end = input.find('\0');
    last = end == std::string_view::npos;
    const std::string_view json = input.substr(0, end);
    input.remove_prefix(last ? input.size() : end + 1);
    std::string bytes;
    ByteWriter(&bytes).U64(json.size());
    files.push_back(FileOf(files.size(), bytes.append(json), kDataBytes));
  }
  return files;
}

void CheckHeader(const NamedFile& file, const SafetensorsHeader& header) {
  const SafetensorsHeader::Tensor* before = nullptr;
  for (const SafetensorsHeader::Tensor& tensor : header.tensors) {
    VARVE_FUZZ_CHECK(before == nullptr || before->fqn < tensor.fqn);
    VARVE_FUZZ_CHECK(tensor.begin >= 8 && tensor.begin <= tensor.end && tensor.end <= file.size);
    VARVE_FUZZ_CHECK(Volume(tensor.shape) * ItemSize(tensor.dtype) == tensor.end - tensor.begin);
    VARVE_FUZZ_CHECK(tensor.offsets.empty() || tensor.offsets.size() == tensor.shape.size());
    before = &tensor;
  }
}

void CheckDecoded(const Metadata& metadata) {
  for (const TensorMetadata& tensor : metadata.tensors) {
    std::vector<Box> boxes;
    for (const Chunk& chunk : tensor.chunks) {
      VARVE_FUZZ_CHECK(CheckBox(tensor.shape, chunk.box, ItemSize(tensor.dtype)).ok());
      VARVE_FUZZ_CHECK(chunk.extent.end <= metadata.files.at(chunk.extent.file).size);
      VARVE_FUZZ_CHECK(boxes.empty() || boxes.back().offsets <= chunk.box.offsets);
      boxes.push_back(chunk.box);
    }
    VARVE_FUZZ_CHECK(fuzz::AreDisjoint(boxes));
  }
}

}  // namespace

VARVE_FUZZ_TARGET(safetensors) {
  const std::vector<NamedFile> files = FilesOf(input);
  bool all_ok = true;
  for (const NamedFile& file : files) {
    const auto header = ReadSafetensorsHeader(file);
    all_ok = all_ok && header.ok();
    if (header.ok()) {
      CheckHeader(file, *header);
    }
  }
  const auto decoded = DecodeSafetensors(files);
  VARVE_FUZZ_CHECK(all_ok || !decoded.ok());
  if (decoded.ok()) {
    CheckDecoded(decoded->metadata);
  }
}

}  // namespace varve::safetensors_fuzzer
