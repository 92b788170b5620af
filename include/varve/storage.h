/// Storage moves bytes by name. It knows files and directories, never tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve {

/// A file being written. It is visible under its name at once; a checkpoint becomes visible by the
/// renaming of its directory. The destructor closes and reports nothing: call Sync first.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  /// Writes all of `data` at `offset`. Returns once the backend has accepted it, not once it is
  /// durable. With direct(), `offset` and the size must be multiples of kDirectAlignment, and the
  /// address of `data` should be. Threads: safe for disjoint ranges.
  /// Errors: kOutOfSpace, kUnavailable, kInvalidArgument.
  virtual Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) = 0;

  /// Cuts the file to `size` bytes and makes its content durable (fdatasync). An error here is
  /// final: the content must be taken as lost.
  virtual Status Sync(std::uint64_t size) = 0;

  /// Returns true when writes bypass the page cache and must be aligned. A file stops doing so when
  /// the file system refuses such a write.
  [[nodiscard]] virtual bool direct() const = 0;
};

inline constexpr std::uint64_t kDirectAlignment = 4096;

/// A file being read. Threads: all members are safe to call concurrently.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;

  [[nodiscard]] virtual std::uint64_t size() const = 0;

  /// Fills all `parts`, in order, with the bytes from `offset` on.
  /// Errors: kDataLoss when the file ends early; kUnavailable.
  virtual Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) = 0;

  /// Reads as ReadAt into one buffer, but bypasses the page cache where that is possible and the
  /// bytes are not in it. `offset` and the buffer's address must be multiples of kDirectAlignment,
  /// and `capacity` (>= size) at least `size` rounded up to it. Reads at most `size` bytes that
  /// count.
  virtual Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                              std::uint64_t capacity) = 0;

  /// Reads as ReadAt, and extends the CRC-32C `*crc` over the bytes read: one after the other,
  /// unless a file has a cheaper way. After an error `*crc` is unspecified.
  virtual Status ReadAndSum(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
                            std::uint32_t* crc);

  /// Returns a text that no other content of this name has had or will have, such as a strong
  /// ETag; empty where the backend knows none. What was read once may be kept under it.
  [[nodiscard]] virtual std::string version() const { return {}; }

  /// Drops what this host keeps of these bytes: the caller has found that they are not what was
  /// written. Returns true where something was dropped, so that another read may give others.
  virtual bool Forget(std::uint64_t /*offset*/, std::uint64_t /*size*/) { return false; }

  /// Returns true when ReadAt of this range would be served from memory. A hint.
  [[nodiscard]] virtual bool IsCached(std::uint64_t offset, std::uint64_t size) = 0;

  /// Returns true where each read is a request, whose answer a server sends: a few large reads are
  /// better than many small ones.
  [[nodiscard]] virtual bool IsRemote() const { return false; }

  Status ReadAt(std::uint64_t offset, std::span<std::byte> buffer) {
    return ReadAt(offset, std::span(&buffer, 1));
  }
};

/// A lock that ends with its holder: released by the destructor or by the process's death.
class StorageLock {
 public:
  virtual ~StorageLock() = default;
  /// Returns false where the name does not stand for what was locked any more: its directory was
  /// removed or renamed, and others can lock the name. True also where the storage does not tell.
  [[nodiscard]] virtual bool HasName() const { return true; }
};

struct DirectoryEntry {
  std::string name;  ///< Without the directory.
  bool is_directory = false;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;  ///< Unix time.
  /// The name is a symbolic link; all fields above describe its target. A link to nothing is listed
  /// as an empty file.
  bool is_link = false;
};

class Storage;

/// Returns the entry with this name of a sorted list, as Storage::List gives it; null when there is
/// none. O(log n).
const DirectoryEntry* FindEntry(const std::vector<DirectoryEntry>& entries, std::string_view name);

struct WriteOptions {
  std::uint64_t size = 0;  ///< Expected size, preallocated; 0 when unknown.
  bool direct = false;     ///< Bypass the page cache if the backend can.
  bool exclusive = true;   ///< Fail with kAlreadyExists rather than truncate.
  /// Leave the content of a file that is there as it is, whatever `exclusive` says: several
  /// processes write parts of it. Each one's Sync must give the size of the whole file.
  bool shared = false;
};

enum class RenameMode : std::uint8_t {
  kNoReplace,  ///< kAlreadyExists when the target exists.
  kReplace,    ///< Atomically replaces a file by a file, or an empty directory by a directory;
               ///< kAlreadyExists when the directory is not empty.
  kExchange,   ///< Both exist and swap names atomically; kUnimplemented where the system cannot.
};

/// Optional: files with several names. Threads: as Storage.
class HardLinks {
 public:
  virtual ~HardLinks() = default;

  /// Gives the file `from` the second name `to`. A symbolic link is linked itself, not its target.
  /// Errors: kAlreadyExists when `to` is taken; kUnimplemented when this file cannot have a second
  /// name there.
  virtual Status Link(const std::string& from, const std::string& to) = 0;

  /// Returns true when both names stand for one file. Errors: kNotFound.
  virtual Result<bool> AreOneFile(const std::string& a, const std::string& b) = 0;
};

