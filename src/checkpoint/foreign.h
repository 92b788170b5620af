/// Checkpoints that other software wrote, recognised by what they hold.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/open.h"
#include "interop/decoded.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Opens what stands at `path` if it is one of
///  - a PyTorch Distributed Checkpoint: a directory with `.metadata`, or with the `__R.metadata` of
///    ranks 0 to the last (saved without collectives);
///  - a folder of safetensors files, with or without `model.safetensors.index.json`;
///  - one safetensors file;
///  - one file of torch.save.
/// Reads indexes only, and runs nothing they say. File sizes are
/// what storage says; an extent beyond its file's end, or a file that is missing, is DataLoss.
/// Errors: NotFound when it is none of these; as the decoders in interop/; FailedPrecondition for a
/// rank-local checkpoint that lacks a rank.
Result<OpenedIndex> OpenForeign(Storage& storage, const std::string& path);

/// True for a directory that holds a whole index of DCP or of a Hugging Face folder and, beside it,
/// nothing but files of that format: one that an overwrite may replace. A folder of Hugging Face's
/// often has a tokenizer beside the weights.
bool HoldsOnlyForeign(const std::vector<DirectoryEntry>& entries);

/// True for a folder of Hugging Face's tools, which says itself that it is one.
bool HasHfIndex(const std::vector<DirectoryEntry>& entries);

}  // namespace varve
