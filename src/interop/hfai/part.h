/// One part of a checkpoint of hfai.checkpoint 2.0.0: the share of one rank, a file of torch.save.
///
/// A part is one dict: `__nshards__`, `__version__`, `model` (a list with one `(small, large)` per
/// model) and `optimizer` (a list with one `(state dict, large)` per optimizer). Part 0 also has
/// the caller's own entries. `small` holds whole tensors and values. `large` holds flat pieces as
/// `(full shape, piece)`, by name; in optimizers by `(parameter id, name)`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/decoded.h"
#include "interop/state_tree.h"
#include "interop/zip/directory.h"
#include "varve/status.h"
#include "varve/tensor.h"
#include "varve/value.h"

namespace varve {

/// A part's piece of a large tensor.
struct HfaiPiece {
  Value owner;         ///< The parameter id; kNone in a model.
  Value key;           ///< The name in the model, or in the state of the parameter.
  Dims shape;          ///< Of the whole tensor. Its bytes do not overflow.
  StoredTensor piece;  ///< Of one dimension, in one chunk.
};

/// A part's share of one model or optimizer.
struct HfaiShare {
  StateNode small;  ///< A mapping. Of an optimizer: its state dict, which has a mapping `state`.
  std::vector<HfaiPiece> large;
};

struct HfaiPart {
  std::uint32_t number = 0;
  std::string name;  ///< Of the file.
  std::uint64_t size = 0;
  std::uint64_t nshards = 0;
  std::vector<HfaiShare> models;
  std::vector<HfaiShare> optimizers;
  StateNode others;  ///< The caller's entries, of part 0 only.
  std::vector<RecordCrc> records;
};

/// Reads part `number`, which will be data file `file` of the checkpoint. Reads the container and
/// the pickle, and of the storages only those of tensors that are part of a value. Errors, each
/// naming the part and where known the tensor: DataLoss for what is no part; Unimplemented for
/// another version than kHfaiVersion; as TorchArchive::Open.
Result<HfaiPart> DecodeHfaiPart(std::uint64_t size, const RangeReader& read, std::uint32_t number,
                                std::uint32_t file);

}  // namespace varve
