/// Merges the files of several ranks: pieces of tensors, where each element counts once and
/// replicas are compared, and whole states, where a replicated value counts once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "interop/decoded.h"
#include "interop/state_tree.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// Reads bytes [begin, end) of data file number `file`. Called where checksums cannot show that two
/// replicas are equal.
using ExtentReader =
    std::function<Result<std::string>(std::uint32_t file, std::uint64_t begin, std::uint64_t end)>;

/// Elements [begin, end) of a tensor in row-major order, packed at `extent`.
struct FlatPiece {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  DType dtype = DType::kUInt8;
  Extent extent;
};

/// The names of the files, by number, for messages.
using FileNames = std::vector<std::string>;

/// Compares replicas.
class ReplicaCheck {
 public:
  /// `records` are those of all files, in any order. `read` is called where they do not show
  /// whether two replicas are equal.
  ReplicaCheck(FileNames names, std::vector<RecordCrc> records, ExtentReader read);

  /// Checks that two extents hold equal bytes. Takes equal checksums of equal records for equal
  /// bytes; reads both where a record has none. `what` names what both hold. Errors: DataLoss
  /// naming both files; those of reading.
  [[nodiscard]] Status Equal(const Extent& a, const Extent& b, const std::string& what) const;

  /// Returns a file's name.
  [[nodiscard]] const std::string& name(std::uint32_t file) const { return names_[file]; }

 private:
  [[nodiscard]] const RecordCrc* RecordOf(const Extent& extent) const;

  FileNames names_;
  std::vector<RecordCrc> records_;  // By file and begin.
  ExtentReader read_;
};

/// Makes the chunks of a tensor from its pieces, which are in the order of the ranks. Of pieces
/// that store the same elements, the first rank's counts. Elements that no piece stores are left
/// out: loading them is an error. `fqn` is for messages. Errors: DataLoss for pieces of different
/// dtypes, for a shape of more bytes than a tensor can have, and for two that store different bytes
/// for the same elements, naming both files and the range.
Result<StoredTensor> TensorOfPieces(const std::string& fqn, const Dims& shape,
                                    std::vector<FlatPiece> pieces, const ReplicaCheck& check);

/// Returns the chunks of a tensor of which several files may store the same box: of each such box
/// the first, sorted by offsets. Errors: DataLoss for boxes that overlap without being equal, and
/// for equal ones with different bytes or strides, naming both files; as FindOverlap.
Result<std::vector<Chunk>> ChunksOnce(const std::string& fqn, std::vector<Chunk> parts,
                                      const ReplicaCheck& check);

/// Merges the states of ranks 0 to the last, which every rank's file holds; rank R's file is number
/// R of `check`. Containers must have the same kinds, lengths and keys on all ranks, in any order
/// of keys: the first rank's counts. Whole tensors and values must be equal. Sharded tensors must
/// be shared in the same way; parts that several ranks store must be equal and count once, parts
/// that none stores are left out. `name` is the FQN, for messages. Errors: DataLoss naming the
/// entry and two files.
Result<StateNode> MergeRanks(const std::string& name, std::vector<StateNode*> ranks,
                             const ReplicaCheck& check);

}  // namespace varve
