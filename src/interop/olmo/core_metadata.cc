// metadata.json of OLMo-core's first layout. The input is untrusted: it names files, which are
// opened, and elements, which are copied. File names are accepted in one form only.

#include <algorithm>
#include <utility>

#include <simdjson.h>

#include "base/checked.h"
#include "base/json_parser.h"
#include "interop/json_members.h"
#include "interop/olmo/core.h"
#include "interop/olmo/names.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::size_t kMaxCoreDims = 64;  // As torch.
// Of the largest dtype: that of the slices is not known yet.
constexpr std::uint64_t kMaxElementBytes = 16;

/// Returns the run of the flattened tensor that a box is; nothing where its elements do not follow
/// one another. Requires a box that is not empty and passed CheckBox.
std::optional<std::pair<std::uint64_t, std::uint64_t>> RunOf(const Dims& shape, const Box& box) {
  std::size_t cut = 0;  // The first dimension of which the box has more than one index.
  while (cut < shape.size() && box.sizes[cut] == 1) {
    ++cut;
  }
  std::uint64_t begin = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (d > cut && box.sizes[d] != shape[d]) {
      return std::nullopt;
    }
    begin = begin * shape[d] + box.offsets[d];
  }
  return std::pair(begin, begin + Volume(box.sizes));
}

/// Reads the parts of one tensor.
class PartReader {
 public:
  explicit PartReader(CoreTensor* tensor) : tensor_(*tensor) {}

  /// Reads the ranges or the box of a rank's slice. A value of the older form is a list.
  Status Read(std::uint32_t rank, simdjson::dom::element value) {
    if (value.is_array()) {
      return ReadRanges(rank, value);
    }
    VARVE_RETURN_IF_ERROR(ReadJsonMembers(value, "the shard's spec", &members_));
    const auto field = [&](std::string_view name) {
      const simdjson::dom::element* const found = FindJsonMember(members_, name);
      return found != nullptr && !found->is_null() ? found : nullptr;
    };
    if (const auto* const ranges = field("flattened_offsets")) {
      return ReadRanges(rank, *ranges);
    }
    const auto* const sizes = field("local_shape");
    const auto* const offsets = field("global_offset");
    if (sizes == nullptr || offsets == nullptr) {
      return DataLoss("it has neither flattened_offsets nor local_shape with global_offset");
    }
    Box box;
    VARVE_RETURN_IF_ERROR(ReadJsonDims(*sizes, "local_shape", &box.sizes));
    VARVE_RETURN_IF_ERROR(ReadJsonDims(*offsets, "global_offset", &box.offsets));
    return AddBox(rank, std::move(box));
  }

 private:
  /// Reads [begin, end], or a list of such.
  Status ReadRanges(std::uint32_t rank, simdjson::dom::element value) {
    simdjson::dom::array items;
    if (value.get(items)) {
      return DataLoss("its ranges are no list");
    }
    simdjson::dom::element first;
    if (items.at(0).get(first) == simdjson::SUCCESS && !first.is_array()) {
      return ReadRange(rank, value);
    }
    for (const simdjson::dom::element item : items) {
      VARVE_RETURN_IF_ERROR(ReadRange(rank, item));
    }
    return Status::Ok();
  }

  Status ReadRange(std::uint32_t rank, simdjson::dom::element value) {
    range_.clear();
    VARVE_RETURN_IF_ERROR(ReadJsonDims(value, "a range", &range_));
    if (range_.size() != 2 || range_[0] > range_[1] || range_[1] > tensor_.elements) {
      return DataLoss("the range " + ToString(range_) + " is none of the " +
                      std::to_string(tensor_.elements) + " elements of shape " +
                      ToString(tensor_.shape));
    }
    if (range_[0] != range_[1]) {
      tensor_.parts.push_back({rank, CorePart::kRun, range_[0], range_[1]});
    }
    return Status::Ok();
  }

  Status AddBox(std::uint32_t rank, Box box) {
    if (const Status status = CheckBox(tensor_.shape, box, kMaxElementBytes); !status.ok()) {
      return DataLoss(status.message());
    }
    if (IsEmpty(box)) {
      return Status::Ok();
    }
    if (const auto run = RunOf(tensor_.shape, box)) {
      tensor_.parts.push_back({rank, CorePart::kRun, run->first, run->second});
      return Status::Ok();
    }
    tensor_.parts.push_back(
        {rank, static_cast<std::uint32_t>(tensor_.boxes.size()), 0, Volume(box.sizes)});
    tensor_.boxes.push_back(std::move(box));
    return Status::Ok();
  }

  CoreTensor& tensor_;
  JsonMembers members_;
  Dims range_;
};

/// Checks that no slice is longer than the tensor. Requires parts sorted by rank.
Status CheckSums(const CoreTensor& tensor) {
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
    const CorePart& part = tensor.parts[i];
    elements = i > 0 && tensor.parts[i - 1].rank == part.rank ? elements : 0;
    if (part.end - part.begin > tensor.elements - elements) {
      return DataLoss("rank " + std::to_string(part.rank) +
                      " holds elements of it more than once: its ranges have more than the " +
                      std::to_string(tensor.elements) + " elements of the tensor");
    }
    elements += part.end - part.begin;
  }
  return Status::Ok();
}

