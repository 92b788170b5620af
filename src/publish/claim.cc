#include "publish/claim.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/time_source.h"
#include "catalogue/formats/hf.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/remains.h"
#include "catalogue/scan.h"
#include "catalogue/side_files.h"
#include "interop/safetensors/hf_checksums.h"
#include "varve/catalogue.h"

namespace varve {
namespace {

Status NoCheckpoint(const std::string& path) {
  return FailedPrecondition(path +
                            " exists and is not a checkpoint; it is not replaced, choose "
                            "another name");
}

/// Returns the error for a directory that no index makes a checkpoint.
Status NoCheckpointIn(const std::string& path, const std::vector<DirectoryEntry>& entries) {
  const DirectoryEntry* const model = FindEntry(entries, "model.safetensors");
  if (model == nullptr || model->is_directory) {
    return NoCheckpoint(path);
  }
  return FailedPrecondition(path +
                            " exists and is not a checkpoint: it holds a model.safetensors without "
                            "a " +
                            std::string(kHfIndexName) +
                            ", as save_pretrained writes it: nothing tells which files there are "
                            "the model's, so it is not replaced. Remove the folder or move it "
                            "elsewhere, or choose another name");
}

/// Returns true for what ranks that save apart leave when the first of them dies while it writes.
bool HoldsPartsOnly(const std::vector<DirectoryEntry>& entries) {
  return std::all_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
    return PartRank(entry.name) || IsInnerLock(entry.name);
  });
}

/// Returns true for a folder that waits for the weights of a model: `save_pretrained` of a
/// tokenizer has written it.
bool HoldsConfigurationOnly(const std::vector<DirectoryEntry>& entries) {
  return std::all_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
    return !entry.is_directory && IsModelConfiguration(entry.name);
  });
}

Result<Occupant> WhatIsAt(Storage& storage, const std::string& path) {
  const auto entries = storage.List(path);
  if (!entries.ok()) {
    if (entries.status().code() == StatusCode::kNotFound) {
      return Occupant::kNothing;
    }
    // Not a directory, or one that we may not read: a save never replaces it.
    return storage.OpenForRead(path).ok() ? NoCheckpoint(path) : entries.status();
  }
  if (entries->empty()) {
    return Occupant::kEmptyDirectory;
  }
  if (!IsCheckpoint(storage, path, *entries)) {
    if (HoldsPartsOnly(*entries)) {
      return Occupant::kParts;
    }
    if (RemainsOfCheckpoint(storage, path)) {
      return Occupant::kCheckpoint;  // As damaged as one can be.
    }
    return HoldsConfigurationOnly(*entries) ? Result<Occupant>(Occupant::kConfiguration)
                                            : NoCheckpointIn(path, *entries);
  }
  return Occupant::kCheckpoint;
}

/// Errors: Unimplemented for a checkpoint that a newer Varve has made, which may hold what this one
/// cannot even name; Unavailable where that cannot be told.
Status CheckNotNewer(Storage& storage, const std::string& path) {
  Status told = ReadCommitRecord(storage, path).status();
  if (told.code() == StatusCode::kNotFound) {  // Ranks may have saved apart.
    VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
    for (const NamedSet& set : GroupByName(entries)) {
      Status read = TryHeader(storage, path, set.files.begin()->second);
      told = read.code() == StatusCode::kUnimplemented ? std::move(read) : std::move(told);
    }
  }
  switch (told.code()) {
    case StatusCode::kUnimplemented:
      return Unimplemented(told.message() +
                           "; a save does not replace it: remove it, or choose another name");
    case StatusCode::kUnavailable: return told;
    default: return Status::Ok();
  }
}

