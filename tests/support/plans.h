/// Local plans of imagined jobs, and a check of their settled plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "plan/save_plan.h"
#include "save/plans/gathered_plans.h"
#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve::test {

inline PlannedTensor Whole(std::string fqn, Dims shape, DType dtype = DType::kFloat32) {
  return {std::move(fqn), dtype, shape, WholeBox(shape)};
}

/// Returns the `i`-th of `count` slices along dimension 0, as FSDP cuts (rounded up, so the last
/// may be short or empty).
inline PlannedTensor Slice(std::string fqn, const Dims& shape, std::uint64_t i,
                           std::uint64_t count) {
  PlannedTensor item = Whole(std::move(fqn), shape);
  const std::uint64_t rows = (shape[0] + count - 1) / count;
  item.box.offsets[0] = std::min(i * rows, shape[0]);
  item.box.sizes[0] = std::min((i + 1) * rows, shape[0]) - item.box.offsets[0];
  return item;
}

/// Returns the shapes of a Llama-3-8B.
inline std::vector<std::pair<std::string, Dims>> Llama8B() {
  std::vector<std::pair<std::string, Dims>> tensors{
      {"model.embed", {128256, 4096}}, {"lm_head", {128256, 4096}}, {"model.norm", {4096}}};
  for (int layer = 0; layer < 32; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors.insert(tensors.end(), {{prefix + "q", {4096, 4096}},
                                   {prefix + "k", {1024, 4096}},
                                   {prefix + "v", {1024, 4096}},
                                   {prefix + "o", {4096, 4096}},
                                   {prefix + "gate", {14336, 4096}},
                                   {prefix + "up", {14336, 4096}},
                                   {prefix + "down", {4096, 14336}},
                                   {prefix + "norm1", {4096}},
                                   {prefix + "norm2", {4096}}});
  }
  return tensors;
}

inline std::uint64_t BytesOf(const PlannedTensor& item, const Box& box) {
  return Volume(box.sizes) * ItemSize(item.dtype());
}

inline std::vector<std::uint64_t> BytesByRank(const std::vector<LocalPlan>& plans,
                                              const SettledPlan& settled) {
  std::vector<std::uint64_t> bytes(plans.size());
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const ChunkAssignment& chunk : settled.ranks[rank].chunks) {
      bytes[rank] += BytesOf(plans[rank].tensors[chunk.item], chunk.BoxIn(plans[rank]));
    }
  }
  return bytes;
}

/// Returns the fullest rank's bytes over the mean: 1 is perfect.
inline double MaxOverMean(const std::vector<std::uint64_t>& bytes) {
  std::uint64_t most = 0;
  std::uint64_t total = 0;
  for (const std::uint64_t one : bytes) {
    most = std::max(most, one);
    total += one;
  }
  return static_cast<double>(most) * static_cast<double>(bytes.size()) / static_cast<double>(total);
}

/// Returns plans as a coordinator gets them: tables of the same bytes are one.
inline GatheredPlans::Taken Gathered(const std::vector<LocalPlan>& plans) {
  GatheredPlans::Taken taken;
  std::map<Bytes, std::shared_ptr<const SpecTable>> tables;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const SpecTable own(plans[rank]);
    auto& table = tables[own.Encode()];
    table = table == nullptr ? std::make_shared<const SpecTable>(own) : table;
    if (rank == 0) {
      taken.own_table = table;
    } else {
      taken.plans.Add(table, EncodeShares(plans[rank], own));
    }
    taken.structures.push_back(plans[rank].structure);
  }
  return taken;
}

/// Fails unless every tensor's chunks, over all ranks, tile it, and every rank writes only parts of
/// shards it holds.
inline void ExpectEveryElementOnce(const std::vector<LocalPlan>& plans,
                                   const SettledPlan& settled) {
  ASSERT_EQ(settled.ranks.size(), plans.size());
  std::map<std::string, std::pair<Dims, std::vector<Box>>> stored;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const PlannedTensor& item : plans[rank].tensors) {
      stored[item.fqn()].first = item.shape();
    }
    for (const ChunkAssignment& chunk : settled.ranks[rank].chunks) {
      ASSERT_LT(chunk.item, plans[rank].tensors.size());
      const PlannedTensor& item = plans[rank].tensors[chunk.item];
      const Box& box = chunk.BoxIn(plans[rank]);
      EXPECT_TRUE(Contains(item.box, box)) << item.fqn();
      stored[item.fqn()].second.push_back(box);
    }
  }
  for (const auto& [fqn, tensor] : stored) {
    const auto& [shape, boxes] = tensor;
    EXPECT_FALSE(boxes.empty()) << fqn;
    EXPECT_FALSE(FindOverlap(boxes).value()) << fqn;
    EXPECT_TRUE(SubtractAll(WholeBox(shape), boxes).empty()) << fqn;
  }
}

}  // namespace varve::test
