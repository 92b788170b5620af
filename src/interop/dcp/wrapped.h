/// Tensors that are made of others, as Varve stores them for stock PyTorch: a plain value of the
/// index, whose archive is the pickle of the whole tensor. Its storages are the inner tensors,
/// which an attribute of the index names. They are not stored a second time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// An inner tensor: its elements, row-major and packed.
struct DcpInner {
  std::string fqn;
  DType dtype = DType::kUInt8;
  Dims shape;
  std::uint64_t begin = 0;  ///< From the beginning of the value's item.
  friend bool operator==(const DcpInner&, const DcpInner&) = default;
};

struct DcpWrapped {
  std::string fqn;  ///< Of the value.
  std::vector<DcpInner> inner;
  friend bool operator==(const DcpWrapped&, const DcpWrapped&) = default;
};

/// The attribute of the index in which Varve keeps them, encoded as a Value.
inline constexpr std::string_view kDcpWrapped = "varve_wrapped";

/// Finds the tensors whose elements lie in the item of a plain value (Encoding::kPlain): of the one
/// whose name theirs begins with, else of any. `metadata` is sorted by names.
std::vector<DcpWrapped> FindDcpWrapped(const Metadata& metadata);

std::string EncodeDcpWrapped(const std::vector<DcpWrapped>& wrapped);

/// Decodes the attribute. Errors: DataLoss for another content, and for a name that is there twice.
Result<std::vector<DcpWrapped>> DecodeDcpWrapped(std::string_view encoded);

}  // namespace varve