/// Reads the parts of all files, which an object has by name. Sorts them by rank.
Status ReadParts(simdjson::dom::element by_file, CoreTensor* tensor, std::uint32_t* ranks) {
  simdjson::dom::object files;
  if (by_file.get(files)) {
    return DataLoss("its files are not an object");
  }
  PartReader reader(tensor);
  std::vector<std::uint32_t> named;
  for (const auto& [name, value] : files) {
    const auto rank = RankInName(name, kCorePrefix, kCoreSuffix);
    if (!rank) {
      return DataLoss("it names the file \"" + std::string(name) +
                      "\"; expected rank_{R}.safetensors");
    }
    VARVE_RETURN_IF_ERROR(reader.Read(*rank, value).Annotate(name));
    named.push_back(*rank);
  }
  std::sort(named.begin(), named.end());
  if (const auto twice = std::adjacent_find(named.begin(), named.end()); twice != named.end()) {
    return DataLoss("it names the file of rank " + std::to_string(*twice) + " twice");
  }
  if (!named.empty()) {
    *ranks = std::max(*ranks, named.back() + 1);
  }
  std::stable_sort(tensor->parts.begin(), tensor->parts.end(),
                   [](const CorePart& a, const CorePart& b) { return a.rank < b.rank; });
  return CheckSums(*tensor);
}

Status ReadShape(const JsonMembers& members, CoreTensor* tensor) {
  const simdjson::dom::element* const shape = FindJsonMember(members, "shape");
  if (shape == nullptr) {
    return DataLoss("it has no shape");
  }
  VARVE_RETURN_IF_ERROR(ReadJsonDims(*shape, "its shape", &tensor->shape));
  if (tensor->shape.size() > kMaxCoreDims) {
    return DataLoss("it has " + std::to_string(tensor->shape.size()) + " dimensions, more than " +
                    std::to_string(kMaxCoreDims));
  }
  const Status fits = CheckBox(tensor->shape, WholeBox(tensor->shape), kMaxElementBytes);
  if (!fits.ok()) {
    return DataLoss(fits.message());
  }
  tensor->elements = Volume(tensor->shape);
  return Status::Ok();
}

/// Returns the dtype of a name, which is safetensors' or torch's.
std::optional<DType> DTypeOf(std::string_view name) {
  constexpr std::string_view kTorch = "torch.";
  name.remove_prefix(name.starts_with(kTorch) ? kTorch.size() : 0);
  const auto dtype = DTypeFromSafetensorsName(name);
  return dtype ? dtype : DTypeFromName(name);
}

Status ReadTensorEntry(simdjson::dom::element entry, CoreTensor* tensor, std::uint32_t* ranks) {
  JsonMembers members;
  VARVE_RETURN_IF_ERROR(ReadJsonMembers(entry, "its entry", &members));
  VARVE_RETURN_IF_ERROR(ReadShape(members, tensor));
  std::string_view dtype;
  const simdjson::dom::element* const named = FindJsonMember(members, "dtype");
  if (named != nullptr && !named->get(dtype)) {
    tensor->dtype = DTypeOf(dtype);
  }
  const simdjson::dom::element* const specs = FindJsonMember(members, "shard_spec_per_file");
  const simdjson::dom::element* const ranges =
      FindJsonMember(members, "flattened_offsets_per_file");
  if ((specs == nullptr) == (ranges == nullptr)) {
    return DataLoss("it has not one of shard_spec_per_file and flattened_offsets_per_file");
  }
  return ReadParts(specs != nullptr ? *specs : *ranges, tensor, ranks);
}

Result<CoreLayout> DecodeLayout(std::string_view json) {
  if (json.empty()) {
    return DataLoss("it is empty");
  }
  JsonParser parser;
  simdjson::dom::element root;
  if (const auto error = parser.Parse(json).get(root); error) {
    return DataLoss(simdjson::error_message(error));
  }
  JsonMembers members;
  VARVE_RETURN_IF_ERROR(ReadJsonMembers(root, "the metadata", &members));
  const simdjson::dom::element* const found = FindJsonMember(members, "tensors");
  simdjson::dom::object tensors;
  if (found == nullptr || found->get(tensors)) {
    return DataLoss("there is no object \"tensors\"");
  }
  CoreLayout layout;
  for (const auto& [name, entry] : tensors) {
    const auto place = static_cast<std::uint32_t>(layout.tensors.size());
    CoreTensor& tensor = layout.tensors.emplace_back();
    tensor.name = std::string(name);
    if (!layout.by_name.emplace(tensor.name, place).second) {
      return DataLoss("duplicate name \"" + tensor.name + "\" in \"tensors\"");
    }
    const Status status = ReadTensorEntry(entry, &tensor, &layout.ranks);
    VARVE_RETURN_IF_ERROR(status.Annotate("tensor \"" + tensor.name + "\""));
  }
  return layout;
}

}  // namespace

Result<CoreLayout> DecodeCoreMetadata(std::string_view json) {
  return DecodeLayout(json).Annotate("malformed metadata");
}

}  // namespace varve
