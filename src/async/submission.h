/// A staged save on its way to the process that writes it: what is said of it, and who takes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "async/attempts.h"
#include "base/bytes.h"
#include "pipeline/staged_image.h"
#include "save/settled.h"
#include "varve/options.h"

namespace varve {

/// All that the writing process needs to know, beside the staging memory itself.
struct Submission {
  std::string path;  ///< Absolute.
  SettledSave settled;
  StagedImage image;
  SaveOptions options;  ///< Those of the writing alone: no function or token.
  int retries = 0;
  std::chrono::milliseconds retry_delay{0};
  bool deferred = false;  ///< To be written only if the trainer ends before it is forgotten.
};

/// For processes of one version of Varve on one machine; never stored.
Bytes EncodeSubmission(const Submission& submission);
/// Errors: DataLoss.
Result<Submission> DecodeSubmission(std::string_view bytes, std::uint64_t pool_blocks);

Bytes EncodeReport(const SaveReport& report);
Result<SaveReport> DecodeReport(std::string_view bytes);

/// The name by which processes with other working directories know the checkpoint. Links in the way
/// to it are followed, the last name is not.
Result<std::string> AbsolutePath(const std::string& path);

/// Another process that writes staged copies. Saves have turns, in the order of the calls and so in
/// the same order on all ranks; each is submitted or passed, and they are written in that order.
/// Threads: safe.
class SaveExecutor {
 public:
  virtual ~SaveExecutor() = default;

  /// The staging memory that copies will be in: a memfd of `blocks` of kPoolBlockBytes. Called
  /// once, before all others; the descriptor stays the caller's and open. Errors: InvalidArgument
  /// when it has been called before.
  virtual Status Attach(int fd, std::uint64_t blocks) = 0;

  /// When this returns Ok the save is in the other process's hands and outlives this one. Its
  /// blocks may not be written to until Forget has returned, or Wait with `*lost`.
  virtual Status Submit(std::uint64_t turn, const Submission& save) = 0;

  /// There will be no save in this turn.
  virtual void Pass(std::uint64_t turn) = 0;

  /// Waits for the end of a save. Errors: those of the save; Unavailable with `*lost` when the
  /// other process is gone, or has been given up: its blocks may be written to then.
  virtual Result<SaveReport> Wait(std::uint64_t turn, bool* lost) = 0;

  /// True for a save that was submitted, while the process lives that it was submitted to.
  virtual bool Holds(std::uint64_t turn) = 0;

  virtual void Cancel(std::uint64_t turn) = 0;

  /// Gives up what the other process keeps of a save that has ended, or one that was to be written
  /// at the end; returns when it is no longer read there, or what is read there does not count.
  virtual void Forget(std::uint64_t turn) = 0;
};

}  // namespace varve
