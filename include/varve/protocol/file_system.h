/// Our own backends: DCP directories that stock PyTorch opens, written crash-safe and read with
/// every byte checked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/protocol/storage_layer.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {
class FilesCommit;
}  // namespace varve

namespace varve::protocol {

struct FileSystemWriterOptions {
  /// DCP's default. False refuses a name that is taken. Only a checkpoint is ever replaced.
  bool overwrite = true;
  /// As in SaveOptions (varve/options.h).
  bool direct = true;
  int writes_in_flight = 6;
  std::uint64_t block_bytes = std::uint64_t{1} << 20;
  ProgressFunction progress;
  std::stop_token stop;
};

/// Writes `.metadata` and a `__RANK_0.distcp` for each rank that has something to write. All files
/// are written and made durable in a hidden directory beside the checkpoint's; Finish gives it the
/// name in one step, as src/publish/commit.cc says. Until then an older checkpoint stays as it
/// is. The ranks must share the storage; each may have it mounted elsewhere.
///
/// Saves without collectives (CallOptions::use_collectives) write into the checkpoint's
/// directory itself: rank R its `__R_N.distcp`, then `__R.metadata`, as src/publish/index_commit.cc
/// says. The directory is a checkpoint of the ranks 0 to R as soon as all of their indexes are
/// there; FileSystemReader opens it as one.
///
/// In an object store ("s3://...") nothing is renamed: data files go into a directory of the save
/// in the checkpoint's own, and writing the index makes them the checkpoint, as
/// src/publish/index_commit.cc says.
///
/// Values are stored as torch.save would. Errors of WriteData: Unimplemented for a value that only
/// a pickle can hold, and for bytes that are no encoded Value InvalidArgument, both with the name.
/// Errors of Finish: InvalidArgument when planner_data is not the structure of a state. DCP keeps
/// only the paths of a structure's leaves: empty containers do not come back.
class FileSystemWriter : public StorageWriter {
 public:
  /// `storage` must outlive the writer.
  explicit FileSystemWriter(std::string path, FileSystemWriterOptions options = {},
                            Storage& storage = AnyStorage());
  FileSystemWriter(const FileSystemWriter&) = delete;
  FileSystemWriter& operator=(const FileSystemWriter&) = delete;
  /// Abandons a save that is not finished.
  ~FileSystemWriter() override;

  /// Returns true for a path and for an address that AnyStorage takes ("s3://...").
  static bool ValidateCheckpointId(std::string_view checkpoint_id);

  Status Reset(std::optional<std::string_view> checkpoint_id) override;
  Status SetUpStorageWriter(const SaveRole& role) override;
  Result<std::vector<SavePlan>> PrepareGlobalPlan(std::vector<SavePlan> plans) override;
  Result<std::vector<WriteResult>> WriteData(const SavePlan& plan, SavePlanner& planner) override;
  Status Finish(const StateMetadata& metadata,
                const std::vector<std::vector<WriteResult>>& results) override;
  void Abandon() override;
  [[nodiscard]] std::optional<StorageMeta> GetStorageMeta() const override;

  /// Returns the paths of files that stay under hidden names after the last Finish: another program
  /// put them beside an old checkpoint while it was replaced, and the new one's directory has
  /// another file of that name. On the coordinator.
  [[nodiscard]] const std::vector<std::string>& conflicts() const { return conflicts_; }

 private:
  std::string path_;
  FileSystemWriterOptions options_;
  Storage& storage_;
  SaveRole role_;
  // Set from PrepareGlobalPlan to the end: on the coordinator, and on every rank of a save without
  // collectives.
  std::unique_ptr<FilesCommit> commit_;
  std::vector<std::string> conflicts_;
};

/// Reads checkpoints of every format that CheckpointReader opens, DCP's and Varve's own among them.
/// Of `options`, `strict` and `timeout` mean nothing here.
class FileSystemReader : public StorageReader {
 public:
  explicit FileSystemReader(std::string path, LoadOptions options = {},
                            Storage& storage = AnyStorage());

  static bool ValidateCheckpointId(std::string_view checkpoint_id) {
    return FileSystemWriter::ValidateCheckpointId(checkpoint_id);
  }

  Status Reset(std::optional<std::string_view> checkpoint_id) override;
  Result<StateMetadata> ReadMetadata() override;
  Status SetUpStorageReader(const StateMetadata& metadata, bool is_coordinator) override;
  Status ReadData(const LoadPlan& plan, LoadPlanner& planner) override;

 private:
  std::string path_;
  LoadOptions options_;
  Storage& storage_;
  std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace varve::protocol
