/// The fields of boxes and dtypes, see base/fields.h.
#pragma once

#include "base/fields.h"
#include "varve/tensor.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, DType>& dtype) {
  archive.Enum(dtype, DType{0}, DType{kDTypeCount - 1}, "unknown dtype");
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Box>& box) {
  archive(box.offsets, box.sizes);
  archive.Check([&] { return box.offsets.size() == box.sizes.size(); },
                "a box that has not as many offsets as sizes");
}

}  // namespace varve
