// The pickle of torch's Metadata, without Python's pickler: that takes 14 us for each tensor.
#pragma once

#include <optional>

#include "bindings.h"

namespace varve::python {

/// Returns the pickle of an index, of protocol 2; nothing where it holds other than what torch's
/// own planners put into it: Python's pickler is for that.
///
/// `classes` has the dataclasses by type, each with its module, its name, the names of its fields,
/// and those of the fields that are left out where they are None. `torch` has torch.Size,
/// TensorProperties, the layout and the memory format that torch writes, and torch.dtype.
std::optional<nb::bytes> PickleDcpMetadata(nb::handle metadata, const nb::dict& classes,
                                           const nb::tuple& torch);

}  // namespace varve::python
