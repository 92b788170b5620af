/// Maintenance of checkpoints: list, verify, repair, collect garbage, export.
///
/// A function with a `stop` ends soon after stop is requested, after the current system call, and
/// returns Cancelled. Functions that only read change nothing. The comment of each other function
/// says what it leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "varve/metadata.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

enum class CheckpointState : std::uint8_t {
  kWhole,        ///< Loadable, as far as names, sizes and the index tell; `verify` reads all bytes.
  kIncomplete,   ///< Rank-local files of some ranks are missing.
  kDamaged,      ///< A checkpoint, but its index or files are missing or of the wrong size.
  kUnsupported,  ///< A checkpoint in the native format, in a version that this Varve does not read.
  kUnreadable,   ///< This process may not read its directory, index or side files, or the storage
                 ///< fails: damaged or whole, the error does not tell.
  kDisplaced,    ///< Whole, under a hidden name, left by an interrupted overwrite; loads by its
                 ///< name.
  kSaving,       ///< A save is under way.
  kStale,        ///< Of a dead save or removal; `gc` removes it.
  kFailed,       ///< An asynchronous save of this name failed; until the next one, or `gc`.
  kQuarantined,  ///< Damaged, and taken out of the way (QuarantineCheckpoint); until it is removed.
};

/// Returns "whole", "incomplete", ...
std::string_view StateName(CheckpointState state);

struct CheckpointEntry {
  Format format = Format::kVarve;
  std::string name;  ///< In the directory; for kSaving, kStale and kQuarantined, of the hidden
                     ///< entry where there is one.
  CheckpointState state = CheckpointState::kWhole;
  std::string detail;                 ///< Why it is not whole.
  std::optional<std::uint64_t> step;  ///< From the name.
  std::uint64_t bytes = 0;            ///< Of its data files.
  std::uint32_t world_size = 0;       ///< Of the save; 0 when unknown.
  std::optional<SaveId> save_id;
};

/// Returns the checkpoints and stale files in `directory`, by step, then by NaturalLess of the
/// name; those of other software too, where they are directories. When `directory` itself is a
/// checkpoint the list has that entry and the steps in it (IsStepName) that are checkpoints too, as
/// in a run with a stray file. Where it is whole and a step by its own name, the list has that
/// entry alone. Reads indexes, sizes and the notes of steps, not data.
Result<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& directory,
                                                     Storage& storage = AnyStorage(),
                                                     const std::stop_token& stop = {});

/// A stretch of bytes that differ from the written ones.
struct Damage {
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::vector<std::string> tensors;  ///< Tensors and objects in the stretch.
  std::string problem;
};

struct VerifyReport {
  std::uint64_t bytes_checked = 0;
  std::vector<Damage> damages;
  /// Remarks that are no damage: files that belong to no save, bytes without a checksum.
  std::vector<std::string> notes;
  [[nodiscard]] bool clean() const { return damages.empty(); }
};

/// Re-reads every byte of the checkpoint and compares all checksums, and the index with the data
/// files' headers. Of other software's checkpoints: opens every stored item, compares it with the
/// index and its zip checksums with its bytes, and looks for elements that no chunk covers. Damage
/// is reported, not returned as an error; errors are for checkpoints that cannot be examined at all
/// (NotFound, Unimplemented, FailedPrecondition for an incomplete one).
Result<VerifyReport> Verify(const std::string& path, Storage& storage = AnyStorage(),
                            const ProgressFunction& progress = {},
                            const std::stop_token& stop = {});

struct RepairReport {
  SaveId save_id;
  std::uint64_t file_count = 0;
  bool changed = false;  ///< False: the index already matched the data files.
  /// On file systems, where varve.json was lost: files in the directory that are no part of the
  /// checkpoint. Some may have been side files.
  std::vector<std::string> others{};
};

/// The choice whether a checkpoint is repaired whose varve.json is lost or damaged. That alone
/// names the side files, so the checkpoint has none afterwards but the note of its step, if that
/// can be read. The files stay where they are.
enum class LostRecord : std::uint8_t { kRepair, kRefuse };

/// Rebuilds manifest.bin and varve.json from the data files' headers. Also seals a complete set of
/// rank-local files into a committed checkpoint. Data is not read; run Verify. `stop` ends it only
/// while headers are read; then nothing has changed.
/// Errors: DataLoss when headers are damaged or do not form one save; FailedPrecondition when
/// ranks are missing; what varve.json has, with `lost` = kRefuse.
Result<RepairReport> Repair(const std::string& path, Storage& storage = AnyStorage(),
                            const std::stop_token& stop = {},
                            LostRecord lost = LostRecord::kRepair);