/// Optional: names that stand for other names. Threads: as Storage.
class SymbolicLinks {
 public:
  virtual ~SymbolicLinks() = default;

  /// Returns the text of the link `name`. Errors: kNotFound; kInvalidArgument when it is no link.
  virtual Result<std::string> ReadLink(const std::string& name) = 0;

  /// Makes the link `name` with the text `target`. Errors: kAlreadyExists.
  virtual Status MakeLink(const std::string& target, const std::string& name) = 0;
};

/// Optional: removing a directory only if it holds nothing. Threads: as Storage.
class EmptyDirectories {
 public:
  virtual ~EmptyDirectories() = default;

  /// Removes the directory. Success when there is none. Errors: kAlreadyExists when it holds
  /// something.
  virtual Status RemoveEmpty(const std::string& name) = 0;
};

enum class LockMode : std::uint8_t { kShared, kExclusive };

/// Optional: locks on files that are there for another purpose. Threads: as Storage.
class FileLocks {
 public:
  virtual ~FileLocks() = default;

  /// Locks the file or directory `name`, which stays when the lock ends: for several holders that
  /// share it, or for one that excludes all. Does not wait. Errors: kNotFound, also when the name
  /// has come to stand for another file; kFailedPrecondition when live holders exclude this one;
  /// kUnimplemented where the file system has no such locks.
  virtual Result<std::unique_ptr<StorageLock>> LockFile(const std::string& name, LockMode mode) = 0;
};

/// Optional: storages without renames and locks, in which a file appears whole or not at all. A
/// checkpoint is published there by the writing of its index under a name that was free. Threads:
/// as Storage.
class ConditionalWrites {
 public:
  virtual ~ConditionalWrites() = default;

  /// Returns true where this is how checkpoints of this name are published.
  virtual bool Serves(const std::string& name) = 0;

  /// Writes a whole file of at most 4 GiB under a name that is free: of several writers one alone
  /// succeeds, as far as the backend can say. Durable when it returns. `content` is unlike that of
  /// any other writer. Errors: AlreadyExists, also when another writer was first; Unimplemented
  /// where the backend cannot say it and was told to refuse; Unavailable and Cancelled where it is
  /// not known whether the file is there or will be. After any other error it is not.
  virtual Status WriteIfAbsent(const std::string& name, std::string_view content) = 0;

  /// Writes a whole file of at most 4 GiB in the place of what has the name: a reader finds what
  /// was there or all of `content`. Durable when it returns. Nothing is compared: of several
  /// writers the last stays, and a request that was given up may be carried out later than those
  /// that came after it. Errors: Unavailable and Cancelled where it is not known whether `content`
  /// is there or will be. After any other error it is not.
  virtual Status Replace(const std::string& name, std::string_view content) = 0;

  /// A file that was opened for writing, has content there, and was neither synced nor given up.
  struct Unfinished {
    std::string name;
    std::string id;             ///< The backend's, of this attempt.
    std::int64_t begun_ns = 0;  ///< Unix time.
  };

  /// Returns those below a directory, of all writers.
  virtual Result<std::vector<Unfinished>> ListUnfinished(const std::string& directory) = 0;

  /// Removes what such a file has there. Success when there is nothing.
  virtual Status RemoveUnfinished(const Unfinished& file) = 0;

  /// Finds out whether WriteIfAbsent can be used for files below `directory`. A save asks before it
  /// writes anything. It may write and remove a file in `directory` for that, whose name begins
  /// with kProbe. Returns false where of two calls at the same moment both may succeed, and the
  /// settings allow that. Errors: those that WriteIfAbsent would have.
  virtual Result<bool> Prepare(const std::string& directory) = 0;

  static constexpr std::string_view kProbe = ".varve-probe-";

  /// Returns the backend's time, by which DirectoryEntry::modified_ns goes: Unix time in ns.
  virtual std::int64_t NowNs(const std::string& directory) = 0;
};

/// Optional: storages that another process of this user and host reaches only with what this one
/// knows: settings and keys. Threads: as Storage.
class SharedAccess {
 public:
  virtual ~SharedAccess() = default;

  /// Returns how this process reaches the storage of `name`, for Open. It holds secrets: it is sent
  /// to processes of the same user alone, and never logged or stored. Empty where any process
  /// reaches it alike.
  virtual Result<std::string> Describe(const std::string& name) = 0;

  /// Returns the storage of `name` as the process reaches it that made `access`. Errors:
  /// InvalidArgument where that cannot be used.
  virtual Result<std::shared_ptr<Storage>> Open(const std::string& name,
                                                const std::string& access) = 0;
};

/// Optional: storages that read files whose names the caller knows, and only that. List is
/// Unimplemented there, and what writes is refused with InvalidArgument. Threads: as Storage.
class UnlistedNames {
 public:
  virtual ~UnlistedNames() = default;

  /// Returns true where this is so for a file of this name.
  virtual bool IsUnlisted(const std::string& name) = 0;
};

