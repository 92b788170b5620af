// To one file of torch.save: the state as it was, containers and all, in one archive.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "convert/writers.h"
#include "interop/torch/encode.h"
#include "save/state_file.h"

namespace varve {
Result<ConvertReport> WriteTorchFile(CheckpointReader& reader, const Selection& selection,
                                     const ConvertOptions& options, const SegmentWriter& write) {
  VARVE_ASSIGN_OR_RETURN(const Value state, WholeState(selection));
  std::vector<const SelectedTensor*> order;
  order.reserve(selection.tensors.size());
  for (const SelectedTensor& tensor : selection.tensors) {
    order.push_back(&tensor);
  }
  SelectedStream stream(reader, order, options, selection.tensor_bytes());
  std::vector<StateFileTensor> tensors;
  tensors.reserve(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    tensors.push_back({{order[i]->item.dtype, order[i]->item.tensor->shape}, stream.Bytes(i)});
  }
  VARVE_ASSIGN_OR_RETURN(const auto file, StateFile::LayOut(state, std::move(tensors)));
  ConvertReport report;
  VARVE_ASSIGN_OR_RETURN(report.bytes, write(file->segments()));
  report.tensor_count = selection.tensors.size();
  report.object_count = selection.objects.size();
  return report;
}

Result<ConvertReport> ConvertToTorch(CheckpointReader& reader, const Selection& selection,
                                     const std::string& target, const ConvertOptions& options,
                                     Storage& storage) {
  const auto publish = [&](const std::vector<FileSegment>& segments) {
    return PublishFile(storage, target, options, segments);
  };
  VARVE_ASSIGN_OR_RETURN(ConvertReport report, WriteTorchFile(reader, selection, options, publish));
  report.files_left_out = reader.metadata().side_files.size();
  return report;
}

}  // namespace varve
