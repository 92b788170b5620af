#include "plan/load_plan.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/checked.h"
#include "tensor/box.h"

namespace varve {
namespace {

std::string Describe(DType dtype, const Dims& shape) {
  return std::string(DTypeName(dtype)) + ToString(shape);
}

std::string Named(const LoadItem& item) { return "tensor \"" + std::string(item.fqn) + "\""; }

}  // namespace

Result<std::vector<PlannedRead>> PlanLoad(const Metadata& metadata,
                                          const std::vector<LoadItem>& items) {
  std::vector<PlannedRead> reads;
  reads.reserve(items.size());
  std::vector<std::uint32_t> numbers;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const LoadItem& item = items[i];
    const TensorMetadata* tensor = metadata.FindTensor(item.fqn);
    if (tensor == nullptr) {
      return NotFound(Named(item) + " is not in the checkpoint");
    }
    if (tensor->dtype != item.dtype || tensor->shape != item.shape) {
      return InvalidArgument(Named(item) + ": stored as " + Describe(tensor->dtype, tensor->shape) +
                             ", to be loaded into " + Describe(item.dtype, item.shape));
    }
    if (Status status = CheckBox(item.shape, item.box, ItemSize(item.dtype)); !status.ok()) {
      return status.Annotate(Named(item));
    }
    std::uint64_t covered = 0;
    std::vector<Box> parts;
    numbers.clear();
    tensor->chunks.AddOverlapping(item.box, &numbers);
    for (const std::uint32_t number : numbers) {
      auto common = Intersect(tensor->chunks[number].box, item.box);
      covered += Volume(common->sizes);
      parts.push_back(*common);
      reads.push_back({static_cast<std::uint32_t>(i),
                       static_cast<std::uint32_t>(tensor - metadata.tensors.data()), number,
                       std::move(*common)});
    }
    if (covered != Volume(item.box.sizes)) {
      const auto missing = SubtractAll(item.box, parts);
      return DataLoss(
          Named(item) + ": no chunk holds " +
          (missing.empty() ? "all of " + ToString(item.box) : ToString(missing.front())));
    }
  }
  return reads;
}

std::vector<ByteRange> ScheduleReads(std::vector<ByteRange> needed, const BlockGeometry& geometry,
                                     std::uint64_t max_gap, std::uint64_t unit_bytes) {
  std::erase_if(needed, [](const ByteRange& range) { return range.begin == range.end; });
  std::sort(needed.begin(), needed.end(), [](const ByteRange& a, const ByteRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::vector<ByteRange> joined;
  for (const ByteRange& range : needed) {
    const std::uint64_t first = (range.begin - geometry.data_begin) / geometry.block_bytes;
    const std::uint64_t last = DivideUp(range.end - geometry.data_begin, geometry.block_bytes);
    const ByteRange whole{
        geometry.data_begin + first * geometry.block_bytes,
        std::min(geometry.data_begin + last * geometry.block_bytes, geometry.file_size)};
    if (!joined.empty() &&
        (whole.begin <= joined.back().end || whole.begin - joined.back().end <= max_gap)) {
      joined.back().end = std::max(joined.back().end, whole.end);
    } else {
      joined.push_back(whole);
    }
  }
  std::vector<ByteRange> units;
  for (const ByteRange& range : joined) {
    for (std::uint64_t at = range.begin; at < range.end; at += unit_bytes) {
      units.push_back({at, std::min(at + unit_bytes, range.end)});
    }
  }
  return units;
}

}  // namespace varve
