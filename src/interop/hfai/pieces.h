/// Large tensors of a checkpoint of hfai: flat pieces, one per part, to chunks of the whole tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/hfai/part.h"
#include "interop/state_tree.h"
#include "varve/status.h"

namespace varve {

/// A large tensor with the piece that each part has of it, null where it has none. Points into the
/// parts.
struct HfaiLarge {
  std::string name;  ///< For messages: "model tensor a.weight".
  std::vector<const HfaiPiece*> pieces;
};

/// Returns the number of elements that `part` of `world` has of `count`: ceil(count / world) each,
/// the last ones fewer or none.
std::uint64_t HfaiPieceElements(std::uint64_t count, std::uint64_t part, std::uint64_t world);

/// Makes tensors of pieces. One object serves all tensors of a checkpoint: it bounds the memory
/// that their chunks take together by the size of the files.
class HfaiJoiner {
 public:
  /// `parts` are all parts, in order, and must outlive this.
  explicit HfaiJoiner(const std::vector<HfaiPart>& parts);

  /// Counts memory that one large tensor takes. Errors: InvalidArgument when all take many times
  /// what the files have.
  Status Charge(std::uint64_t bytes, const std::string& name);

  /// Returns the whole tensor. Errors: as Charge; DataLoss, naming tensor and part, for a piece
  /// that is missing or of another size than the format gives it, and for pieces of different
  /// shapes or types.
  Result<StoredTensor> Join(const HfaiLarge& large);

 private:
  Status Check(const HfaiLarge& large, const HfaiPiece& first, std::size_t part) const;

  const std::vector<HfaiPart>& parts_;
  std::uint64_t bytes_left_;
};

}  // namespace varve
