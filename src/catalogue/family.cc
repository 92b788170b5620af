#include "catalogue/family.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "catalogue/names.h"

namespace varve {
namespace {

constexpr auto kDeadAfter = std::chrono::hours(24);
/// Most bytes of a note of a failed save, or of a quarantine.
constexpr std::uint64_t kMaxNoteBytes = 64 << 10;

Result<CommitRecord> ReadRecord(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(storage, path, kMaxRecordBytes));
  return DecodeCommitRecord(bytes).Annotate(path);
}

/// Returns the entry for `path`, which holds no checkpoint, where saves have written data there;
/// nothing where they have not.
Result<std::optional<CheckpointEntry>> ExamineUnpublished(
    Storage& storage, const std::string& path, const std::vector<DirectoryEntry>& entries) {
  const std::string name = BaseName(path);
  CheckpointEntry found{.name = name, .state = CheckpointState::kStale, .step = StepFromName(name)};
  std::int64_t modified_ns = 0;
  bool any = false;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory || !IsDataDirectoryName(entry.name)) {
      continue;
    }
    const auto bytes = BytesIn(storage, JoinPath(path, entry.name), &modified_ns);
    if (bytes.status().code() == StatusCode::kNotFound) {
      continue;  // Removed since it was listed.
    }
    VARVE_RETURN_IF_ERROR(bytes.status());
    any = true;
    found.bytes += *bytes;
  }
  if (!any) {
    return std::optional<CheckpointEntry>();
  }
  if (IsDeadByAge(storage, path, modified_ns)) {
    found.detail = "of a dead save of " + name + ", or of its removal";
  } else {
    found.state = CheckpointState::kSaving;
    found.detail =
        "a save of " + name + " is under way, or it or its removal has died within the last day";
  }
  return std::optional(std::move(found));
}

/// Returns the entry for a checkpoint that was taken out of the way where names cannot be changed:
/// its record has another. Nothing for other files.
std::optional<CheckpointEntry> ExamineQuarantinedRecord(Storage& storage, const std::string& path,
                                                        const DirectoryEntry& file) {
  const auto reason = ReasonOfQuarantinedRecord(file.name);
  if (!reason || file.is_directory) {
    return std::nullopt;
  }
  const std::string name = BaseName(path);
  CheckpointEntry entry{
      .name = name, .state = CheckpointState::kQuarantined, .step = StepFromName(name)};
  entry.detail = name + ": " + NoteText(storage, JoinPath(path, *reason));
  const auto text = ReadWholeFile(storage, JoinPath(path, file.name), kMaxNoteBytes);
  const auto record = text.ok() ? DecodeCommitRecord(*text) : Result<CommitRecord>(text.status());
  if (record.ok()) {
    std::int64_t modified_ns = 0;
    const auto bytes = BytesIn(storage, JoinPath(path, record->directory), &modified_ns);
    entry.bytes = bytes.ok() ? *bytes : 0;
  }
  return entry;
}

}  // namespace

ConditionalWrites* ConditionalWritesOf(Storage& storage, const std::string& path) {
  ConditionalWrites* const writes = storage.extras().conditional_writes;
  return writes != nullptr && writes->Serves(path) ? writes : nullptr;
}

bool IsRemote(Storage& storage, const std::string& path) {
  return ConditionalWritesOf(storage, path) != nullptr || IsUnlisted(storage, path);
}

bool TellsNothing(Storage& storage, const std::string& path, const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kUnimplemented:
    case StatusCode::kInvalidArgument: return false;
    default: return status.details().reason != ErrorReason::kIncomplete && IsRemote(storage, path);
  }
}

bool IsForbidden(const Status& status) {
  return status.details().system_error == EACCES || status.details().system_error == EPERM;
}

bool IsUnread(Storage& storage, const std::string& path, const Status& status) {
  return !status.ok() && status.code() != StatusCode::kNotFound &&
         ConditionalWritesOf(storage, path) != nullptr;
}

