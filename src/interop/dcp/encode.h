/// Writes the index of a PyTorch Distributed Checkpoint.
#pragma once

#include <string>
#include <vector>

#include "interop/dcp/metadata.h"
#include "interop/dcp/wrapped.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/value.h"

namespace varve {

/// The parts of `.metadata` that Metadata has no place for.
struct DcpEncodeOptions {
  /// The containers of the state, for planner_data: dicts, lists and leaves as docs/format.md says.
  /// Null puts all entries into one dict: torch 2.6 builds no state from an index without paths.
  const Value* structure = nullptr;
  /// More attributes of the Metadata object, as bytes: torch keeps and ignores them. Sorted by
  /// name, and not one of DCP's own names.
  DcpAttributeList attributes;
  /// Tensors that are made of others: torch sees the value alone, and not the inner tensors.
  std::vector<DcpWrapped> wrapped;
};

/// Returns a pickle of protocol 2 that any Python 3 with torch turns into the objects that torch's
/// own writer would have made, in the order of the structure; its storage_meta has the id of the
/// save alone, where there is one. The same input always gives the same bytes.
/// Files that no extent lies in are not named in it: DCP has no list of files.
///
/// Every extent must be of Encoding::kTorchItem or kZstdTorchItem, but for those of inner tensors
/// of `options.wrapped`: DCP reads nothing else. Errors: InvalidArgument for other extents, for an
/// extent outside Metadata::files, and for what `options` must not hold.
Result<std::string> EncodeDcpMetadata(const Metadata& metadata,
                                      const DcpEncodeOptions& options = {});

}  // namespace varve