/// Optional: storages whose clients remember names for a while, as those of NFS do: for up to a
/// minute a name that another node has made is not there, and one that it has replaced is the old
/// file or directory. Threads: as Storage.
class RememberedNames {
 public:
  virtual ~RememberedNames() = default;

  /// Makes the next use of a name in `directory` ask the server, and that of its own name where it
  /// is remembered as one that is not there. Does nothing where this process may not read it.
  virtual void AskAnew(const std::string& directory) = 0;
};

/// Operations that a storage may lack; null where it does. They live as long as the storage.
struct StorageExtras {
  HardLinks* hard_links = nullptr;
  SymbolicLinks* symbolic_links = nullptr;
  EmptyDirectories* empty_directories = nullptr;
  FileLocks* file_locks = nullptr;
  ConditionalWrites* conditional_writes = nullptr;
  SharedAccess* shared_access = nullptr;
  UnlistedNames* unlisted_names = nullptr;  ///< Null where all directories can be listed.
  RememberedNames* remembered_names = nullptr;
};

/// Names are paths as the backend understands them, '/'-separated. Threads: safe to call
/// concurrently.
class Storage {
 public:
  Storage() = default;
  virtual ~Storage() = default;

  virtual Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                             const WriteOptions& options) = 0;
  virtual Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) = 0;

  /// Returns the entries of a directory, sorted by name. kNotFound when there is none.
  virtual Result<std::vector<DirectoryEntry>> List(const std::string& directory) = 0;

  /// Makes a directory; parents must exist. Errors: kAlreadyExists when the name is taken.
  virtual Status MakeDirectory(const std::string& name) = 0;

  /// Makes the directory's entries (creations, renames, removals) durable.
  virtual Status SyncDirectory(const std::string& name) = 0;

  virtual Status Rename(const std::string& from, const std::string& to, RenameMode mode) = 0;

  /// Removes a file, or a directory with all it holds. Success when there is nothing. A directory
  /// stays in which NFS keeps files that a process has open; they are not listed.
  virtual Status Remove(const std::string& name) = 0;

  /// Creates the file `name` if needed and locks it; it is removed with the lock.
  /// Errors: kFailedPrecondition when another live holder has it; kUnimplemented where the file
  /// system has no locks.
  virtual Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) = 0;

  [[nodiscard]] const StorageExtras& extras() const { return extras_; }

 protected:
  explicit Storage(const StorageExtras& extras) : extras_(extras) {}

 private:
  StorageExtras extras_;
};

/// Returns the local (or mounted) file system, with O_DIRECT where it is accepted. Never destroyed.
Storage& PosixStorage();

/// Returns the storage of all names: "s3://bucket/key" is an object, whose settings and keys are
/// read from the environment at the first such name; "https://host/path" is a web server's, and
/// only read; names of a scheme that the program has registered (varve/storage_plugins.h) are that
/// store's; all other names are PosixStorage's. Never destroyed.
Storage& AnyStorage();

/// Makes the next use of `name`, and of the names below it, ask the server where its client remembers
/// names: a rank may have found before a collective save that there was nothing, or have read the
/// checkpoint that the save replaced.
void AskAnew(Storage& storage, const std::string& name);

/// Reads a whole file of at most `max_bytes`. Errors: kDataLoss when it is larger.
Result<std::string> ReadWholeFile(Storage& storage, const std::string& name,
                                  std::uint64_t max_bytes);

/// Writes and syncs a whole file; the directory is not synced.
Status WriteWholeFile(Storage& storage, const std::string& name, std::string_view content,
                      bool exclusive = true);

/// Returns "dir/name"; `dir` may be empty.
std::string JoinPath(std::string_view directory, std::string_view name);
/// Returns the directory part ("." when there is none) and the last component, trailing slashes
/// ignored.
std::string ParentPath(std::string_view path);
std::string BaseName(std::string_view path);

/// Returns the name by which `storage` knows `path`, good for as long as the caller likes: the
/// working directory may change afterwards. Every public function that takes a path begins with
/// this.
///   - On PosixStorage a relative path is joined with the working directory. Nothing else is
///     changed: ".." is not collapsed, for behind a symbolic link it leads elsewhere. Names in
///     other storages are their own.
///   - "file:///x" and "file://localhost/x" are "/x". The rest is taken as it stands: "%20" is
///     three characters.
///   - "https://host/path" and http:// hold no user, password, query or fragment.
///   - "~" and "~/x" are refused: only a shell replaces them. "./~/x" is a directory of that name.
///   - Any other "scheme://" is refused. A directory of such a name is "./scheme://x".
/// Errors: InvalidArgument for another scheme, naming those there are; for "file://" of another
/// host or with a relative path; for an empty path, and one with a NUL character. Unavailable when
/// a relative path is given and the working directory has no name (it was removed).
Result<std::string> ResolvePath(std::string_view path, const Storage& storage = AnyStorage());

/// Does the same for a path that is to be written. Errors: also InvalidArgument where names like it
/// are only read.
Result<std::string> ResolveTarget(std::string_view path, const Storage& storage = AnyStorage());

/// Returns true where directories cannot be listed: a file is found by its name alone.
bool IsUnlisted(Storage& storage, const std::string& name);

}  // namespace varve
