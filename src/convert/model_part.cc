#include "convert/model_part.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "convert/writers.h"
#include "format/structure.h"

namespace varve {
namespace {

bool HoldsTensor(const Value& value) {
  return value.kind == ValueKind::kTensorLeaf ||
         std::any_of(value.items.begin(), value.items.end(), HoldsTensor);
}

std::string TopLevel(std::string_view name) { return std::string(name.substr(0, name.find('.'))); }

std::string Count(std::uint64_t number, const char* noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

/// Returns the key of the only model of an Accelerator, in a list beside that of its optimizers;
/// empty for any other state.
std::string OnlyModelOfAccelerator(const Value& structure) {
  const Value* const models = ItemAt(structure, "models");
  const bool is_one = models != nullptr && models->kind == ValueKind::kList &&
                      models->items.size() == 1 && HoldsTensor(models->items[0]) &&
                      ItemAt(structure, "optimizers") != nullptr;
  return is_one ? "models.0" : "";
}

}  // namespace

std::string ModelPart::WhyNothing() const {
  return excluded_prefix.empty()
             ? ""
             : ": the format gets the model alone, and what begins with \"" + excluded_prefix +
                   "\" is no part of it; include what you want";
}

const Value* ItemAt(const Value& structure, std::string_view key) {
  for (std::size_t i = 0; IsMapping(structure.kind) && i + 1 < structure.items.size(); i += 2) {
    if (KeyText(structure.items[i]) == key) {
      return &structure.items[i + 1];
    }
  }
  return nullptr;
}

std::string ModelKey(const Value& structure) {
  for (const std::string_view key : {"model", "module", "model_state_dict", "state_dict"}) {
    const Value* const item = ItemAt(structure, key);
    if (item != nullptr && item->kind != ValueKind::kTensorLeaf && HoldsTensor(*item)) {
      return std::string(key);
    }
  }
  return {};
}

TrainingState FindTraining(const Value& structure) {
  TrainingState found{"", &structure};
  if (!ModelKey(structure).empty()) {
    return found;
  }
  for (std::size_t i = 0; IsMapping(structure.kind) && i + 1 < structure.items.size(); i += 2) {
    const Value& item = structure.items[i + 1];
    const bool trained = ItemAt(item, "optim") != nullptr || ItemAt(item, "optimizer") != nullptr ||
                         ItemAt(item, "optimizer_state_dict") != nullptr;
    if (!trained || ModelKey(item).empty()) {
      continue;  // A module named "model" among others, or averages of the weights, as a rule.
    }
    if (!found.prefix.empty()) {
      return {"", &structure};  // Two models: nothing says which is meant.
    }
    found = {KeyText(structure.items[i]) + ".", &structure.items[i + 1]};
  }
  return found;
}

ModelPart FindModel(const Value& structure) {
  const TrainingState training = FindTraining(structure);
  std::string key = ModelKey(*training.structure);
  if (key.empty()) {
    key = OnlyModelOfAccelerator(structure);
  }
  return key.empty() ? ModelPart{"", "optim"} : ModelPart{training.prefix + key + ".", ""};
}

std::vector<std::string> DescribeRest(const Metadata& metadata,
                                      const std::function<bool(std::string_view)>& is_written) {
  struct Counts {
    std::uint64_t tensors = 0;
    std::uint64_t objects = 0;
  };
  std::map<std::string, Counts> rest;
  for (const TensorMetadata& tensor : metadata.tensors) {
    if (!is_written(tensor.fqn)) {
      ++rest[TopLevel(tensor.fqn)].tensors;
    }
  }
  for (const ObjectMetadata& object : metadata.objects) {
    if (!is_written(object.fqn)) {
      ++rest[TopLevel(object.fqn)].objects;
    }
  }
  std::vector<std::string> described;
  for (const auto& [name, counts] : rest) {
    std::string line = name + ": ";
    line += counts.tensors > 0 ? Count(counts.tensors, "tensor") : "";
    line += counts.tensors > 0 && counts.objects > 0 ? ", " : "";
    line += counts.objects > 0 ? Count(counts.objects, "value") : "";
    described.push_back(std::move(line));
  }
  return described;
}

}  // namespace varve
