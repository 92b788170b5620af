/// Finds tensors that were written to while they were being copied.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pipeline/file_writer.h"
#include "varve/hash.h"
#include "varve/status.h"

namespace varve {

/// Hashes of samples of every segment that is tensor memory: its first and last 256 bytes, and
/// pieces of 256 bytes in between, one for each MiB. An optimizer step changes most elements, so
/// that samples find it; a write to a single element between two samples they do not.
class TornSamples {
 public:
  /// Takes the samples. `segments` must outlive this.
  explicit TornSamples(std::span<const FileSegment> segments);

  /// Takes them again. Errors: FailedPrecondition naming the first segment that differs.
  Status Compare(const std::function<std::string(std::uint32_t owner)>& name_of) const;

 private:
  std::span<const FileSegment> segments_;
  std::vector<Hash128> hashes_;
};

}  // namespace varve