/// Returns Ok when the checkpoint at `path` may be replaced.
Status CheckMayReplace(Storage& storage, const std::string& path, Overwrite overwrite,
                       const std::stop_token& stop) {
  switch (overwrite) {
    case Overwrite::kAlways:
    case Overwrite::kInPlace: return CheckNotNewer(storage, path);
    case Overwrite::kNever:
      return AlreadyExists(path + " already holds a checkpoint; pass overwrite to replace it");
    case Overwrite::kDamaged: break;
  }
  const auto verified = Verify(path, storage, {}, stop);
  const StatusCode code = verified.status().code();
  const bool incomplete =  // Files of some ranks are missing.
      code == StatusCode::kFailedPrecondition || code == StatusCode::kDataLoss ||
      (code == StatusCode::kNotFound && RemainsOfCheckpoint(storage, path));
  if (!incomplete && !verified.ok()) {
    return verified.status().Annotate("verify " + path +
                                      ", which may be replaced if it is damaged");
  }
  if (!incomplete && verified->clean()) {
    return AlreadyExists(path + " already holds a checkpoint, and it is not damaged: all " +
                         std::to_string(verified->bytes_checked) +
                         " bytes were verified; pass overwrite to replace it all the same");
  }
  if (const auto file = FindRewrittenHfFile(storage, path); file.ok() && !file->empty()) {
    return AlreadyExists(path +
                         " holds tensors that another program seems to have written: " + *file +
                         " is whole, and not what Varve saved there; pass overwrite to replace "
                         "them, or remove " +
                         std::string(kHfChecksumsName) + " to use them");
  }
  return Status::Ok();
}

}  // namespace

Result<Occupant> CheckOccupant(Storage& storage, const std::string& path, Overwrite overwrite,
                               const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const Occupant occupant, WhatIsAt(storage, path));
  if (occupant == Occupant::kParts) {
    return overwrite == Overwrite::kNever
               ? FailedPrecondition(path +
                                    " holds the beginning of a save without coordination; pass "
                                    "overwrite to replace it, or remove it with `varve gc`")
               : Result<Occupant>(Occupant::kCheckpoint);
  }
  if (occupant == Occupant::kConfiguration) {
    return Occupant::kCheckpoint;
  }
  if (occupant == Occupant::kCheckpoint) {
    VARVE_RETURN_IF_ERROR(CheckMayReplace(storage, path, overwrite, stop));
    VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
    VARVE_RETURN_IF_ERROR(CheckNotPinned(path, entries));
  }
  return occupant;
}

Status CheckNotPinned(const std::string& path, const std::vector<DirectoryEntry>& entries) {
  return FindEntry(entries, kPinName) == nullptr
             ? Status::Ok()
             : FailedPrecondition(path +
                                  " is pinned, and a save would replace it: unpin it (`varve "
                                  "unpin`), or save under another name");
}

std::optional<std::string> ReadPin(Storage& storage, const std::string& path) {
  auto text = ReadWholeFile(storage, JoinPath(path, kPinName), kMaxPinBytes);
  const std::vector<std::string> displaced = DisplacedPaths(storage, path);
  if (text.status().code() == StatusCode::kNotFound && !displaced.empty() &&
      !storage.List(path).ok()) {
    text = ReadWholeFile(storage, JoinPath(displaced.front(), kPinName), kMaxPinBytes);
  }
  if (text.status().code() == StatusCode::kNotFound ||
      text.status().details().system_error == ENOTDIR) {  // A checkpoint of one file.
    return std::nullopt;
  }
  if (!text.ok()) {
    return "for a reason that cannot be read: " + text.status().message();
  }
  while (!text->empty() && text->back() == '\n') {
    text->pop_back();
  }
  return std::move(*text);
}

namespace {

constexpr int kTries = 10;
constexpr auto kPause = std::chrono::milliseconds(10);

/// Calls `take` again for an instant while another process holds the lock.
template <typename Take>
auto TryForAnInstant(const Take& take) {
  for (int i = 1;; ++i) {
    auto lock = take();
    if (lock.ok() || lock.status().code() != StatusCode::kFailedPrecondition || i == kTries) {
      return lock;
    }
    SleepFor(kPause);
  }
}

/// Locks the name. Waits for an instant while a removal has locked the directory above: it has
/// looked for the lock file, which is there by now, and looks again before it renames. It takes no
/// instant from there to the rename; another lock of the directory is the user's.
Result<std::unique_ptr<StorageLock>> TryName(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(auto lock, storage.Lock(LockPath(path)));
  FileLocks* const locks = storage.extras().file_locks;
  for (int i = 0; i < kTries && locks != nullptr; ++i) {
    const Status free = locks->LockFile(ParentPath(path), LockMode::kShared).status();
    if (free.code() != StatusCode::kFailedPrecondition) {
      break;
    }
    SleepFor(kPause);
  }
  return lock;
}

Status CheckHasNoLockFile(Storage& storage, const std::string& path) {
  return storage.OpenForRead(LockPath(path)).status().code() == StatusCode::kNotFound
             ? Status::Ok()
             : FailedPrecondition(LockPath(path) + " is there: a save of it is under way");
}

Result<RemovalLock> TryNameOrDirectory(Storage& storage, const std::string& path) {
  auto lock = TryName(storage, path);
  FileLocks* const locks = storage.extras().file_locks;
  if (lock.ok()) {
    return RemovalLock{.lock = std::move(*lock)};
  }
  if (lock.status().code() != StatusCode::kOutOfSpace || locks == nullptr) {
    return lock.status();
  }
  auto directory = locks->LockFile(ParentPath(path), LockMode::kExclusive);
  if (!directory.ok()) {
    return directory.status().code() == StatusCode::kFailedPrecondition ? directory.status()
                                                                        : lock.status();
  }
  VARVE_RETURN_IF_ERROR(CheckHasNoLockFile(storage, path));
  return RemovalLock{.lock = std::move(*directory), .of_directory = true};
}

}  // namespace

