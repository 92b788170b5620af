/// A whole file of torch.save as a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "interop/decoded.h"
#include "interop/zip/directory.h"
#include "varve/status.h"

namespace varve {

/// Flattens the saved object as DCP flattens a state dict: dicts are always opened, lists only if
/// they, or lists nested in them, hold a tensor or a dict, tuples never; an object that is neither
/// is one entry with the empty name. Reads the container and the pickle, and of the storages only
/// those of tensors that are part of a value.
///
/// Tensors get extents of Encoding::kPlain, values Encoding::kInline. An object that no Value can
/// be becomes a kTorchSave without text: a part of a file is no archive of its own. `file_name` is
/// the name of the one data file. Errors: as TorchArchive::Open; InvalidArgument when two entries
/// get one name.
Result<Decoded> DecodeTorchFile(std::uint64_t size, const RangeReader& read, std::string file_name);

}  // namespace varve
