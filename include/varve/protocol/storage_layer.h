/// A backend of one's own: derive from StorageWriter and StorageReader, then let
/// RunStorageConformance try it from your tests.
///
/// The calls of a save, by varve::protocol::Save. Each rank has a writer and a planner of its own.
///
///  1. all ranks     StorageWriter::Reset, if a checkpoint id was given
///  2. all ranks     StorageWriter::GetStorageMeta, SavePlanner::SetUpPlanner
///  3. all ranks     StorageWriter::SetUpStorageWriter
///  4. all ranks     SavePlanner::CreateLocalPlan, StorageWriter::PrepareLocalPlan
///     exchange      plans go to the coordinator: rank 0, or CallOptions::coordinator_rank
///  5. coordinator   SavePlanner::CreateGlobalPlan, StorageWriter::PrepareGlobalPlan
///     exchange      each rank gets its own plan back
///  6. all ranks     SavePlanner::FinishPlan
///  7. all ranks     StorageWriter::WriteData, which calls SavePlanner::ResolveData for each item
///     exchange      results go to the coordinator
///  8. coordinator   StorageWriter::Finish: from here on the checkpoint is there
///     exchange      all ranks learn the outcome
///
/// With CallOptions::use_collectives false there is no exchange: every rank calls all of 1 to 8
/// by itself, 5 and 8 with its own plan and results alone, and learns its own outcome alone.
///
/// The calls of a load, by varve::protocol::Load:
///
///  1. all ranks     StorageReader::Reset, if a checkpoint id was given
///  2. all ranks     StorageReader::ReadMetadata
///  3. all ranks     LoadPlanner::SetUpPlanner
///  4. all ranks     StorageReader::SetUpStorageReader, LoadPlanner::CreateLocalPlan
///  5. all ranks     StorageReader::PrepareLocalPlan
///     exchange      plans go to the coordinator, which also checks that all have read the same
///                   metadata
///  6. coordinator   LoadPlanner::CreateGlobalPlan, StorageReader::PrepareGlobalPlan
///     exchange      each rank gets its own plan back; nothing has been written to memory so far
///  7. all ranks     LoadPlanner::FinishPlan
///  8. all ranks     StorageReader::ReadData, which calls LoadPlanner::LoadBytes for each value,
///                   ResolveTensor and then CommitTensor for each piece of a tensor
///     exchange      all ranks learn the outcome
///
/// Threads. All hooks of a rank are called one after the other on the thread that called Save or
/// Load. WriteData and ReadData may start threads, and call ResolveData, LoadBytes, ResolveTensor
/// and CommitTensor on them, at the same time for different items; they have ended when it returns.
///
/// Failures. A hook fails by returning an error; an exception counts as one. The rank then skips
/// its hooks up to the next exchange, where all ranks learn of it. Every rank returns the same
/// error, which names each rank that failed and its hook; no hook that stands behind that exchange
/// is called on any rank. Then each rank calls Abandon of its writer. After an error of Save no new
/// checkpoint is visible and an older one is whole, as far as the backend keeps the rules of Finish
/// and Abandon. Two exceptions: Finish has done its work and still reports an error; or the
/// transport fails after Finish, and ranks that received no message from the coordinator report
/// that. After an error of Load in step 8 the memory may be partly filled; before it is as it was.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/protocol/metadata.h"
#include "varve/protocol/plan.h"
#include "varve/protocol/planner.h"
#include "varve/status.h"

namespace varve::protocol {

/// Puts plans into a storage. One object a rank, which may be used for one save after the other.
///
/// DCP's class method validate_checkpoint_id, which chooses a storage for an id, is a static
/// ValidateCheckpointId of our own backend and no hook; MakeStorageWriter (checkpoint.h) asks it. A
/// writer refuses an id that is not of its kind in Reset.
class StorageWriter {
 public:
  virtual ~StorageWriter() = default;

  /// Begins anew, under another checkpoint id if one is given; the storage gives the id its meaning
  /// (a path, a key). Also ends an unfinished earlier save, as Abandon does. Errors:
  /// InvalidArgument for an id that is not one of this storage.
  virtual Status Reset(std::optional<std::string_view> checkpoint_id) = 0;

  /// Begins a save. Ends an unfinished earlier one, as Abandon does.
  virtual Status SetUpStorageWriter(const SaveRole& role) = 0;

  /// Adds this storage's own data of each rank, normally as SavePlan::storage_data.
  virtual Result<SavePlan> PrepareLocalPlan(SavePlan plan) { return plan; }

