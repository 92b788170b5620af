#include "storages/faulty.h"

#include <cstddef>
#include <utility>

namespace varve {

bool IsChange(Operation operation) {
  return operation != Operation::kOpenForRead && operation != Operation::kRead &&
         operation != Operation::kList;
}

std::string_view OperationName(Operation operation) {
  switch (operation) {
    case Operation::kOpenForWrite: return "open for writing";
    case Operation::kWrite: return "write";
    case Operation::kSync: return "sync";
    case Operation::kMakeDirectory: return "make directory";
    case Operation::kSyncDirectory: return "sync directory";
    case Operation::kRename: return "rename";
    case Operation::kLink: return "link";
    case Operation::kRemove: return "remove";
    case Operation::kLock: return "lock";
    case Operation::kUnlock: return "unlock";
    case Operation::kOpenForRead: return "open for reading";
    case Operation::kRead: return "read";
    case Operation::kList: return "list";
  }
  return "?";
}

class FaultyWritableFile final : public WritableFile {
 public:
  FaultyWritableFile(FaultyStorage& storage, std::unique_ptr<WritableFile> inner, std::string name)
      : storage_(storage), inner_(std::move(inner)), name_(std::move(name)) {}

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    bool dies_here = false;
    auto is_made = storage_.BeforeOrSkip(Operation::kWrite, name_, &dies_here);
    if (dies_here) {
      const std::size_t half = data.size() / 2 / kDirectAlignment * kDirectAlignment;
      (void)inner_->WriteAt(offset, data.first(half));
    }
    VARVE_RETURN_IF_ERROR(is_made.status());
    return *is_made ? inner_->WriteAt(offset, data) : Status::Ok();
  }

  Status Sync(std::uint64_t size) override {
    VARVE_ASSIGN_OR_RETURN(const bool is_made, storage_.BeforeOrSkip(Operation::kSync, name_));
    return is_made ? inner_->Sync(size) : Status::Ok();
  }

  [[nodiscard]] bool direct() const override { return inner_->direct(); }

 private:
  FaultyStorage& storage_;
  std::unique_ptr<WritableFile> inner_;
  std::string name_;
};

class FaultyReadableFile final : public ReadableFile {
 public:
  FaultyReadableFile(FaultyStorage& storage, std::unique_ptr<ReadableFile> inner, std::string name)
      : storage_(storage), inner_(std::move(inner)), name_(std::move(name)) {}

  [[nodiscard]] std::uint64_t size() const override { return inner_->size(); }

  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    VARVE_RETURN_IF_ERROR(storage_.Before(Operation::kRead, name_));
    return inner_->ReadAt(offset, parts);
  }

  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t capacity) override {
    VARVE_RETURN_IF_ERROR(storage_.Before(Operation::kRead, name_));
    return inner_->ReadUncached(offset, buffer, size, capacity);
  }

  [[nodiscard]] bool IsCached(std::uint64_t offset, std::uint64_t size) override {
    return inner_->IsCached(offset, size);
  }

 private:
  FaultyStorage& storage_;
  std::unique_ptr<ReadableFile> inner_;
  std::string name_;
};

class FaultyLock final : public StorageLock {
 public:
  FaultyLock(FaultyStorage& storage, std::unique_ptr<StorageLock> inner, std::string name)
      : storage_(storage), inner_(std::move(inner)), name_(std::move(name)) {
    const std::scoped_lock lock(storage_.mutex_);
    storage_.locks_.insert(this);
  }
  FaultyLock(const FaultyLock&) = delete;
  FaultyLock& operator=(const FaultyLock&) = delete;
  ~FaultyLock() override {
    const bool kept = !storage_.Before(Operation::kUnlock, name_).ok() && storage_.stopped();
    const std::scoped_lock lock(storage_.mutex_);
    storage_.locks_.erase(this);
    if (kept && inner_ != nullptr) {
      storage_.abandoned_.push_back(std::move(inner_));
    }
  }
  [[nodiscard]] bool HasName() const override { return inner_ == nullptr || inner_->HasName(); }
  void Release() { inner_.reset(); }

 private:
  FaultyStorage& storage_;
  std::unique_ptr<StorageLock> inner_;
  std::string name_;
};

void FaultyStorage::Stop() {
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  for (FaultyLock* const held : locks_) {
    held->Release();
  }
  locks_.clear();
}

bool FaultyStorage::stopped() const {
  const std::scoped_lock lock(mutex_);
  return stopped_;
}

std::uint64_t FaultyStorage::changes() const {
  const std::scoped_lock lock(mutex_);
  return changes_;
}

std::uint64_t FaultyStorage::count(Operation operation) const {
  const std::scoped_lock lock(mutex_);
  const auto found = counts_.find(operation);
  return found == counts_.end() ? 0 : found->second;
}

