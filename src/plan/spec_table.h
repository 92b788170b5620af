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

/// The specs of plans' tensors, each once, by the numbers that stand for them in encoded shares.
/// Ranks that hold shards of the same tensors, in one order, have tables of the same bytes: a digest
/// of them is enough where the table is known.
class SpecTable {
 public:
  SpecTable() = default;
  /// The tensors of a plan, in the order of its items.
  explicit SpecTable(const LocalPlan& plan);

  /// Adds what the table does not have.
  void Add(const LocalPlan& plan);
  [[nodiscard]] std::uint32_t NumberOf(const SharedSpec& spec) const {
    return numbers_.at(spec.get());
  }
  [[nodiscard]] std::size_t size() const { return specs_.size(); }
  /// Null where there is no such number.
  [[nodiscard]] const SharedSpec* Find(std::uint64_t number) const {
    return number < specs_.size() ? &specs_[number] : nullptr;
  }

  [[nodiscard]] Bytes Encode() const;
  /// Errors: DataLoss.
  static Result<SpecTable> Decode(std::string_view bytes);

 private:
  std::vector<SharedSpec> specs_;
  std::unordered_map<const TensorSpec*, std::uint32_t> numbers_;  // Looked up only.
};

/// Encodes all of a plan but its structure and what `specs` says of its tensors.
Bytes EncodeShares(const LocalPlan& plan, const SpecTable& specs);

/// Returns the plan, without a structure. Its tensors share the table's specs. Untrusted input.
/// Errors: DataLoss.
Result<LocalPlan> DecodeShares(std::string_view bytes, const SpecTable& specs);

}  // namespace varve
