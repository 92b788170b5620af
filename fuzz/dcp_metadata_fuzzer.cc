// DecodeDcpMetadata; and what it gives is encoded, decoded and merged again.

#include <algorithm>
#include <utility>
#include <vector>

#include "disjoint.h"
#include "fuzz_target.h"
#include "interop/dcp/encode.h"
#include "interop/dcp/metadata.h"
#include "interop/dcp/structure.h"
#include "tensor/box.h"

namespace varve::dcp_metadata_fuzzer {
namespace {

void CheckExtent(const Metadata& metadata, const Extent& extent, bool may_be_plain) {
  VARVE_FUZZ_CHECK(extent.file < metadata.files.size());
  VARVE_FUZZ_CHECK(extent.begin <= extent.end && extent.end >> 63 == 0);
  VARVE_FUZZ_CHECK(extent.encoding == Encoding::kTorchItem ||
                   extent.encoding == Encoding::kZstdTorchItem ||
                   (may_be_plain && extent.encoding == Encoding::kPlain));
}

void CheckMetadata(const Metadata& metadata) {
  const auto by_fqn = [](const auto& a, const auto& b) { return a.fqn < b.fqn; };
  VARVE_FUZZ_CHECK(std::is_sorted(metadata.tensors.begin(), metadata.tensors.end(), by_fqn));
  VARVE_FUZZ_CHECK(std::is_sorted(metadata.objects.begin(), metadata.objects.end(), by_fqn));
  for (const DataFile& file : metadata.files) {
    VARVE_FUZZ_CHECK(!file.name.empty() && file.name[0] != '/' && file.name != "..");
    VARVE_FUZZ_CHECK(file.rank < metadata.world_size);
  }
  for (const TensorMetadata& tensor : metadata.tensors) {
    std::vector<Box> boxes;
    for (const Chunk& chunk : tensor.chunks) {
      CheckExtent(metadata, chunk.extent, true);
      VARVE_FUZZ_CHECK(CheckBox(tensor.shape, chunk.box, ItemSize(tensor.dtype)).ok());
      VARVE_FUZZ_CHECK(boxes.empty() || boxes.back().offsets <= chunk.box.offsets);
      if (!IsEmpty(chunk.box)) {
        boxes.push_back(chunk.box);
      }
    }
    VARVE_FUZZ_CHECK(fuzz::AreDisjoint(boxes));
  }
  for (const ObjectMetadata& object : metadata.objects) {
    CheckExtent(metadata, object.extent, false);
  }
}

/// Returns true where tensors have no archives around them, as EncodeDcpMetadata writes none.
bool HasPlainTensors(const Metadata& metadata) {
  return std::any_of(metadata.tensors.begin(), metadata.tensors.end(), [](const auto& tensor) {
    return std::any_of(tensor.chunks.begin(), tensor.chunks.end(), [](const Chunk& chunk) {
      return chunk.extent.encoding == Encoding::kPlain;
    });
  });
}

Decoded Again(const Decoded& decoded, const DcpAttributeList& attributes) {
  DcpAttributeList written = attributes;
  if (decoded.structure) {
    written.emplace_back(kDcpStructure, EncodeValue(*decoded.structure));
  }
  const DcpEncodeOptions options{.structure = decoded.structure ? &*decoded.structure : nullptr,

                                 .attributes = std::move(written)};
  const auto encoded = EncodeDcpMetadata(decoded.metadata, options);
  VARVE_FUZZ_CHECK(encoded.ok());
  DcpAttributeList again_attributes;
  auto again = DecodeDcpMetadata(*encoded, &again_attributes);
  VARVE_FUZZ_CHECK(again.ok());
  VARVE_FUZZ_CHECK(again_attributes == attributes);
  return std::move(*again);
}

}  // namespace

VARVE_FUZZ_TARGET(dcp_metadata) {
  const auto decoded = DecodeDcpMetadata(input);
  if (!decoded.ok()) {
    VARVE_FUZZ_CHECK(decoded.status().code() != StatusCode::kInternal);
    return;
  }
  CheckMetadata(decoded->metadata);
  if (decoded->structure) {
    const auto structure = DecodeValue(EncodeValue(*decoded->structure));
    VARVE_FUZZ_CHECK(structure.ok() && *structure == *decoded->structure);
  }
  if (HasPlainTensors(decoded->metadata)) {
    return;
  }
  // The first time may lose files that nothing lies in; from then on all stays as it is.
  const Decoded once = Again(*decoded, {});
  const Decoded twice = Again(once, {{"attribute", std::string(input.substr(0, 100))}});
  VARVE_FUZZ_CHECK(once.metadata == twice.metadata);
  VARVE_FUZZ_CHECK(once.structure == twice.structure || !decoded->structure);
  VARVE_FUZZ_CHECK(once.metadata.tensors.size() == decoded->metadata.tensors.size());

  const auto merged = MergeRankLocalDcp({once, twice});
  VARVE_FUZZ_CHECK(merged.ok() && merged->metadata.tensors == once.metadata.tensors &&
                   merged->metadata.objects == once.metadata.objects &&
                   merged->structure == once.structure);
}

}  // namespace varve::dcp_metadata_fuzzer
