/// The index of a PyTorch Distributed Checkpoint: `.metadata`, or one `__R.metadata` per rank.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/decoded.h"
#include "varve/status.h"

namespace varve {

/// Attributes of the index that DCP does not know and whose values are bytes, by name: see
/// EncodeDcpMetadata, which writes them.
using DcpAttributeList = std::vector<std::pair<std::string, std::string>>;

/// Decodes the pickle. Chunks and objects have extents of Encoding::kTorchItem (or kZstdTorchItem)
/// in the files that storage_data names, relative to the checkpoint; chunks are sorted, files are
/// in the order of their names with the rank in each name. The structure is the one that Varve has
/// kept, or follows planner_data; there is none if another planner than DCP's own keeps something
/// else there. Where no item of a tensor has more bytes than elements need, extents are of
/// Encoding::kPlain. Nothing in the pickle is ever run. `attributes` may be null.
///
/// Classes are known by their fields, those of other software like torch's: OLMo-core, Megatron and
/// others have their own.
///
/// Does not check that the chunks of a tensor cover it: DCP writes such checkpoints, and their
/// stored parts can be loaded. Keeps one of several empty chunks at one place.
///
/// Errors: DataLoss for a malformed pickle, a name twice, a chunk or value without stored bytes,
/// overlapping chunks or chunks outside their tensor; InvalidArgument for a relative_path that
/// leaves the checkpoint's directory, and for nesting beyond all measure; Unimplemented for an
/// unknown dtype, layout or transform, with the name of the tensor, and for the elements that
/// ByteCheckpoint stores.
Result<Decoded> DecodeDcpMetadata(std::string_view pickle, DcpAttributeList* attributes = nullptr);

/// Joins the indexes that ranks of a save without collectives wrote (`by_rank[r]` from
/// `__r.metadata`, as DecodeDcpMetadata gives them): replicas are taken from the lowest rank, and
/// the chunks of all ranks together make a tensor. There is a structure if all ranks have one.
/// Errors: DataLoss when ranks disagree about a tensor, or about what is at a path.
Result<Decoded> MergeRankLocalDcp(std::vector<Decoded> by_rank);

}  // namespace varve
