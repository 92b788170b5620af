#include "tensor/box.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/checked.h"

namespace varve {

Box WholeBox(const Dims& shape) { return {Dims(shape.size(), 0), shape}; }

std::string ToString(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(box.offsets[d]) + ":" +
            std::to_string(box.offsets[d] + box.sizes[d]);
  }
  return text + "]";
}

std::string ToString(const Dims& dims) {
  std::string text = "[";
  for (std::size_t d = 0; d < dims.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(dims[d]);
  }
  return text + "]";
}

std::uint64_t Volume(const Dims& sizes) {
  std::uint64_t volume = 1;
  for (const std::uint64_t size : sizes) {
    volume *= size;
  }
  return volume;
}

bool IsEmpty(const Box& box) {
  return std::find(box.sizes.begin(), box.sizes.end(), 0U) != box.sizes.end();
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box common;
  common.offsets.reserve(a.sizes.size());
  common.sizes.reserve(a.sizes.size());
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    const std::uint64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::uint64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) {
      return std::nullopt;
    }
    common.offsets.push_back(begin);
    common.sizes.push_back(end - begin);
  }
  return common;
}

bool Contains(const Box& outer, const Box& inner) {
  if (IsEmpty(inner)) {
    return true;
  }
  for (std::size_t d = 0; d < outer.sizes.size(); ++d) {
    if (inner.offsets[d] < outer.offsets[d] ||
        inner.offsets[d] + inner.sizes[d] > outer.offsets[d] + outer.sizes[d]) {
      return false;
    }
  }
  return true;
}

std::vector<Box> Subtract(const Box& box, const Box& hole) {
  const auto common = Intersect(box, hole);
  if (!common) {
    return IsEmpty(box) ? std::vector<Box>{} : std::vector<Box>{box};
  }
  // Peel one slab off each side of the hole, dimension by dimension; what remains is the hole.
  std::vector<Box> parts;
  Box rest = box;
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    const std::uint64_t rest_end = rest.offsets[d] + rest.sizes[d];
    const std::uint64_t hole_end = common->offsets[d] + common->sizes[d];
    if (common->offsets[d] > rest.offsets[d]) {
      Box before = rest;
      before.sizes[d] = common->offsets[d] - rest.offsets[d];
      parts.push_back(std::move(before));
    }
    if (hole_end < rest_end) {
      Box after = rest;
      after.offsets[d] = hole_end;
      after.sizes[d] = rest_end - hole_end;
      parts.push_back(std::move(after));
    }
    rest.offsets[d] = common->offsets[d];
    rest.sizes[d] = common->sizes[d];
  }
  return parts;
}

std::vector<Box> SubtractAll(const Box& box, const std::vector<Box>& holes) {
  std::vector<Box> rest;
  if (!IsEmpty(box)) {
    rest.push_back(box);
  }
  for (const Box& hole : holes) {
    std::vector<Box> next;
    for (const Box& part : rest) {
      auto pieces = Subtract(part, hole);
      next.insert(next.end(), pieces.begin(), pieces.end());
    }
    rest = std::move(next);
    if (rest.empty()) {
      break;
    }
  }
  return rest;
}

Strides RowMajorStrides(const Dims& sizes) {
  Strides strides(sizes.size());
  std::int64_t step = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= static_cast<std::int64_t>(std::max<std::uint64_t>(sizes[d], 1));
  }
  return strides;
}

std::vector<Box> FlatRunBoxes(const Dims& shape, std::uint64_t begin, std::uint64_t end) {
  std::vector<Box> boxes;
  if (begin >= end) {
    return boxes;
  }
  if (shape.empty()) {
    boxes.push_back(WholeBox(shape));
    return boxes;
  }
  const Strides strides = RowMajorStrides(shape);
  const Dims steps(strides.begin(), strides.end());
  for (std::uint64_t at = begin; at < end;) {
    // The outermost dimension along which at least one whole step begins here. The innermost one
    // always fits: its steps are single elements.
    std::size_t d = 0;
    while (at % steps[d] != 0 || end - at < steps[d]) {
      ++d;
    }
    Box box{Dims(shape.size()), shape};
    for (std::size_t outer = 0; outer <= d; ++outer) {
      box.offsets[outer] = at / steps[outer] % shape[outer];
      box.sizes[outer] = 1;
    }
    box.sizes[d] = std::min((end - at) / steps[d], shape[d] - box.offsets[d]);
    at += box.sizes[d] * steps[d];
    boxes.push_back(std::move(box));
  }
  return boxes;
}

Status CheckBox(const Dims& shape, const Box& box, std::uint64_t item_size) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) {
    return InvalidArgument("box " + ToString(box.sizes) + " at " + ToString(box.offsets) +
                           " has another number of dimensions than shape " + ToString(shape));
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto end = CheckedAdd(box.offsets[d], box.sizes[d]);
    if (!end || *end > shape[d]) {
      return InvalidArgument("box of sizes " + ToString(box.sizes) + " at " +
                             ToString(box.offsets) + " reaches outside shape " + ToString(shape));
    }
  }
  auto bytes = CheckedProduct(shape);
  if (bytes) {
    bytes = CheckedMul(*bytes, item_size);
  }
  if (!bytes || *bytes > (std::uint64_t{1} << 62)) {
    return InvalidArgument("shape " + ToString(shape) + " is larger than 2^62 bytes");
  }
  return Status::Ok();
}

}  // namespace varve
