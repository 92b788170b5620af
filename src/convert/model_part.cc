#include "convert/model_part.h"

#include <algorithm>
#include <array>
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

}  // namespace

ModelPart FindModel(const Value& structure) {
  constexpr std::array<std::string_view, 4> kModels{"model", "module", "model_state_dict",
                                                    "state_dict"};
  for (const std::string_view wanted : kModels) {
    for (std::size_t i = 0; IsMapping(structure.kind) && i + 1 < structure.items.size(); i += 2) {
      const Value& item = structure.items[i + 1];
      const bool container = item.kind != ValueKind::kTensorLeaf;
      if (KeyText(structure.items[i]) == wanted && container && HoldsTensor(item)) {
        return {std::string(wanted) + ".", ""};
      }
    }
  }
  return {"", "optim"};
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
