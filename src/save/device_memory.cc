#include "save/device_memory.h"

#include <set>
#include <string>
#include <utility>

namespace varve {

Status AwaitDeviceWork(const State& state, CudaReader* reader) {
  std::set<std::pair<int, void*>> seen;
  for (const SourceTensor& tensor : state.tensors) {
    if (!tensor.cuda || !seen.emplace(tensor.cuda->device, tensor.cuda->stream).second) {
      continue;
    }
    if (reader == nullptr) {
      return InvalidArgument("tensor \"" + tensor.fqn + "\" is on CUDA device " +
                             std::to_string(tensor.cuda->device) +
                             ": only AsyncSave can copy it, with a Stager that was made with "
                             "copy_from_devices");
    }
    VARVE_RETURN_IF_ERROR(reader->After(tensor.cuda->device, tensor.cuda->stream)
                              .Annotate("tensor \"" + tensor.fqn + "\""));
  }
  return Status::Ok();
}

}  // namespace varve
