/// A storage around another one that fails when a test asks for it: once, forever, or by dying.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "varve/storage.h"

namespace varve {

enum class Operation : std::uint8_t {
  kOpenForWrite,
  kWrite,
  kSync,
  kMakeDirectory,
  kSyncDirectory,
  kRename,
  kLink,  ///< Hard or symbolic.
  kRemove,
  kLock,
  kUnlock,  ///< Cannot fail; counts as a place to die.
  kOpenForRead,
  kRead,
  kList,
};

/// Returns true for operations that change what is stored or who holds a lock.
bool IsChange(Operation operation);
std::string_view OperationName(Operation operation);

struct Fault {
  Operation operation = Operation::kWrite;
  std::uint64_t number = 0;  ///< Which of the operations of this kind fails, from 0.
  bool forever = false;      ///< And all of this kind after it.
  Status status;
};

class FaultyLock;

/// Counts operations and fails some. A directory is removed entry by entry, each one a change of
/// its own, as in a real file system. The inner storage must outlive this one, and this one its
/// files and locks. Threads: as Storage; configure it before use.
class FaultyStorage final : public Storage,
                            private HardLinks,
                            private SymbolicLinks,
                            private EmptyDirectories {
 public:
  explicit FaultyStorage(Storage& inner)
      : Storage({inner.extras().hard_links != nullptr ? this : nullptr,
                 inner.extras().symbolic_links != nullptr ? this : nullptr,
                 inner.extras().empty_directories != nullptr ? this : nullptr}),
        inner_(inner) {}
  FaultyStorage(const FaultyStorage&) = delete;
  FaultyStorage& operator=(const FaultyStorage&) = delete;
  ~FaultyStorage() override = default;

  /// Stops the storage: after `changes` changes every operation, reads included, fails with
  /// kCancelled "crashed", as if the process had died: it does not even release locks. A write at
  /// which it dies is half done.
  void StopAt(std::uint64_t changes) { stop_at_ = changes; }
  void FailAt(Fault fault) { fault_ = std::move(fault); }
  /// Stops the storage now, and releases its locks, as a system does when a process ends. Threads:
  /// safe, also from the observer.
  void Stop();
  /// Sets a function that picks operations which are not made and reported as made: what a program
  /// without that step would do. `fails`: the operation was to fail, and its error is not reported.
  /// Only changes are asked for, but no opening, making of a directory, linking or unlocking.
  void SetSkipped(std::function<bool(Operation, const std::string& name, bool fails)> skipped) {
    skipped_ = std::move(skipped);
  }
  /// Sets a function that is called before each operation with nothing locked; it may use any
  /// storage but this one.
  void SetObserver(std::function<void(Operation, const std::string& name)> observer) {
    observer_ = std::move(observer);
  }

  [[nodiscard]] bool stopped() const;
  [[nodiscard]] std::uint64_t changes() const;
  [[nodiscard]] std::uint64_t count(Operation operation) const;

  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override;
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override;
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override;
  Status MakeDirectory(const std::string& name) override;
  Status SyncDirectory(const std::string& name) override;
  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override;
  Status Remove(const std::string& name) override;
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override;

 private:
  friend class FaultyWritableFile;
  friend class FaultyReadableFile;
  friend class FaultyLock;

  Status Link(const std::string& from, const std::string& to) override;
  Result<bool> AreOneFile(const std::string& a, const std::string& b) override;
  Result<std::string> ReadLink(const std::string& name) override;
  Status MakeLink(const std::string& target, const std::string& name) override;
  Status RemoveEmpty(const std::string& name) override;

  /// Runs before every operation: Ok lets it through. `dies_here`: this is the change at which the
  /// storage stopped.
  Status Before(Operation operation, const std::string& name, bool* dies_here = nullptr);
  /// As Before, for an operation that may be skipped: returns false if it is.
  Result<bool> BeforeOrSkip(Operation operation, const std::string& name,
                            bool* dies_here = nullptr);

  Storage& inner_;
  std::optional<std::uint64_t> stop_at_;
  std::optional<Fault> fault_;
  std::function<void(Operation, const std::string&)> observer_;
  std::function<bool(Operation, const std::string&, bool)> skipped_;
  mutable std::mutex mutex_;  ///< Guards what follows.
  std::map<Operation, std::uint64_t> counts_;
  std::uint64_t changes_ = 0;
  bool stopped_ = false;
  std::set<FaultyLock*> locks_;                          ///< Those that are held.
  std::vector<std::unique_ptr<StorageLock>> abandoned_;  ///< Locks of the dead.
};

}  // namespace varve
