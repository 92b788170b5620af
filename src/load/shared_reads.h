/// Finds the ranks of a node that need the same bytes of a checkpoint, so that storage is asked for
/// them once. Pure functions, but for the name of the node.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fields.h"
#include "pipeline/file_reader.h"
#include "varve/checkpoint.h"
#include "varve/hash.h"

namespace varve {

/// The message in which a rank describes its reads to the coordinator.
struct ReadNeed {
  std::string node;         ///< Empty where the rank shares no reads.
  Hash128 parts;            ///< Of the parts of chunks: equal where two ranks need the same.
  std::uint64_t bytes = 0;  ///< To be read, in whole checksum blocks. An estimate.
  std::string tensors;      ///< A bit for each tensor of the checkpoint: the rank needs some of it.
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ReadNeed>& need) {
  archive(need.node, need.parts.bytes, need.bytes, need.tensors);
}

/// Returns what a rank needs of the stored tensors to fill its targets, which fit them. Tensors
/// with several values are left out. It is empty where it is too little to make a difference, or
/// where the targets cannot be filled.
ReadNeed NeedOf(const Metadata& metadata, std::span<const TargetTensor> targets,
                const LoadOptions& options);

/// Returns by rank with which others it shares its reads. Ranks of a node share where together they
/// would read a tenth more than there is of the tensors that they need, so that some of it would be
/// read twice; else those share that need the same parts.
std::vector<SharedBy> ShareReads(const Metadata& metadata, std::span<const ReadNeed> needs);

}  // namespace varve
