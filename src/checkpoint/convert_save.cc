// To a native checkpoint or to DCP: the ordinary save, with a state that is read while it is
// written.

#include <algorithm>
#include <utility>

#include "checkpoint/convert.h"
#include "format/data_file.h"
#include "tensor/box.h"

namespace varve {

Result<ConvertReport> ConvertBySaving(CheckpointReader& reader, const Selection& selection,
                                      const std::string& target, const ConvertOptions& options,
                                      Storage& storage) {
  // Read in the order in which the data file will have them.
  std::vector<const SelectedTensor*> tensors;
  tensors.reserve(selection.tensors.size());
  for (const SelectedTensor& tensor : selection.tensors) {
    tensors.push_back(&tensor);
  }
  const auto chunk = [](const SelectedTensor& tensor) {
    const Dims& shape = tensor.item.tensor->shape;
    return StoredChunk{tensor.fqn, tensor.item.dtype, shape, WholeBox(shape), {}, {}};
  };
  std::sort(tensors.begin(), tensors.end(), [&](const SelectedTensor* a, const SelectedTensor* b) {
    return ChunkBefore(chunk(*a), chunk(*b));
  });
  SelectedStream stream(reader, tensors, options, selection.tensor_bytes());
  State state;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Dims& shape = tensors[i]->item.tensor->shape;
    state.tensors.push_back({.fqn = tensors[i]->fqn,
                             .dtype = tensors[i]->item.dtype,
                             .shape = shape,
                             .box = WholeBox(shape),
                             .produce = stream.Bytes(i)});
  }
  for (const SelectedObject& object : selection.objects) {
    state.objects.push_back({object.fqn, object.encoded});
  }
  state.structure = selection.structure;
  VARVE_ASSIGN_OR_RETURN(state.files, ReadSideFiles(reader));
  SaveOptions save;
  save.format = options.to == ConvertTarget::kDcp ? Format::kDcp : Format::kVarve;
  save.overwrite = options.overwrite ? Overwrite::kAlways : Overwrite::kNever;
  save.storage = &storage;
  VARVE_ASSIGN_OR_RETURN(const SaveReport saved, Save(state, target, save));
  return ConvertReport{.tensor_count = selection.tensors.size(),
                       .object_count = selection.objects.size(),
                       .bytes = saved.bytes_written,
                       .skipped = {},
                       .objects_left_out = 0,
                       .files = NamesOf(state.files),
                       .files_left_out = 0};
}

}  // namespace varve
