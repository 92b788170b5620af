/// A storage in memory that knows what a power cut would leave: the model of the crash tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "varve/storage.h"

namespace varve {

/// The part that survives a cut. Real file systems lie between these extremes, all of which POSIX
/// allows.
enum class PowerCut : std::uint8_t {
  kKeepAll,        ///< Everything, synced or not.
  kKeepSynced,     ///< Synced content under synced names, nothing else.
  kZeroData,       ///< All names; content that was not synced reads as zeros at its full size.
  kTruncateData,   ///< All names; files end where their last sync left them.
  kKeepData,       ///< Synced names only; the content of those files, synced or not.
  kRandomOrdered,  ///< Some first part of the name changes, as a journal does; random pages.
  kRandom,         ///< Any subset of the name changes not synced, in no order; random pages.
};

struct MemoryStorageOptions {
  bool exchange = true;  ///< False: renaming with kExchange is kUnimplemented, as on NFS.
  bool locks = true;     ///< False: Lock is kUnimplemented.
  bool direct = true;    ///< False: direct writes are refused, as on an old tmpfs.
  bool cached = true;    ///< The answer of IsCached.
  bool links = true;     ///< False: files have one name, as on many FUSE mounts.
};

/// Files and directories are inodes; names are entries of directories, as in a real file system.
/// Content becomes durable by WritableFile::Sync, an entry (created, renamed, removed) by
/// SyncDirectory of the directory that holds it, and neither by anything else. A rename or exchange
/// happens wholly or not at all, synced or not.
///
/// Relative and absolute paths start at the same root, which always exists. Handles stay usable
/// after their storage has been destroyed. Threads: as Storage.
///
/// A symbolic link has its text and leads to nothing.
class MemoryStorage final : public Storage,
                            private HardLinks,
                            private SymbolicLinks,
                            private EmptyDirectories {
 public:
  explicit MemoryStorage(MemoryStorageOptions options = {});
  MemoryStorage(const MemoryStorage&) = delete;
  MemoryStorage& operator=(const MemoryStorage&) = delete;
  ~MemoryStorage() override;

  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override;
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override;
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override;
  Status MakeDirectory(const std::string& name) override;
  Status SyncDirectory(const std::string& name) override;
  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override;
  Status Remove(const std::string& name) override;
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override;

  /// Returns the storage that the machine finds when it is switched on again: a new one, all of it
  /// durable and nothing locked. The same seed always gives the same; only the random kinds look at
  /// it.
  [[nodiscard]] std::unique_ptr<MemoryStorage> AfterPowerCut(PowerCut cut,
                                                             std::uint64_t seed = 0) const;

  /// Returns the storage that others find when every process using this one was killed: all is
  /// there and nothing locked, but no more is durable than before.
  [[nodiscard]] std::unique_ptr<MemoryStorage> AfterKill() const;

  struct Impl;  ///< Shared with open handles.

 private:
  Status Link(const std::string& from, const std::string& to) override;
  Result<bool> AreOneFile(const std::string& a, const std::string& b) override;
  Result<std::string> ReadLink(const std::string& name) override;
  Status MakeLink(const std::string& target, const std::string& name) override;
  Status RemoveEmpty(const std::string& name) override;

  MemoryStorageOptions options_;
  std::shared_ptr<Impl> impl_;
};

}  // namespace varve
