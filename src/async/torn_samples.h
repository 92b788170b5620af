/// Detection of tensors that were written to while they were copied.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/cuda_reader.h"
#include "pipeline/file_writer.h"
#include "varve/hash.h"
#include "varve/status.h"

namespace varve {

/// Hashes of samples of every segment that is tensor memory: its first and last 256 bytes, and
/// pieces of 256 bytes in between, one for each MiB. An optimizer step changes most elements, so
/// the samples find it. They do not find a write to a single element between two samples.
class TornSamples {
 public:
  /// Takes the samples; reads those on devices with `reader` (null where there are none). Both
  /// arguments must outlive this. Errors: CudaReader::Read's.
  static Result<TornSamples> Take(std::span<const FileSegment> segments, CudaReader* reader);

  /// Takes the samples again and compares. Errors: FailedPrecondition naming the first segment that
  /// differs; Read's.
  Status Compare(const std::function<std::string(std::uint32_t owner)>& name_of) const;

 private:
  TornSamples(std::span<const FileSegment> segments, CudaReader* reader)
      : segments_(segments), reader_(reader) {}

  std::span<const FileSegment> segments_;
  CudaReader* reader_;
  std::vector<Hash128> hashes_;
};

}  // namespace varve
