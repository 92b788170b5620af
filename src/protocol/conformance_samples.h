/// The states that the conformance suite saves and loads.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/conformance_bench.h"
#include "protocol/conformance_state.h"
#include "varve/value.h"

namespace varve::protocol {

inline const Dims kShape = {6, 8};
inline constexpr int kRanks = 3;

/// Returns the rows, or columns, of "matrix" that a rank holds.
inline SampleTensor RowsOf(int rank, int size) {
  const std::uint64_t rows = kShape[0] / static_cast<std::uint64_t>(size);
  return {"matrix",
          DType::kFloat32,
          kShape,
          {{static_cast<std::uint64_t>(rank) * rows, 0}, {rows, kShape[1]}}};
}
inline SampleTensor ColumnsOf(int rank, int size) {
  const std::uint64_t columns = kShape[1] / static_cast<std::uint64_t>(size);
  return {"matrix",
          DType::kFloat32,
          kShape,
          {{0, static_cast<std::uint64_t>(rank) * columns}, {kShape[0], columns}}};
}

inline Value StepOf(std::uint8_t salt) { return Value::Int(1000 + salt); }

inline std::string NameOfRank(int rank) { return "rank." + std::to_string(rank); }

/// Returns a state of a row-sharded matrix, a replicated vector, a value of all ranks and one of
/// each.
template <class Part>
Part Usual(int rank, std::uint8_t salt) {
  Part part(salt);
  part.Add(RowsOf(rank, kRanks));
  part.Add(Whole("replicated", DType::kInt64, {5}));
  part.Add("step", StepOf(salt));
  part.Add(NameOfRank(rank), Value::Str("of rank " + std::to_string(rank)));
  return part;
}
inline MakeHolding UsualHolding(std::uint8_t salt) {
  return [salt](int rank) { return Usual<Holding>(rank, salt); };
}
inline MakeWanting UsualWanting(std::uint8_t salt) {
  return [salt](int rank) { return Usual<Wanting>(rank, salt); };
}

/// Returns a state with all sizes of elements, no dimensions, no elements; values of several kinds
/// and lengths.
template <class Part>
Part Assorted(std::uint8_t salt) {
  Part part(salt);
  part.Add(Whole("bytes", DType::kUInt8, {7}));
  part.Add(Whole("halves", DType::kBFloat16, {3, 5}));
  part.Add(Whole("doubles", DType::kFloat64, {2, 3, 4}));
  part.Add(Whole("complexes", DType::kComplex128, {3}));
  part.Add(Whole("scalar", DType::kInt32, {}));
  part.Add(Whole("empty", DType::kFloat32, {0, 3}));
  part.Add(Whole("large", DType::kFloat32, {100, 333}));
  part.Add("none", Value());
  part.Add("negative", Value::Int(-5));
  part.Add("no text", Value::Str(""));
  part.Add("text", Value::Str(std::string("zero \0 and \xC3\xA9", 13)));
  part.Add("long text", Value::Str(std::string(100'000, 'x')));
  Value list;
  list.kind = ValueKind::kList;
  list.items = {Value::Float(0.5), Value::Str("nested")};
  part.Add("list", list);
  return part;
}

}  // namespace varve::protocol
