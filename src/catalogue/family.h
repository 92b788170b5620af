/// What a reader does differently on file systems, on object stores and on web servers. Object
/// stores rename and lock nothing, and their server may not answer. Web servers also have no lists.
/// Code that reads checkpoints asks these functions what to do, and never which kind of storage it
/// has. How checkpoints come there and go: publish/publisher.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/commit_record.h"
#include "varve/catalogue.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns what writes objects where checkpoints of this name are published by it, for names cannot
/// be changed there; null elsewhere. For PublisherOf, and for what is not a checkpoint.
ConditionalWrites* ConditionalWritesOf(Storage& storage, const std::string& path);

/// Returns true for names on servers: requests answer there, and directories need not be made.
bool IsRemote(Storage& storage, const std::string& path);

/// Returns true for an error that does not tell what is stored: the server of `path` gave no
/// answer, or refused one.
bool TellsNothing(Storage& storage, const std::string& path, const Status& status);

/// Returns true for an error of a file or directory that this process has no permission to read.
bool IsForbidden(const Status& status);

/// Returns true for any error of an object store but NotFound: a list or an object that cannot be
/// read does not tell that there is nothing.
bool IsUnread(Storage& storage, const std::string& path, const Status& status);

/// Returns how many threads look at the checkpoints in a directory at once: several where each look
/// waits for a server.
int ListThreads(Storage& storage, const std::string& directory);

/// Returns the hidden names under which readers find the checkpoint `path` after an overwrite that
/// was interrupted, the likeliest first; none where nothing is displaced.
std::vector<std::string> DisplacedPaths(Storage& storage, const std::string& path);

inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{64} << 10;

/// Reads and checks varve.json, or the record that has come after it. NotFound when there is none.
Result<CommitRecord> ReadCommitRecord(Storage& storage, const std::string& directory);

/// Returns the highest number of a commit record's name among these entries; 0 where there is none.
std::uint64_t NewestRecord(const std::vector<DirectoryEntry>& entries);

/// Reads and checks the record with that number. Errors: NotFound for 0.
Result<CommitRecord> ReadNewestRecord(Storage& storage, const std::string& directory,
                                      const std::vector<DirectoryEntry>& entries);

/// Adds what is in the directory of a name beside its checkpoint, where names cannot be changed:
/// what was taken out of the way, and where there is no checkpoint, the data that no index names: a
/// save under way has written them, or one that died. The state of those is kStale where all of it
/// is dead by age, else kSaving. Errors: those of the storage.
Status AddBeside(Storage& storage, const std::string& path, bool has_checkpoint,
                 std::vector<CheckpointEntry>* entries);

/// Returns the text of a note for people, on one line: it goes to terminals.
std::string NoteText(Storage& storage, const std::string& path);

/// Returns the bytes of the files below a directory. Raises `*modified_ns` to the time when the
/// last of them was written.
Result<std::uint64_t> BytesIn(Storage& storage, const std::string& directory,
                              std::int64_t* modified_ns);

/// Returns true for what was written more than a day ago by the storage's clock: without locks,
/// only such a thing counts as dead. False where the time is not known.
bool IsDeadByAge(Storage& storage, const std::string& path, std::int64_t modified_ns);

}  // namespace varve
