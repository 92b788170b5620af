/// A staged save that is sent to the process that writes it, what that process does with it, and
/// its interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "async/attempts.h"
#include "base/bytes.h"
#include "base/fields.h"
#include "pipeline/staged_image.h"
#include "save/settled.h"
#include "varve/async_save.h"
#include "varve/storage.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SaveId>& id) {
  archive(id.bytes);
}

/// The deferred saves of all ranks of a job, which the ranks' agents find each other by when the
/// trainers have ended.
struct DeferredGroup {
  std::string path;  ///< Absolute: the agents meet beside it.
  SaveId id;
};

/// All that the writing process needs to know, beside the staging memory itself.
struct Submission {
  std::string path;  ///< Absolute.
  SettledSave settled;
  StagedImage image;
  StagedSaveOptions options;  ///< Those of the writing alone are sent: no function or token.
  /// Of a deferred save, which is written only if the trainer exits before Forget.
  std::optional<DeferredGroup> deferred;
  std::vector<Phase> phases{};  ///< Those before the submission.
  /// On the coordinator of an overwrite: OccupantOf what it may replace once the trainer has ended.
  std::vector<std::string> replaces{};
  /// How the trainer reaches the storage of `path` (SharedAccess); empty where any process does
  /// alike. Holds secrets.
  std::string access{};
};

/// For processes of one version of Varve on one machine; never stored.
Bytes EncodeSubmission(const Submission& submission);
/// Decodes a submission. Errors: DataLoss.
Result<Submission> DecodeSubmission(std::string_view bytes, std::uint64_t pool_blocks);

Bytes EncodeReport(const AsyncSaveReport& report);
Result<AsyncSaveReport> DecodeReport(std::string_view bytes);

/// Returns the name by which processes with other working directories find the checkpoint. Links in
/// the way to it are followed, the last name is not. "s3://bucket/key" is such a name.
Result<std::string> AbsolutePath(const std::string& path);

/// A submitted file that can be read from memory.
struct SubmittedFile {
  std::string name;  ///< File name in the checkpoint's directory.
  std::uint64_t data_begin = 0;
  std::string published_as;  ///< SaveSession::published_as.
};

/// Leased memory of another process.
struct LeasedMemory {
  std::span<const std::byte* const> blocks;  ///< Those of the image, in its order.
  std::function<bool()> intact;              ///< Returns true while the lease holds: bytes read
                                             ///< before are the copy.
};

/// Functions by which the writing thread asks about a trainer that may have exited.
struct TrainerChecks {
  std::function<Status()> give_up;   ///< As in MakeFileChannel.
  std::function<bool()> has_exited;  ///< The trainer has. Then another job may have taken the name
                                     ///< since, and only what this one knew is replaced.
};

/// Claims, writes and publishes a save that another process has submitted, connected to the other
/// ranks of the save. Repeats that after a failure that may pass. Errors: as Save; DataLoss where
/// the memory is not intact.
Result<AsyncSaveReport> WriteSubmission(const Submission& save, Storage& storage,
                                        const LeasedMemory& memory, const std::stop_token& stop,
                                        const TrainerChecks& trainer, SubmittedFile* file);

/// Another process that writes staged copies. Saves have tickets, numbers in the order of the
/// calls, which is the same on all ranks. Each is submitted or passed; they are written in that
/// order. Threads: safe.
class SaveExecutor {
 public:
  virtual ~SaveExecutor() = default;

  /// Attaches the staging memory of all copies: a memfd of `blocks` of kPoolBlockBytes. Called
  /// once, before all other functions; the caller keeps the descriptor and leaves it open. Errors:
  /// InvalidArgument when it has been called before.
  virtual Status Attach(int fd, std::uint64_t blocks) = 0;

  /// Submits a save. After Ok the save outlives this process. The caller must not write to its
  /// blocks until Forget has returned, or Wait with `*lost`. After an error it may; where `*sent`,
  /// the other process may have accepted the save all the same, and speak for this rank.
  virtual Status Submit(std::uint64_t ticket, const Submission& save, bool* sent) = 0;

  /// Reports that no save is submitted for this ticket.
  virtual void Pass(std::uint64_t ticket) = 0;

  /// Waits for the end of a save. Errors: those of the save; Unavailable with `*lost` when the
  /// other process was lost: the caller may write to the save's blocks then.
  virtual Result<AsyncSaveReport> Wait(std::uint64_t ticket, bool* lost) = 0;

  /// Returns true for a save that was submitted, while the process that accepted it lives.
  virtual bool Holds(std::uint64_t ticket) = 0;

  virtual void Cancel(std::uint64_t ticket) = 0;

  /// Gives up the copy that the other process keeps of a save that has ended or is deferred.
  /// Returns when that process no longer reads the copy, or when its lease is revoked.
  virtual void Forget(std::uint64_t ticket) = 0;
};

}  // namespace varve
