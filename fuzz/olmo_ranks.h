/// Helpers of the fuzz targets of OLMo's layouts.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "archives.h"
#include "interop/olmo/pieces.h"
#include "interop/state_tree.h"

namespace varve::fuzz {

/// Returns the comparison of replicas in these files, which must outlive it.
inline ReplicaCheck CheckOf(const std::vector<Bytes>& files, std::vector<RecordCrc> records) {
  FileNames names;
  for (std::size_t i = 0; i < files.size(); ++i) {
    names.push_back("file" + std::to_string(i) + ".pt");
  }
  return {std::move(names), std::move(records),
          [&files](std::uint32_t file, std::uint64_t begin, std::uint64_t end) {
            VARVE_FUZZ_CHECK(begin <= end);
            return CheckedReader(files.at(file))(begin, end - begin);
          }};
}

/// Flattens a state and checks the outcome.
inline void CheckState(StateNode state, const std::vector<Bytes>& files,
                       const std::vector<RecordCrc>& records, Holes holes) {
  Decoded decoded;
  decoded.records = records;
  if (FlattenState(std::move(state), &decoded).ok()) {
    CheckDecoded(decoded, SizesOf(files), holes);
  }
}

}  // namespace varve::fuzz
