// To a native checkpoint or to DCP: the ordinary save, with a state that is read while it is
// written.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "convert/writers.h"
#include "format/data_file.h"
#include "tensor/box.h"

namespace varve {
namespace {

bool IsStoredOnce(const SelectedTensor& a, const SelectedTensor& b) {
  return a.item.dtype == b.item.dtype && a.item.tensor->dtype == b.item.tensor->dtype &&
         a.item.tensor->shape == b.item.tensor->shape &&
         a.item.tensor->chunks == b.item.tensor->chunks;
}

/// Returns for each tensor the one that it is tied to: of those that the source stores once, the
/// one whose name in the target is the lowest; itself where it is stored alone.
std::vector<std::size_t> FindStoredTies(const std::vector<SelectedTensor>& tensors) {
  std::vector<std::size_t> tied(tensors.size());
  std::map<std::tuple<std::uint32_t, std::uint64_t>, std::vector<std::size_t>> by_place;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tied[i] = i;
    const ChunkList& chunks = tensors[i].item.tensor->chunks;
    if (!chunks.empty() && !IsEmpty(chunks.front().box)) {
      by_place[{chunks.front().extent.file, chunks.front().extent.begin}].push_back(i);
    }
  }
  for (auto& [place, items] : by_place) {
    std::sort(items.begin(), items.end(),
              [&](std::size_t a, std::size_t b) { return tensors[a].fqn < tensors[b].fqn; });
    for (std::size_t i = 1; i < items.size(); ++i) {
      const auto first = std::find_if(items.begin(), items.end(), [&](std::size_t other) {
        return IsStoredOnce(tensors[other], tensors[items[i]]);
      });
      tied[items[i]] = *first;
    }
  }
  return tied;
}

}  // namespace

Result<ConvertReport> ConvertBySaving(CheckpointReader& reader, const Selection& selection,
                                      const std::string& target, const ConvertOptions& options,
                                      Storage& storage) {
  // Read in the order in which the data file will have them.
  const std::vector<std::size_t> tied = FindStoredTies(selection.tensors);
  std::vector<const SelectedTensor*> tensors;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tied.size(); ++i) {
    if (tied[i] == i) {
      tensors.push_back(&selection.tensors[i]);
      bytes += selection.tensors[i].item.bytes();
    }
  }
  const auto chunk = [](const SelectedTensor& tensor) {
    const Dims& shape = tensor.item.tensor->shape;
    return StoredChunk{tensor.fqn, tensor.item.dtype, shape, WholeBox(shape)};
  };
  std::sort(tensors.begin(), tensors.end(), [&](const SelectedTensor* a, const SelectedTensor* b) {
    return ChunkBefore(chunk(*a), chunk(*b));
  });
  SelectedStream stream(reader, tensors, options, bytes);
  State state;
  const auto add = [&](const SelectedTensor& tensor, const SelectedTensor& stored,
                       ProduceFunction produce) {
    const Dims& shape = tensor.item.tensor->shape;
    state.tensors.push_back({.fqn = tensor.fqn,
                             .dtype = tensor.item.dtype,
                             .shape = shape,
                             .box = WholeBox(shape),
                             .source = Producer{std::move(produce), &stored}});
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    add(*tensors[i], *tensors[i], stream.Bytes(i));
  }
  for (std::size_t i = 0; i < tied.size(); ++i) {
    if (tied[i] != i) {
      add(selection.tensors[i], selection.tensors[tied[i]], [](std::uint64_t, auto) {
        return Status(StatusCode::kInternal, "a tied tensor is stored under another name");
      });
    }
  }
  for (const SelectedObject& object : selection.objects) {
    state.objects.push_back({object.fqn, object.encoded});
  }
  state.structure = selection.structure;
  VARVE_ASSIGN_OR_RETURN(state.files, ReadSideFiles(reader));
  SaveOptions save;
  save.format = options.to == ConvertTarget::kDcp ? Format::kDcp : Format::kVarve;
  save.overwrite = options.overwrite ? Overwrite::kAlways : Overwrite::kNever;
  save.stop = options.stop;
  VARVE_ASSIGN_OR_RETURN(const SaveReport saved, Save(state, target, save, storage));
  return ConvertReport{.tensor_count = selection.tensors.size(),
                       .object_count = selection.objects.size(),
                       .bytes = saved.bytes_written,
                       .skipped = {},
                       .objects_left_out = 0,
                       .files = NamesOf(state.files),
                       .files_left_out = 0};
}

}  // namespace varve