Status FaultyStorage::Before(Operation operation, const std::string& name, bool* dies_here) {
  if (observer_ && !stopped()) {
    observer_(operation, name);
  }
  const std::scoped_lock lock(mutex_);
  if (!stopped_ && IsChange(operation) && stop_at_ && changes_ >= *stop_at_) {
    stopped_ = true;
    if (dies_here != nullptr) {
      *dies_here = true;
    }
  }
  if (stopped_) {
    return {StatusCode::kCancelled,
            "crashed before: " + std::string(OperationName(operation)) + " " + name};
  }
  changes_ += IsChange(operation) ? 1 : 0;
  const std::uint64_t number = counts_[operation]++;
  if (fault_ && fault_->operation == operation &&
      (number == fault_->number || (fault_->forever && number > fault_->number))) {
    return fault_->status.Annotate(std::string(OperationName(operation)) + " " + name);
  }
  return Status::Ok();
}

Result<bool> FaultyStorage::BeforeOrSkip(Operation operation, const std::string& name,
                                         bool* dies_here) {
  Status status = Before(operation, name, dies_here);
  if (skipped_ && !stopped() && skipped_(operation, name, !status.ok())) {
    return false;
  }
  VARVE_RETURN_IF_ERROR(std::move(status));
  return true;
}

Result<std::unique_ptr<WritableFile>> FaultyStorage::OpenForWrite(const std::string& name,
                                                                  const WriteOptions& options) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kOpenForWrite, name));
  VARVE_ASSIGN_OR_RETURN(auto file, inner_.OpenForWrite(name, options));
  return std::unique_ptr<WritableFile>(
      std::make_unique<FaultyWritableFile>(*this, std::move(file), name));
}

Result<std::unique_ptr<ReadableFile>> FaultyStorage::OpenForRead(const std::string& name) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kOpenForRead, name));
  VARVE_ASSIGN_OR_RETURN(auto file, inner_.OpenForRead(name));
  return std::unique_ptr<ReadableFile>(
      std::make_unique<FaultyReadableFile>(*this, std::move(file), name));
}

Result<std::vector<DirectoryEntry>> FaultyStorage::List(const std::string& directory) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kList, directory));
  return inner_.List(directory);
}

Status FaultyStorage::MakeDirectory(const std::string& name) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kMakeDirectory, name));
  return inner_.MakeDirectory(name);
}

Status FaultyStorage::SyncDirectory(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const bool is_made, BeforeOrSkip(Operation::kSyncDirectory, name));
  return is_made ? inner_.SyncDirectory(name) : Status::Ok();
}

Status FaultyStorage::Rename(const std::string& from, const std::string& to, RenameMode mode) {
  VARVE_ASSIGN_OR_RETURN(const bool is_made, BeforeOrSkip(Operation::kRename, from + " to " + to));
  return is_made ? inner_.Rename(from, to, mode) : Status::Ok();
}

Status FaultyStorage::Link(const std::string& from, const std::string& to) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kLink, from + " to " + to));
  return inner_.extras().hard_links->Link(from, to);
}

Result<bool> FaultyStorage::AreOneFile(const std::string& a, const std::string& b) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kList, a));
  return inner_.extras().hard_links->AreOneFile(a, b);
}

Result<std::string> FaultyStorage::ReadLink(const std::string& name) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kRead, name));
  return inner_.extras().symbolic_links->ReadLink(name);
}

Status FaultyStorage::MakeLink(const std::string& target, const std::string& name) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kLink, name));
  return inner_.extras().symbolic_links->MakeLink(target, name);
}

Status FaultyStorage::RemoveEmpty(const std::string& name) {
  VARVE_RETURN_IF_ERROR(Before(Operation::kRemove, name));
  return inner_.extras().empty_directories->RemoveEmpty(name);
}

Status FaultyStorage::Remove(const std::string& name) {
  const auto entries = inner_.List(name);  // Empty for a file.
  if (entries.ok()) {
    for (const DirectoryEntry& entry : *entries) {
      VARVE_RETURN_IF_ERROR(Remove(JoinPath(name, entry.name)));
    }
  }
  VARVE_ASSIGN_OR_RETURN(const bool is_made, BeforeOrSkip(Operation::kRemove, name));
  return is_made ? inner_.Remove(name) : Status::Ok();
}

Result<std::unique_ptr<StorageLock>> FaultyStorage::Lock(const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const bool is_made, BeforeOrSkip(Operation::kLock, name));
  std::unique_ptr<StorageLock> inner;
  if (is_made) {
    VARVE_ASSIGN_OR_RETURN(inner, inner_.Lock(name));
  }
  return std::unique_ptr<StorageLock>(std::make_unique<FaultyLock>(*this, std::move(inner), name));
}

}  // namespace varve
