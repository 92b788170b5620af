/// Small states of known content, for the conformance suite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/protocol/planner.h"
#include "varve/value.h"

namespace varve::protocol {

struct SampleTensor {
  std::string fqn;
  DType dtype = DType::kFloat32;
  Dims shape;
  Box box;
};

inline SampleTensor Whole(std::string fqn, DType dtype, const Dims& shape) {
  return {std::move(fqn), dtype, shape, WholeBox(shape)};
}

/// The state that a rank saves, with its memory.
class Holding {
 public:
  explicit Holding(std::uint8_t salt) : salt_(salt) {}
  void Add(const SampleTensor& spec);
  void Add(const std::string& fqn, const Value& value);
  [[nodiscard]] State& state() { return state_; }

 private:
  std::uint8_t salt_;
  std::deque<std::string> memory_;
  State state_;
};

/// The state that a rank loads, with its memory. Each tensor has a border of `margin` elements
/// around it in each dimension, which no load may touch.
class Wanting {
 public:
  explicit Wanting(std::uint8_t salt, std::uint64_t margin = 0) : salt_(salt), margin_(margin) {}
  void Add(const SampleTensor& spec);
  void Add(const std::string& fqn, const Value& value);
  [[nodiscard]] TargetState& state() { return state_; }
  /// Compares with the state that was saved with the same salt. Errors: DataLoss naming the first
  /// difference.
  [[nodiscard]] Status Check() const;

 private:
  [[nodiscard]] std::string Expected(const SampleTensor& spec) const;

  std::uint8_t salt_;
  std::uint64_t margin_;
  std::deque<std::string> memory_;
  std::vector<SampleTensor> tensors_;
  std::vector<std::string> values_;
  TargetState state_;
};

/// Calls `visit(position)` for each element of a row-major array of these sizes, in order.
template <class Visit>
void ForEachElement(const Dims& sizes, const Visit& visit) {
  std::uint64_t count = 1;
  for (const std::uint64_t size : sizes) {
    count *= size;
  }
  Dims position(sizes.size(), 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    visit(position);
    for (std::size_t d = sizes.size(); d-- > 0;) {
      if (++position[d] < sizes[d]) {
        break;
      }
      position[d] = 0;
    }
  }
}

}  // namespace varve::protocol