  /// Adds, on the coordinator, this storage's data for each rank. The place to claim the name: two
  /// saves of one name should not both get past it. Returns as many plans as were given.
  virtual Result<std::vector<SavePlan>> PrepareGlobalPlan(std::vector<SavePlan> plans) {
    return plans;
  }

  /// Stores all items of the plan, and returns when they are as durable as they will get: one
  /// result for each item, with its index, in any order. Stored items are not visible yet.
  virtual Result<std::vector<WriteResult>> WriteData(const SavePlan& plan,
                                                     SavePlanner& planner) = 0;

  /// Stores `metadata`, on the coordinator when all ranks have written, and makes the checkpoint
  /// visible, in one step. An older one under the same id is replaced by that step, or the save is
  /// refused with AlreadyExists, here or earlier. `results` by rank. When Finish fails, nothing may
  /// become visible.
  virtual Status Finish(const StateMetadata& metadata,
                        const std::vector<std::vector<WriteResult>>& results) = 0;

  /// Ends a save that will not be finished: frees all that it holds, so that nothing of it ever
  /// becomes visible. Called on every rank, after any other calls, possibly while another rank
  /// still writes; also more than once. Never called after a Finish that succeeded.
  virtual void Abandon() = 0;

  /// Returns this storage's description of itself, for planners.
  [[nodiscard]] virtual std::optional<StorageMeta> GetStorageMeta() const { return std::nullopt; }
};

/// Gets plans out of a storage. One object a rank, which may be used for one load after the other.
class StorageReader {
 public:
  virtual ~StorageReader() = default;

  /// As StorageWriter::Reset.
  virtual Status Reset(std::optional<std::string_view> checkpoint_id) = 0;

  /// Returns the metadata that Finish was given, on any rank. Errors: NotFound when there is no
  /// finished checkpoint.
  virtual Result<StateMetadata> ReadMetadata() = 0;

  /// Begins a load of the checkpoint whose metadata was read.
  virtual Status SetUpStorageReader(const StateMetadata& metadata, bool is_coordinator) = 0;

  virtual Result<LoadPlan> PrepareLocalPlan(LoadPlan plan) { return plan; }
  virtual Result<std::vector<LoadPlan>> PrepareGlobalPlan(std::vector<LoadPlan> plans) {
    return plans;
  }

  /// Reads all items of the plan: each value goes to LoadBytes; for each piece of a tensor, memory
  /// comes from ResolveTensor and is given back, filled, to CommitTensor. Errors: what the planner
  /// returned; DataLoss for bytes that are damaged or missing.
  virtual Status ReadData(const LoadPlan& plan, LoadPlanner& planner) = 0;
};

/// Returns the content of an item: a chunk's elements in row-major order, without gaps, or a
/// value's bytes. ItemBytes(item) of them for a tensor.
std::string ContentOf(const WriteItem& item, const ItemData& data);

/// Copies the part of a stored chunk that `item` asks for to where it belongs. `chunk` is the one
/// that item.storage_index names (StateMetadata::FindChunk), `content` what ContentOf gave when it
/// was written. Errors: DataLoss when `content` has another size than the chunk; InvalidArgument
/// when the item reaches outside of the chunk.
Status CopyContent(const ReadItem& item, const ChunkStorageMetadata& chunk,
                   std::string_view content, const TensorMemory& memory);

/// The backend to be tried. The functions are called on the threads of several ranks, but one at a
/// time; the objects they make are used at the same time. All that they make share one storage.
struct ConformanceSubject {
  std::function<std::unique_ptr<StorageWriter>()> make_writer;
  std::function<std::unique_ptr<StorageReader>()> make_reader;
  /// A checkpoint id under which nothing is stored, another one for each call.
  std::function<std::string()> new_checkpoint_id;
  /// May be empty. Makes the storage's next operations fail until it is called with false: a full
  /// disk, a store that is out of reach.
  std::function<void(bool broken)> break_storage{};
};

/// One check, and whether the backend passes it.
struct ConformanceClaim {
  std::string name;  ///< "ShardsOfSeveralRanksComeBack".
  bool passed = false;
  std::string message;  ///< The expectation and the outcome; empty when passed.
};

/// Saves and loads small states on up to three ranks (threads of this process) and tries every
/// check, also after one has failed. Takes a second or so where the storage is fast. A backend that
/// crashes or hangs is not contained.
std::vector<ConformanceClaim> RunStorageConformance(const ConformanceSubject& subject);

/// Returns one line for each check that failed; empty when none has.
std::string DescribeFailures(const std::vector<ConformanceClaim>& claims);

}  // namespace varve::protocol
