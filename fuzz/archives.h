/// Helpers of the fuzz targets whose layouts have several torch.save files. An input holds the
/// pickles of the files, one behind the other. Each pickle becomes an archive with a few storages,
/// because no fuzzer guesses the pickle's checksum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_target.h"
#include "interop/decoded.h"
#include "interop/pickle/tree.h"
#include "interop/safetensors/decode.h"
#include "interop/zip/writer.h"
#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve::fuzz {

/// Returns a torch.save file with this pickle and storages "0" to "15" of 256 bytes.
inline Bytes ArchiveOf(std::string_view pickle) {
  Bytes file;
  ZipWriter writer;
  writer.AddRecord("archive/data.pkl", pickle, 1, &file);
  constexpr int kStorages = 16;
  for (int key = 0; key < kStorages; ++key) {
    writer.AddRecord("archive/data/" + std::to_string(key),
                     std::string(256, static_cast<char>(key)), 64, &file);
  }
  writer.Finish(&file);
  return file;
}

/// Returns the archives of the pickles that the input begins with, at most `max_files`.
inline std::vector<Bytes> ArchivesOf(std::string_view input, std::size_t max_files) {
  std::vector<Bytes> files;
  while (!input.empty() && files.size() < max_files) {
    std::uint64_t consumed = 0;
    if (!ReadPickle(input, {}, nullptr, &consumed).ok()) {
      break;
    }
    files.push_back(ArchiveOf(input.substr(0, consumed)));
    input.remove_prefix(consumed);
  }
  return files;
}

/// Returns a reader of `file`, which must outlive it. A read outside of the file breaks a claim.
inline RangeReader CheckedReader(const Bytes& file) {
  return [&file](std::uint64_t begin, std::uint64_t size) {
    VARVE_FUZZ_CHECK(begin <= file.size() && size <= file.size() - begin);
    return ReadFrom(file)(begin, size);
  };
}

inline NamedFile NamedFileOf(const std::string& name, const Bytes& file) {
  return {name, file.size(), CheckedReader(file)};
}

/// Whether the chunks of a tensor must hold all of its elements.
enum class Holes : std::uint8_t { kNone, kAllowed };

/// Checks that chunks are disjoint boxes of the tensor and lie in the files, of the sizes given.
inline void CheckTensor(const TensorMetadata& tensor, const std::vector<std::uint64_t>& sizes,
                        Holes holes) {
  std::uint64_t elements = 0;
  for (const Chunk& chunk : tensor.chunks) {
    VARVE_FUZZ_CHECK(CheckBox(tensor.shape, chunk.box, ItemSize(tensor.dtype)).ok());
    VARVE_FUZZ_CHECK(chunk.extent.begin <= chunk.extent.end);
    VARVE_FUZZ_CHECK(chunk.extent.end <= sizes.at(chunk.extent.file));
    const std::uint64_t volume = Volume(chunk.box.sizes);
    VARVE_FUZZ_CHECK(!chunk.strides.empty() ||
                     chunk.extent.end - chunk.extent.begin == volume * ItemSize(tensor.dtype));
    elements += volume;
  }
  VARVE_FUZZ_CHECK(CheckBox(tensor.shape, WholeBox(tensor.shape), ItemSize(tensor.dtype)).ok());
  VARVE_FUZZ_CHECK(holes == Holes::kNone ? elements == Volume(tensor.shape)
                                         : elements <= Volume(tensor.shape));
  const auto overlap = FindOverlap(BoxesOf(ChunkList(tensor.chunks).Listed()));
  VARVE_FUZZ_CHECK(!overlap.ok() || !overlap->has_value());
}

/// Checks a decoded checkpoint whose files have these sizes.
inline void CheckDecoded(const Decoded& decoded, const std::vector<std::uint64_t>& sizes,
                         Holes holes) {
  for (const TensorMetadata& tensor : decoded.metadata.tensors) {
    CheckTensor(tensor, sizes, holes);
    VARVE_FUZZ_CHECK(decoded.metadata.FindTensor(tensor.fqn) == &tensor);
  }
  for (const ObjectMetadata& object : decoded.metadata.objects) {
    VARVE_FUZZ_CHECK(object.extent.encoding == Encoding::kInline);
    VARVE_FUZZ_CHECK(object.extent.begin < decoded.inline_values.size());
  }
  for (const std::string& value : decoded.inline_values) {
    VARVE_FUZZ_CHECK(DecodeValue(value).ok());
  }
  VARVE_FUZZ_CHECK(!decoded.structure || DecodeValue(EncodeValue(*decoded.structure)).ok());
  for (const RecordCrc& record : decoded.records) {
    VARVE_FUZZ_CHECK(record.begin <= record.end && record.end <= sizes.at(record.file));
  }
  for (const auto& [fqn, stored] : decoded.stored_names) {
    VARVE_FUZZ_CHECK(decoded.metadata.FindTensor(fqn) != nullptr ||
                     decoded.metadata.FindObject(fqn) != nullptr);
  }
}

/// Returns the sizes of files.
inline std::vector<std::uint64_t> SizesOf(const std::vector<Bytes>& files) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(files.size());
  for (const Bytes& file : files) {
    sizes.push_back(file.size());
  }
  return sizes;
}

}  // namespace varve::fuzz
