/// Save and load through a storage and a planner of the caller's choice. The order of the calls,
/// the threads and the failure rules: varve/protocol/storage_layer.h.
///
/// A caller without a storage or planner of his own uses varve/checkpoint.h.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "varve/checkpoint.h"
#include "varve/coordinator.h"
#include "varve/protocol/metadata.h"
#include "varve/protocol/planner.h"
#include "varve/protocol/storage_layer.h"
#include "varve/status.h"

namespace varve::protocol {

struct CallOptions {
  /// The id that Reset of the storage gets; without it the storage is used as it is.
  std::optional<std::string> checkpoint_id;
  /// Time for which any rank waits for the others before it fails and names the missing ranks.
  /// Includes the writing or reading of the slowest rank.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// The rank that plans for all and finishes the checkpoint. The same on all ranks.
  int coordinator_rank = 0;
  /// Of Save alone; Load refuses false. False: each rank saves on its own, and no message is
  /// exchanged. Each rank writes its whole state, replicas included, and returns its own metadata
  /// or its own error. The storage decides what that makes of a checkpoint; FileSystemWriter says
  /// what it does.
  bool use_collectives = true;
};

/// Saves the ranks' states. Collective: all ranks call it, each with a writer and a planner of its
/// own, which must live until it returns. Returns the checkpoint's metadata on every rank, or the
/// same error on every rank. Errors: those of the hooks; Internal when a writer returns without a
/// result for one of its items; InvalidArgument for a coordinator rank that is none; Unavailable
/// when a rank is missing.
Result<StateMetadata> Save(const State& state, StorageWriter& writer, SavePlanner& planner,
                           Coordinator& coordinator, const CallOptions& options = {});

/// Does the same with a DefaultSavePlanner, by a single process.
Result<StateMetadata> Save(const State& state, StorageWriter& writer,
                           const CallOptions& options = {});

/// Returns a FileSystemWriter, for paths and "s3://" names. Errors: InvalidArgument for an id that
/// its ValidateCheckpointId does not take.
Result<std::unique_ptr<StorageWriter>> MakeStorageWriter(std::string_view checkpoint_id);

/// Returns a FileSystemReader likewise.
Result<std::unique_ptr<StorageReader>> MakeStorageReader(std::string_view checkpoint_id);

/// Fills the ranks' targets. Collective as Save. Errors: those of the hooks; FailedPrecondition
/// when ranks read different metadata; Unavailable when a rank is missing; the same on every rank.
/// A coordinator rank that is none is InvalidArgument.
Status Load(TargetState& state, StorageReader& reader, LoadPlanner& planner,
            Coordinator& coordinator, const CallOptions& options = {});

/// Does the same with a DefaultLoadPlanner, by a single process.
Status Load(TargetState& state, StorageReader& reader, const CallOptions& options = {});

}  // namespace varve::protocol
