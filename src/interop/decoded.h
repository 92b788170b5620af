/// The result of every decoder of a foreign format: the one metadata model, and the parts of the
/// state that the index itself holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "varve/metadata.h"
#include "varve/value.h"

namespace varve {

/// A stretch of a file that has one CRC-32 (that of zip files) over all of it.
struct RecordCrc {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t crc = 0;
};

struct Decoded {
  /// Files have names and, where the index has them, sizes; the caller fills in those of storage.
  Metadata metadata;
  std::optional<Value> structure;  ///< See docs/format.md; nothing when only names are known.
  /// Tensors that are stored as flattened blocks: FQN and shape. In `metadata` they have the shape
  /// of the grid of blocks, and the elements of a block as one more dimension.
  std::vector<std::pair<std::string, Dims>> in_blocks;
  bool keys_are_text = false;  ///< The structure was made of names: keys that were ints are text.
  std::vector<std::string> inline_values;  ///< Encoded Values that extents with kInline number.
  std::vector<RecordCrc> records;          ///< Of plain extents, where the format has them.
  /// FQNs with the path that the file gives the entry, where it is another one.
  std::vector<std::pair<std::string, std::string>> stored_names;
};

}  // namespace varve