int ListThreads(Storage& storage, const std::string& directory) {
  constexpr int kOfServer = 8;  // Each may hold an index in memory.
  return ConditionalWritesOf(storage, directory) != nullptr ? kOfServer : 1;
}

std::vector<std::string> DisplacedPaths(Storage& storage, const std::string& path) {
  std::vector<std::string> paths;
  if (ConditionalWritesOf(storage, path) == nullptr) {
    paths.push_back(DisplacedPath(path));
    if (OldDisplacedPath(path) != paths.front()) {
      paths.push_back(OldDisplacedPath(path));
    }
  }
  return paths;
}

std::uint64_t NewestRecord(const std::vector<DirectoryEntry>& entries) {
  std::uint64_t newest = 0;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory) {
      newest = std::max(newest, RecordNumber(entry.name).value_or(0));
    }
  }
  return newest;
}

Result<CommitRecord> ReadNewestRecord(Storage& storage, const std::string& directory,
                                      const std::vector<DirectoryEntry>& entries) {
  const std::uint64_t newest = NewestRecord(entries);
  return newest == 0 ? NotFound(directory + " has no commit record")
                     : ReadRecord(storage, JoinPath(directory, RecordName(newest)));
}

Result<CommitRecord> ReadCommitRecord(Storage& storage, const std::string& directory) {
  if (IsUnlisted(storage, directory)) {  // The newest of several must be named.
    return ReadRecord(storage, RecordNumber(BaseName(directory))
                                   ? directory
                                   : JoinPath(directory, RecordName(1)));
  }
  if (ConditionalWritesOf(storage, directory) == nullptr) {
    auto record = ReadRecord(storage, JoinPath(directory, RecordName(1)));
    if (!record.ok() || record->directory.empty()) {
      return record;
    }
  }  // A copy of a checkpoint of an object store may have a record with a higher number.
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  return ReadNewestRecord(storage, directory, entries);
}

std::string NoteText(Storage& storage, const std::string& path) {
  const auto read = ReadWholeFile(storage, path, kMaxNoteBytes);
  std::string text = read.ok() ? *read : read.status().message();
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  for (char& c : text) {
    c = static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return text;
}

Status AddBeside(Storage& storage, const std::string& path, bool has_checkpoint,
                 std::vector<CheckpointEntry>* entries) {
  if (ConditionalWritesOf(storage, path) == nullptr) {
    return Status::Ok();
  }
  const auto listed = storage.List(path);
  if (listed.status().code() == StatusCode::kNotFound) {
    return Status::Ok();  // It has been removed since it was listed.
  }
  VARVE_RETURN_IF_ERROR(listed.status());
  bool in_quarantine = false;
  for (const DirectoryEntry& file : *listed) {
    if (auto entry = ExamineQuarantinedRecord(storage, path, file)) {
      entries->push_back(*std::move(entry));
      in_quarantine = true;  // Data that nothing else names are its own.
    }
  }
  if (!has_checkpoint && !in_quarantine) {
    VARVE_ASSIGN_OR_RETURN(auto unpublished, ExamineUnpublished(storage, path, *listed));
    if (unpublished) {
      entries->push_back(*std::move(unpublished));
    }
  }
  return Status::Ok();
}

Result<std::uint64_t> BytesIn(Storage& storage, const std::string& directory,
                              std::int64_t* modified_ns) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  std::uint64_t bytes = 0;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory) {
      VARVE_ASSIGN_OR_RETURN(const std::uint64_t below,
                             BytesIn(storage, JoinPath(directory, entry.name), modified_ns));
      bytes += below;
      continue;
    }
    bytes += entry.size;
    *modified_ns = std::max(*modified_ns, entry.modified_ns);
  }
  return bytes;
}

bool IsDeadByAge(Storage& storage, const std::string& path, std::int64_t modified_ns) {
  const std::int64_t now = storage.extras().conditional_writes->NowNs(path);
  return modified_ns > 0 && modified_ns + std::chrono::nanoseconds(kDeadAfter).count() < now;
}

}  // namespace varve
