/// Small states with the content that a checkpoint of them must hold, and a reader of the content
/// that one does hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "varve/checkpoint.h"

namespace varve::test {

/// Everything a checkpoint holds, as values that can be compared.
struct Content {
  std::map<std::string, std::string> tensors;  ///< Type, shape and bytes, by name.
  std::map<std::string, Value> objects;
  Value structure;
  friend bool operator==(const Content&, const Content&) = default;
};

/// Opens the checkpoint and reads all of it.
inline Result<Content> ReadContent(CheckpointReader& reader) {
  Content content;
  std::vector<TargetTensor> targets;
  std::vector<std::string> memory;
  memory.reserve(reader.metadata().tensors.size());
  for (const TensorMetadata& tensor : reader.metadata().tensors) {
    std::uint64_t bytes = ItemSize(tensor.dtype);
    for (const std::uint64_t size : tensor.shape) {
      bytes *= size;
    }
    memory.emplace_back(bytes, '?');
    targets.push_back(
        {tensor.fqn, tensor.dtype, tensor.shape, WholeBox(tensor.shape), memory.back().data(), {}});
  }
  VARVE_RETURN_IF_ERROR(reader.ReadTensors(targets, {.io_threads = 1}).status());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    content.tensors[targets[i].fqn] =
        std::string(DTypeName(targets[i].dtype)) + ToString(targets[i].shape) + ": " + memory[i];
  }
  std::vector<std::string> names;
  for (const ObjectMetadata& object : reader.metadata().objects) {
    names.push_back(object.fqn);
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<Value> values, reader.ReadObjects(names));
  for (std::size_t i = 0; i < names.size(); ++i) {
    content.objects[names[i]] = values[i];
  }
  VARVE_ASSIGN_OR_RETURN(content.structure, reader.ReadStructure());
  return content;
}

inline Result<Content> ReadContent(const std::string& path, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(path, storage));
  return ReadContent(*reader);
}

/// The state of a small job: a tensor sharded by rows, one replicated on all ranks, one and a value
/// of each rank's own. Different `seed`s differ in every value and in some names and shapes.
class JobState {
 public:
  JobState(std::uint64_t seed, int world_size, std::uint64_t rows = 24)
      : states_(Size(world_size)) {
    AddSharded("model.weight", {rows, 40}, seed);
    AddReplicated("model.bias", {1000 + seed}, seed + 1);
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      AddTensor(rank, "rank" + std::to_string(rank) + ".state" + std::to_string(seed % 2), {300},
                seed + 2 + rank);
      AddObject(rank, "train/rank" + std::to_string(rank),
                Value::Str("of rank " + std::to_string(rank) + ", " + std::to_string(seed)));
    }
    content_.structure = {
        .kind = ValueKind::kDict,
        .items = {Value::Str("step"), Value{.kind = ValueKind::kObjectLeaf},
                  Value::Str("of " + std::to_string(seed)), Value{.kind = ValueKind::kNone}}};
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      AddObject(rank, "step", Value::Int(static_cast<std::int64_t>(seed)));
      states_[rank].structure = EncodeValue(content_.structure);
    }
  }
  /// Removes values and structure: what is left is what a folder of safetensors files can hold.
  void LeaveTensorsAlone() {
    LeaveStructureOut();
    for (State& state : states_) {
      state.objects.clear();
    }
    content_.objects.clear();
  }

  /// Removes the structure, which has leaves without values: DCP has no place for those.
  void LeaveStructureOut() {
    for (State& state : states_) {
      state.structure.clear();
    }
    content_.structure = {};
  }

  JobState(const JobState&) = delete;
  JobState& operator=(const JobState&) = delete;

  [[nodiscard]] int world_size() const { return static_cast<int>(states_.size()); }
  [[nodiscard]] const State& rank(int rank) const { return states_[Size(rank)]; }
  /// Returns the content of a checkpoint of this state.
  [[nodiscard]] const Content& content() const { return content_; }

 private:
  static std::size_t Size(int value) { return static_cast<std::size_t>(value); }

  const char* Memory(const std::string& fqn, const Dims& shape, std::uint64_t seed) {
    std::uint64_t bytes = sizeof(float);
    for (const std::uint64_t size : shape) {
      bytes *= size;
    }
    auto& memory = memory_.emplace_back(std::make_unique<std::string>(bytes, '\0'));
    for (std::uint64_t i = 0; i < bytes; ++i) {
      (*memory)[i] = static_cast<char>((i + 1) * (2 * seed + 1) * 0x9E3779B97F4A7C15U >> 56U);
    }
    content_.tensors[fqn] = "float32" + ToString(shape) + ": " + *memory;
    return memory->data();
  }

  void AddTensor(std::size_t rank, const std::string& fqn, const Dims& shape, std::uint64_t seed) {
    states_[rank].tensors.push_back(
        {fqn, DType::kFloat32, shape, WholeBox(shape), HostMemory{Memory(fqn, shape, seed)}});
  }

  void AddReplicated(const std::string& fqn, const Dims& shape, std::uint64_t seed) {
    const char* memory = Memory(fqn, shape, seed);
    for (State& state : states_) {
      state.tensors.push_back({fqn, DType::kFloat32, shape, WholeBox(shape), HostMemory{memory}});
    }
  }

  void AddSharded(const std::string& fqn, const Dims& shape, std::uint64_t seed) {
    const char* memory = Memory(fqn, shape, seed);
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      const std::uint64_t begin = shape[0] * rank / states_.size();
      const std::uint64_t end = shape[0] * (rank + 1) / states_.size();
      const Box box{{begin, 0}, {end - begin, shape[1]}};
      states_[rank].tensors.push_back({fqn, DType::kFloat32, shape, box,
                                       HostMemory{memory + begin * shape[1] * sizeof(float)}});
    }
  }

  void AddObject(std::size_t rank, const std::string& fqn, const Value& value) {
    states_[rank].objects.push_back({fqn, EncodeValue(value)});
    content_.objects[fqn] = value;
  }

  std::vector<std::unique_ptr<std::string>> memory_;
  std::vector<State> states_;
  Content content_;
};

}  // namespace varve::test