Result<std::unique_ptr<StorageLock>> LockName(Storage& storage, const std::string& path) {
  return TryForAnInstant([&] { return TryName(storage, path); });
}

Result<RemovalLock> LockNameToRemove(Storage& storage, const std::string& path) {
  return TryForAnInstant([&] { return TryNameOrDirectory(storage, path); });
}

Status CheckStillLocked(Storage& storage, const std::string& path, const RemovalLock& lock) {
  return lock.of_directory ? CheckHasNoLockFile(storage, path) : Status::Ok();
}

Result<std::unique_ptr<StorageLock>> LockUnlessSaved(Storage& storage, const std::string& path) {
  auto lock = LockName(storage, path);
  switch (lock.status().code()) {
    case StatusCode::kFailedPrecondition: return FailedPrecondition("a save of it is under way");
    case StatusCode::kUnimplemented: return std::unique_ptr<StorageLock>();
    default: return lock;
  }
}

Result<std::unique_ptr<StorageLock>> TakeLock(Storage& storage, const std::string& lock_path) {
  return TryForAnInstant([&] { return storage.Lock(lock_path); });
}

Result<std::string> FollowLinks(Storage& storage, const std::string& path) {
  constexpr int kMaxLinks = 40;  // As Linux.
  SymbolicLinks* const links = storage.extras().symbolic_links;
  std::string at = path;
  for (int i = 0; links != nullptr; ++i) {
    while (at.size() > 1 && at.back() == '/') {
      at.pop_back();  // "link/" would be the directory that it leads to.
    }
    const auto target = links->ReadLink(at);
    if (!target.ok()) {
      return at;  // Nothing, or no link.
    }
    if (i == kMaxLinks) {
      return InvalidArgument(path + " is a symbolic link in a circle");
    }
    at = target->starts_with('/') ? *target : JoinPath(ParentPath(at), *target);
  }
  return at;
}

namespace {

/// Returns the error for a directory that a save needs and cannot make. A missing parent is a state
/// of the storage: as NotFound the caller would take it for the answer to its own question.
Status CannotMake(const std::string& path, const Status& cause) {
  const StatusCode code =
      cause.code() == StatusCode::kNotFound ? StatusCode::kUnavailable : cause.code();
  return Status(code, cause.message())
      .With(cause.details())
      .Annotate("the directory " + path + " cannot be made");
}

}  // namespace

std::string WithoutParentNames(Storage& storage, const std::string& directory) {
  if (IsRemote(storage, directory) || (directory + "/").find("/../") == std::string::npos) {
    return directory;
  }
  std::error_code error;
  const auto real = std::filesystem::canonical(directory, error);
  return error ? directory : real.string();
}

Status MakeDirectories(Storage& storage, const std::string& path) {
  if (path == "." || path == "/") {
    return Status::Ok();
  }
  if (IsRemote(storage, path)) {
    // Remote names need no directories. The parents of "s3://bucket" would be names of the disk.
    return storage.MakeDirectory(path);
  }
  const std::string parent = ParentPath(path);
  if (storage.List(path).ok()) {
    // Its maker may have died before it made the name durable. Where we may not read the directory
    // above, no save of ours has written to that.
    const Status synced = storage.SyncDirectory(parent);
    return synced.code() == StatusCode::kInvalidArgument ? Status::Ok() : synced;
  }
  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, parent));
  Status made = storage.MakeDirectory(path);
  if (made.code() == StatusCode::kAlreadyExists) {  // By another rank or job, or no directory.
    made = storage.List(path).status();
  }
  if (!made.ok()) {
    return CannotMake(path, made);
  }
  return storage.SyncDirectory(parent);
}

}  // namespace varve
