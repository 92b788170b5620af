/// The content of a `.metadata` once its pickle is read: records and lists of their numbers, with
/// all names and ranges checked, the tree no longer needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "interop/dcp/metadata.h"
#include "interop/dcp/records.h"
#include "interop/dcp/wrapped.h"
#include "varve/status.h"
#include "varve/value.h"

namespace varve {

struct DcpIndex {
  struct Tensor {
    std::uint32_t name = 0;
    DType dtype = DType::kUInt8;
    PackedDims shape;
    std::uint64_t chunks_begin = 0;  ///< In `chunks`.
    std::uint64_t chunks_end = 0;
  };
  struct Entry {
    std::uint32_t key = 0;
    std::uint32_t storage = 0;
  };

  std::vector<Tensor> tensors;
  std::vector<std::uint32_t> objects;  ///< Names.
  std::vector<std::uint32_t> chunks;   ///< Numbers of DcpRecords::chunk, as each tensor lists them.
  std::vector<Entry> entries;          ///< storage_data.
  std::optional<Value> structure;
  /// Tensors, by name, that Megatron-Core has stored as flattened blocks, and their own shapes.
  std::vector<std::pair<std::uint32_t, PackedDims>> in_blocks;
  /// Values that are tensors made of others, where Varve says so in an attribute: their names and
  /// inner tensors. They are no objects.
  std::vector<std::pair<std::uint32_t, std::vector<DcpInner>>> wrapped;
  bool has_varve_structure = false;  ///< `structure` is Varve's own, which has the types of keys.
  DcpAttributeList attributes;
};

/// Reads `pickle` into the index; what it numbers is in `records`. `folding` saves most of the
/// memory, but some pickles can only be read without: FailedPrecondition. Other errors as
/// DecodeDcpMetadata.
Result<DcpIndex> ReadDcpIndex(std::string_view pickle, bool folding, DcpRecords* records);

}  // namespace varve
