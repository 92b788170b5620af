/// The state of the simulated job, and the options that all its ranks save with.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/value.h"

namespace varve::scale {

struct Job {
  std::uint64_t ranks = 0;
  std::uint64_t tensors = 0;
  std::string path;
};

constexpr std::uint64_t kRowsPerRank = 4;
constexpr std::uint64_t kColumns = 8;  // Of a layer's first tensor; the next one has one more.
constexpr std::uint64_t kTensorsPerLayer = 9;

constexpr std::uint64_t kElements = kRowsPerRank * (kColumns + kTensorsPerLayer);

/// Returns the state of one rank in the save of a number: its rows of every tensor, as FSDP shards
/// them, of as many shapes as the tensors of a layer; a value of its own, and the step. `memory` backs it, that of MakeMemory: tensors of one
/// memory would be tied.
inline State StateOf(const Job& job, std::uint64_t rank, std::uint64_t save,
                     const std::vector<float>& memory) {
  State state;
  for (std::uint64_t i = 0; i < job.tensors; ++i) {
    const std::uint64_t columns = kColumns + i % kTensorsPerLayer;
    const Dims shape{job.ranks * kRowsPerRank, columns};
    const Box box{{rank * kRowsPerRank, 0}, {kRowsPerRank, columns}};
    state.tensors.push_back({"model.layers." + std::to_string(i) + ".attention.weight",
                             DType::kFloat32, shape, box,
                             HostMemory{memory.data() + i * kElements}});
  }
  state.objects.push_back(
      {"train/rank" + std::to_string(rank),
       EncodeValue(Value::Str("random state of rank " + std::to_string(rank)))});
  state.objects.push_back({"train/step", EncodeValue(Value::Int(static_cast<int>(save) * 100))});
  return state;
}

inline std::string PathOf(const Job& job, std::uint64_t save) {
  return job.path + "-" + std::to_string(save);
}

inline std::vector<float> MakeMemory(const Job& job) {
  std::vector<float> memory(job.tensors * kElements);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<float>(i) * 0.5F;
  }
  return memory;
}

inline SaveOptions LongSave() {
  SaveOptions options;
  options.timeout = std::chrono::hours(1);
  return options;
}

}  // namespace varve::scale
