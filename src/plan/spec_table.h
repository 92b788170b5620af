/// Plans as they are sent: what the ranks of a job mostly have in common, and the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "plan/save_plan.h"
#include "tensor/tensor_spec.h"
#include "varve/status.h"

namespace varve {

/// The specs of a plan's tensors, each once, by the numbers that stand for them in encoded shares.
/// Ranks that hold shards of the same tensors, in one order, have tables of the same bytes: a digest
/// of them is enough where the table is known.
class SpecTable {
 public:
  SpecTable() = default;
  /// The tensors of a plan, in the order of its items.
  explicit SpecTable(const LocalPlan& plan);

  [[nodiscard]] std::uint32_t NumberOf(const SharedSpec& spec) const {
    return numbers_.at(spec.get());
  }
  [[nodiscard]] std::size_t size() const { return specs_.size(); }
  [[nodiscard]] const SharedSpec& operator[](std::size_t number) const { return specs_[number]; }
  /// Returns the kind of a tensor: those of one kind have the same dtype and shape. Kinds are
  /// numbered in the order of their first tensors.
  [[nodiscard]] std::uint32_t KindOf(std::size_t number) const { return kinds_[number]; }
  [[nodiscard]] std::size_t kinds() const { return kind_count_; }

  [[nodiscard]] Bytes Encode() const;
  /// Errors: DataLoss.
  static Result<SpecTable> Decode(std::string_view bytes);

 private:
  void FindKinds();

  std::vector<SharedSpec> specs_;
  std::unordered_map<const TensorSpec*, std::uint32_t> numbers_;  // Looked up only.
  std::vector<std::uint32_t> kinds_;
  std::size_t kind_count_ = 0;
};

/// Which items of a plan are alike. A family is the items of one kind and box. Ranks that shard
/// tensors alike have the same families, of other boxes.
struct Families {
  /// An item, and the item that it is tied to or the plain value that it is part of.
  struct Link {
    std::uint32_t item = 0;
    std::uint32_t to = 0;
  };

  std::vector<std::uint32_t> specs;   ///< By item: the number of its tensor in the table.
  std::vector<std::uint32_t> family;  ///< By item. Families are in the order of their kinds.
  std::vector<std::vector<std::uint32_t>> members;  ///< By family: its items, ascending.
  std::vector<Link> tied;
  std::vector<Link> parts;

  /// Untrusted input. Whether there are the values that `parts` refers to is not known here.
  /// Errors: DataLoss.
  static Result<Families> Decode(std::string_view bytes, const SpecTable& table);
};

/// The shards of a family's items.
struct FamilyShards {
  Box box;
  std::vector<std::uint64_t> fingerprints;  ///< Of each member; or one that all have.

  [[nodiscard]] std::uint64_t FingerprintOf(std::size_t member) const {
    return fingerprints[fingerprints.size() == 1 ? 0 : member];
  }
};

/// Encodes all of a plan but its structure and what `specs` says of its tensors: the plain values,
/// the families, and the shards of each.
Bytes EncodeShares(const LocalPlan& plan, const SpecTable& specs);

/// Encoded shares, taken apart. Views of what was encoded.
struct SharesParts {
  std::vector<ObjectItem> objects;
  std::string_view families;
  std::string_view shards;
};

/// Errors: DataLoss.
Result<SharesParts> SplitShares(std::string_view bytes);

/// Returns the shards of each family. Errors: DataLoss.
Result<std::vector<FamilyShards>> DecodeFamilyShards(const SharesParts& parts,
                                                     const Families& families,
                                                     const SpecTable& specs);

/// Returns the plan, without a structure. Its tensors share the table's specs. Untrusted input.
/// Errors: DataLoss.
Result<LocalPlan> DecodeShares(std::string_view bytes, const SpecTable& specs);

}  // namespace varve
