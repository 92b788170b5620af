/// The header of a plain safetensors file, as any reader of the format takes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// A tensor of a file to be written.
struct SafetensorsEntry {
  std::string fqn;
  DType dtype = DType::kUInt8;  ///< One that safetensors can name (see CanBeSafetensors).
  Dims shape;
  [[nodiscard]] std::uint64_t bytes() const;
};

/// Returns false for complex32 and complex128, and for a 0-d float4 (half a byte).
bool CanBeSafetensors(DType dtype, const Dims& shape);

/// Returns true when `a` comes before `b` in a file: larger elements first, so that every tensor
/// begins at a multiple of its element's size; then by name.
bool SafetensorsBefore(const SafetensorsEntry& a, const SafetensorsEntry& b);

/// Returns the length prefix and the JSON, padded with spaces to a multiple of `alignment` bytes,
/// for tensors that follow in this order without gaps. `__metadata__` is {"format":"pt"}, which
/// transformers asks for.
Bytes EncodeSafetensorsHeader(const std::vector<SafetensorsEntry>& entries,
                              std::uint64_t alignment = 8);

/// Refuses a header that is longer than readers take: 100,000,000 bytes, by the format's own
/// library. Errors: InvalidArgument, naming the file.
Status CheckSafetensorsHeader(std::string_view file, std::string_view header);

/// A file of a folder as Hugging Face's tools write it.
struct HfFile {
  std::string name;
  std::vector<SafetensorsEntry> entries;  ///< In file order.
};

/// Divides tensors, which come in the order of names, into files of at most `shard_size` bytes of
/// tensors, or one tensor: `model.safetensors`, or `model-00001-of-00002.safetensors` and so on.
std::vector<HfFile> DivideIntoHfFiles(const std::vector<SafetensorsEntry>& entries,
                                      std::uint64_t shard_size);

}  // namespace varve