/// The choice whether a function removes the files that it finds.
enum class DryRun : std::uint8_t {
  kNo,   ///< Removes it.
  kYes,  ///< Reports what it would remove, and removes nothing.
};

struct GarbageReport {
  std::vector<std::string> removed;    ///< Paths; with dry_run, what would be removed.
  std::vector<std::string> kept;       ///< Paths in use by saves that are still alive.
  std::vector<std::string> recovered;  ///< Checkpoints that got their name back.
  /// Paths of files that a user put beside a checkpoint while it was overwritten. They stay,
  /// because the new checkpoint's directory has another file of that name, or is not there.
  std::vector<std::string> conflicts;
  std::uint64_t bytes = 0;  ///< Bytes of the removed files.
};

/// Removes the stale files of dead saves in `directory` and in the checkpoints in it; never a file
/// that a live save uses. With them goes a `stepN-tmp` that OLMo has left, if it holds nothing but
/// files of OLMo's names, is no whole checkpoint, and has not changed for a day. A checkpoint that
/// was displaced gets its name back. Files that a user put beside a checkpoint that was replaced
/// are moved to the directory that has its name. Touches no other file. `stop` ends it between two
/// files or directories that it removes; the next call removes the rest.
Result<GarbageReport> CollectGarbage(const std::string& directory, DryRun dry_run,
                                     Storage& storage = AnyStorage(),
                                     const std::stop_token& stop = {});

struct RemovalReport {
  std::uint64_t bytes = 0;          ///< Of all files.
  std::vector<std::string> others;  ///< Files, relative, that were not part of the checkpoint.
};

/// Removes a checkpoint's directory with all that is in it, also files that are not part of the
/// checkpoint. The directory loses its name before anything in it is removed, so that a crash
/// leaves no checkpoint but a hidden directory for `gc`. A symbolic link at `path` is removed, and
/// its target stays. With `dry_run`, reports and removes nothing. Errors: NotFound when nothing is
/// there; FailedPrecondition when it is no checkpoint, is pinned, or a save of it is under way.
/// After Cancelled on `stop` the checkpoint is whole, or it has lost its name and `gc` removes the
/// rest of it; the message says which.
Result<RemovalReport> RemoveCheckpoint(const std::string& path, DryRun dry_run,
                                       Storage& storage = AnyStorage(),
                                       const std::stop_token& stop = {});

struct ExportOptions {
  std::vector<std::string> include;  ///< As ConvertOptions::include.
  bool overwrite = false;
  ProgressFunction progress;
  std::stop_token stop;  ///< As ConvertOptions::stop.
};

struct ExportReport {
  std::uint64_t tensor_count = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> skipped;  ///< Tensors whose type safetensors cannot name.
};

/// Writes whole tensors into one safetensors file on the local file system; committed by rename.
/// Memory stays under 256 MiB whatever the size.
Result<ExportReport> ExportSafetensors(const std::string& path, const std::string& out,
                                       const ExportOptions& options,
                                       Storage& storage = AnyStorage());

/// Orders names as people do: where both have digits, by the number they are, so that "layers.2"
/// comes before "layers.10". A strict total order.
bool NaturalLess(std::string_view a, std::string_view b);

/// Returns the step in the name of a checkpoint: the number after its last "step"
/// ("global_step120", "epoch=3-step=4000"), else after "checkpoint", "ckpt" or "iter", else its
/// only number. Digits that belong to a word, a decimal number or a date are none ("ws2", "1.5",
/// "20261122").
std::optional<std::uint64_t> StepFromName(std::string_view name);

/// Returns true for a name that a step of a run can have: letters, then a number.
bool IsStepName(std::string_view name);

/// Returns the letters before the number of a step's name: "step-".
std::string_view StepPrefix(std::string_view name);

/// A choice of names by globs, in the syntax of Python's fnmatch.fnmatchcase:
/// docs/options.md#globs. Many globs cost hardly more than one, unless they begin alike. Copies
/// share one parsed form. Threads: const after construction.
class Globs {
 public:
  Globs() : Globs(std::vector<std::string>{}) {}
  explicit Globs(const std::vector<std::string>& globs);

  /// Returns true when at least one glob matches all of `name`.
  [[nodiscard]] bool Match(std::string_view name) const;
  [[nodiscard]] bool empty() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace varve
