/// The index of an earlier save of the same plans, for the next one: it differs in checksums, and
/// in the places of plain values that have another size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "save/settled.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// Belongs to an agreement (agreements.h), on the coordinator. Threads: any.
class KeptIndex {
 public:
  /// A larger index is not kept. Each rank, tensor and value counts 256 bytes, and so does each
  /// chunk that is no cell of a grid.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  /// Items of LocalPlan::objects that ranks write, by rank.
  using WrittenObjects = std::map<std::uint32_t, std::vector<std::uint32_t>>;

  /// Returns the index of a save, from the encoded WriteReceipts of its ranks. Nothing where none
  /// is kept, or where a file's data begins elsewhere than before. Errors: DataLoss for a receipt,
  /// or a plan, that cannot be decoded.
  Result<std::optional<Metadata>> Of(const SettledSave& settled,
                                     const std::vector<std::string>& receipts) const;

  /// Keeps the index of a save, where it is not too large, in place of the one before.
  void Keep(const SettledSave& settled, const Metadata& metadata, WrittenObjects written);

 private:
  struct Kept {
    Metadata metadata;
    WrittenObjects written;
    std::vector<std::uint64_t> own_sizes;                    ///< Of the coordinator's values.
    std::map<std::uint32_t, std::vector<ObjectSize>> sizes;  ///< SettledSave::sizes.

    [[nodiscard]] bool HasOtherSizes(const SettledSave& settled, std::uint32_t rank) const;
  };

  mutable std::mutex mutex_;
  std::shared_ptr<const Kept> kept_;  // Guarded by mutex_.
};

}  // namespace varve
