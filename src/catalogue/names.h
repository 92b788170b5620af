/// The names a save of NAME uses beside it, all hidden and all recognisable. Digits of NAME are
/// percent-encoded in them (step-10 is step-%31%30), so that other tools which look for
/// "step-" and a number do not take them for checkpoints:
///   .NAME.varve-lock           held while a save of NAME runs
///   .NAME.varve-saving-<id>    the staging directory
///   .NAME.varve-talk-<id>      messages between the agents of different ranks
///   .NAME.varve-part           a single file NAME (export, convert) being written
///   .NAME.varve-failed         why an asynchronous save of NAME has failed
///   .NAME.varve-upload         an upload of NAME is to be made
///   .NAME.varve-removed-<id>   a checkpoint that is being removed
///   .NAME.varve-damaged-<id>   a damaged checkpoint that was put into quarantine; stays until a
///                              user removes it
///   .NAME.varve-old            the previous checkpoint, displaced where names cannot be exchanged
/// and inside a directory that a save does not replace:
///   .rank-RRRRR.varve-lock     held while rank R writes
///   .in-place.varve-lock       held while ranks together save a DCP checkpoint into a directory
///                              that stays
///   .FILE.varve-part           a data file being written
/// and, where a checkpoint is published by its record (ConditionalWrites), inside NAME:
///   varve-data-<id>            the data files, manifest and side files of one save
///   varve-N.json               the commit record of the N-th save of the name, N > 1
/// and inside a staging directory that holds more than data files:
///   .varve-staging             until the directory is whole: everything in it is the save's
/// and inside a replaced checkpoint of OLMo's while it is removed:
///   .varve-replaced.FORMAT     which of OLMo's layouts it had
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

std::string LockPath(std::string_view path);
std::string StagingPath(std::string_view path, const SaveId& id);
/// Returns the directory through which ranks exchange messages when their trainers may have exited.
std::string ChannelPath(std::string_view path, const SaveId& id);
std::string DisplacedPath(std::string_view path);
std::string RemovedPath(std::string_view path, const SaveId& id);
/// Returns the same name as it was before digits were encoded; so does OldLockPath.
std::string OldDisplacedPath(std::string_view path);
std::string OldLockPath(std::string_view path);
std::string FailedPath(std::string_view path);
/// Returns the file that notes an upload that is to be made (varve/upload.h). ParseStaleName does
/// not recognise it: the upload's end removes it.
std::string UploadNotePath(std::string_view path);
/// Returns the NAME of such a file; nothing for any other.
std::optional<std::string> ParseUploadNote(std::string_view entry);
std::string RankLockPath(std::string_view directory, std::uint32_t rank);
/// Returns the lock in `directory` of a save by all ranks into it.
std::string InPlaceLockPath(std::string_view directory);
std::string PartPath(std::string_view directory, std::string_view file);

/// The name that a damaged checkpoint gets. ParseStaleName does not recognise it: only a
/// user removes it.
std::string QuarantinedPath(std::string_view path, const SaveId& id);
/// Returns the NAME of such an entry; nothing for any other.
std::optional<std::string> ParseQuarantinedName(std::string_view entry);

/// In a checkpoint's directory: why it is in quarantine, and why it is pinned. Not part of it.
inline constexpr std::string_view kQuarantineReasonName = "varve-damaged.txt";
inline constexpr std::string_view kPinName = "varve-pinned.txt";
/// In a directory of an object store: an upload or save of files with fixed names has it
/// (publish/fixed_names.cc).
inline constexpr std::string_view kUploadClaim = ".varve-uploading";
/// Beside it: the upload writes this last where the layout has no file that makes it a checkpoint.
inline constexpr std::string_view kUploadMark = ".varve-uploaded";

inline constexpr std::string_view kStagingMark = ".varve-staging";
inline constexpr std::string_view kReplacedMark = ".varve-replaced.";

enum class StaleKind { kLock, kStaging, kDisplaced, kPart, kFailed, kChannel, kRemoved };

struct StaleName {
  StaleKind kind = StaleKind::kLock;
  std::string target;  ///< NAME.
};

/// Recognises the names above (not the rank-local ones), also with digits that are not encoded.
std::optional<StaleName> ParseStaleName(std::string_view entry);

/// Returns the rank that writes a part of this name; nothing when it is no part of a data file.
std::optional<std::uint32_t> PartRank(std::string_view entry);

/// Returns true for a lock that saves take inside a checkpoint's directory: of one rank, or of all
/// ranks that save in place.
bool IsInnerLock(std::string_view entry);

/// Checks that a checkpoint may be saved as `path`. Errors: InvalidArgument when it is empty, its
/// last part is "." or "..", or it looks like a hidden name of Varve's.
Status CheckCheckpointName(const std::string& path);

/// Returns the name of the directory in which a save puts its files where names cannot be changed.
std::string DataDirectoryName(const SaveId& id);
bool IsDataDirectoryName(std::string_view name);
/// Returns the data directory that a relative name begins with; empty where it lies in none.
std::string DataDirectoryOf(std::string_view name);
/// Returns "varve.json" for 1, "varve-N.json" for any other N.
std::string RecordName(std::uint64_t number);
/// Returns the number of a commit record's name; nothing for any other name.
std::optional<std::uint64_t> RecordNumber(std::string_view name);

/// Returns the name that a commit record gets in its directory when the checkpoint is put into
/// quarantine where names cannot be changed: readers do not find it. The reason is in another file
/// beside it.
inline constexpr std::string_view kQuarantinedRecord = "varve-damaged-";  ///< Both begin so.
std::string QuarantinedRecordName(const SaveId& id);
std::string QuarantineReasonName(const SaveId& id);
/// Returns the name of the reason beside a quarantined record; nothing for any other name.
std::optional<std::string> ReasonOfQuarantinedRecord(std::string_view name);

/// In a run's directory where files cannot be appended to or locked: who has the run, and its
/// history. No checkpoints.
inline constexpr std::string_view kRunClaims = ".varve-run";
inline constexpr std::string_view kRunHistory = "varve-history";
inline bool IsOfRun(std::string_view name) { return name == kRunClaims || name == kRunHistory; }

/// Returns true for a name that fits a pattern. In a pattern `#` stands for digits (`###`: at least
/// three), `%` for hexadecimal digits, and `*` for a part of a name; all else stands for itself.
bool FitsName(std::string_view pattern, std::string_view name);

/// Returns true for the names of data files, "data-00003-of-00008[-id].safetensors".
bool IsDataFileName(std::string_view name);

}  // namespace varve
