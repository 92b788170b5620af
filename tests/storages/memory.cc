#include "storages/memory.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "base/checked.h"
#include "storages/memory_tree.h"

namespace varve {

/// `mutex` guards everything, the nodes' content included.
struct MemoryStorage::Impl {
  std::mutex mutex;
  MemoryTree tree;
  std::set<const MemoryNode*> locked;
  std::int64_t clock_ns = 0;  // Counts changes: tests must not depend on the time of day.
};

namespace {

using Impl = MemoryStorage::Impl;

bool IsAligned(std::uint64_t value) { return value % kDirectAlignment == 0; }

bool IsAligned(const void* address) {
  return IsAligned(std::uint64_t{reinterpret_cast<std::uintptr_t>(address)});
}

class MemoryWritableFile final : public WritableFile {
 public:
  MemoryWritableFile(std::shared_ptr<Impl> impl, NodePointer node, std::string name, bool direct)
      : impl_(std::move(impl)), node_(std::move(node)), name_(std::move(name)), direct_(direct) {}

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    if (direct_ && (!IsAligned(offset) || !IsAligned(std::uint64_t{data.size()}))) {
      return InvalidArgument("write at byte " + std::to_string(offset) + " of " + name_ +
                             ": a direct write must be aligned");
    }
    const std::scoped_lock lock(impl_->mutex);
    std::string& content = node_->content;
    content.resize(std::max<std::uint64_t>(content.size(), offset + data.size()));
    if (!data.empty()) {
      std::memcpy(content.data() + offset, data.data(), data.size());
    }
    node_->modified_ns = ++impl_->clock_ns;
    return Status::Ok();
  }

  Status Sync(std::uint64_t size) override {
    const std::scoped_lock lock(impl_->mutex);
    node_->content.resize(size);
    node_->synced_content = node_->content;
    return Status::Ok();
  }

  [[nodiscard]] bool direct() const override { return direct_; }

 private:
  std::shared_ptr<Impl> impl_;
  NodePointer node_;
  std::string name_;
  bool direct_;
};

class MemoryReadableFile final : public ReadableFile {
 public:
  MemoryReadableFile(std::shared_ptr<Impl> impl, NodePointer node, std::string name, bool cached)
      : impl_(std::move(impl)),
        node_(std::move(node)),
        name_(std::move(name)),
        size_(node_->content.size()),
        cached_(cached) {}

  [[nodiscard]] std::uint64_t size() const override { return size_; }

  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    const std::scoped_lock lock(impl_->mutex);
    const std::string& content = node_->content;
    for (const std::span<std::byte> part : parts) {
      if (part.empty()) {
        continue;
      }
      if (offset > content.size() || content.size() - offset < part.size()) {
        return DataLoss(name_ + ": ends at byte " + std::to_string(content.size()) + ", " +
                        std::to_string(size_) + " expected");
      }
      std::memcpy(part.data(), content.data() + offset, part.size());
      offset += part.size();
    }
    return Status::Ok();
  }

  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t capacity) override {
    if (!IsAligned(offset) || !IsAligned(buffer) || capacity < RoundUp(size, kDirectAlignment)) {
      return InvalidArgument("read at byte " + std::to_string(offset) + " of " + name_ +
                             ": a direct read must be aligned and have room for whole pages");
    }
    return ReadableFile::ReadAt(offset, std::span(buffer, size));
  }

  [[nodiscard]] bool IsCached(std::uint64_t /*offset*/, std::uint64_t /*size*/) override {
    return cached_;
  }

 private:
  using ReadableFile::ReadAt;
  std::shared_ptr<Impl> impl_;
  NodePointer node_;
  std::string name_;
  std::uint64_t size_;
  bool cached_;
};

class MemoryLock final : public StorageLock {
 public:
  MemoryLock(std::shared_ptr<Impl> impl, NodePointer node, std::string name)
      : impl_(std::move(impl)), node_(std::move(node)), name_(std::move(name)) {}
  MemoryLock(const MemoryLock&) = delete;
  MemoryLock& operator=(const MemoryLock&) = delete;
  ~MemoryLock() override {
    const std::scoped_lock lock(impl_->mutex);
    impl_->locked.erase(node_.get());
    const auto now = impl_->tree.Find(name_);
    if (now.ok() && *now == node_) {
      impl_->tree.Apply({impl_->tree.ChangeOf(name_, nullptr).value()});
    }
  }

 private:
  std::shared_ptr<Impl> impl_;
  NodePointer node_;
  std::string name_;
};

/// Removes a tree entry by entry, as real storage does: a power cut may keep any part of it.
void RemoveTree(MemoryTree& tree, const EntryChange& removal, const NodePointer& node) {
  const MemoryNode::Entries entries = node->entries;
  for (const auto& [name, child] : entries) {
    RemoveTree(tree, {node, name, nullptr}, child);
  }
  tree.Apply({removal});
}

NodePointer MakeNode(Impl& impl, bool is_directory) {
  auto node = std::make_shared<MemoryNode>();
  node->is_directory = is_directory;
  node->modified_ns = ++impl.clock_ns;
  return node;
}

}  // namespace

MemoryStorage::MemoryStorage(MemoryStorageOptions options)
    : Storage({options.links ? this : nullptr, this, this}),
      options_(options),
      impl_(std::make_shared<Impl>()) {}

MemoryStorage::~MemoryStorage() = default;

Result<std::unique_ptr<WritableFile>> MemoryStorage::OpenForWrite(const std::string& name,
                                                                  const WriteOptions& options) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(NodePointer node, impl_->tree.FindOrNull(name));
  if (node != nullptr && options.exclusive && !options.shared) {
    return AlreadyExists("create " + name + ": it exists");
  }
  if (node != nullptr && node->is_directory) {
    return InvalidArgument("create " + name + ": it is a directory");
  }
  if (node == nullptr) {
    node = MakeNode(*impl_, /*is_directory=*/false);
    VARVE_ASSIGN_OR_RETURN(EntryChange change, impl_->tree.ChangeOf(name, node));
    impl_->tree.Apply({std::move(change)});
  }
  if (!options.shared) {
    node->content.clear();
  }
  node->content.resize(
      std::max<std::size_t>(node->content.size(), RoundUp(options.size, kDirectAlignment)));
  return std::unique_ptr<WritableFile>(std::make_unique<MemoryWritableFile>(
      impl_, std::move(node), name, options.direct && options_.direct));
}

Result<std::unique_ptr<ReadableFile>> MemoryStorage::OpenForRead(const std::string& name) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(NodePointer node, impl_->tree.Find(name));
  if (node->is_directory) {
    return InvalidArgument("open " + name + ": not a regular file");
  }
  if (node->is_link) {
    return NotFound("open " + name + ": the link leads to nothing");
  }
  return std::unique_ptr<ReadableFile>(
      std::make_unique<MemoryReadableFile>(impl_, std::move(node), name, options_.cached));
}

Result<std::vector<DirectoryEntry>> MemoryStorage::List(const std::string& directory) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(const NodePointer node, impl_->tree.Find(directory));
  if (!node->is_directory) {
    return InvalidArgument("list " + directory + ": not a directory");
  }
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, child] : node->entries) {
    entries.push_back({name, child->is_directory, child->is_link ? 0 : child->content.size(),
                       child->modified_ns, child->is_link});
  }
  return entries;
}

Status MemoryStorage::MakeDirectory(const std::string& name) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(const NodePointer old, impl_->tree.FindOrNull(name));
  if (old != nullptr) {
    return AlreadyExists("make directory " + name + ": it exists");
  }
  VARVE_ASSIGN_OR_RETURN(EntryChange change,
                         impl_->tree.ChangeOf(name, MakeNode(*impl_, /*is_directory=*/true)));
  impl_->tree.Apply({std::move(change)});
  return Status::Ok();
}

Status MemoryStorage::SyncDirectory(const std::string& name) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(const NodePointer node, impl_->tree.Find(name));
  if (!node->is_directory) {
    return InvalidArgument("sync directory " + name + ": not a directory");
  }
  impl_->tree.SyncDirectory(node);
  return Status::Ok();
}

Status MemoryStorage::Rename(const std::string& from, const std::string& to, RenameMode mode) {
  const std::scoped_lock lock(impl_->mutex);
  if (mode == RenameMode::kExchange && !options_.exchange) {
    return Unimplemented("the storage of " + to + " cannot exchange two names");
  }
  VARVE_ASSIGN_OR_RETURN(const NodePointer source, impl_->tree.Find(from));
  VARVE_ASSIGN_OR_RETURN(const NodePointer target, impl_->tree.FindOrNull(to));
  if (mode == RenameMode::kExchange && target == nullptr) {
    return NotFound("exchange " + from + " with " + to + ": there is none");
  }
  if (mode == RenameMode::kNoReplace && target != nullptr) {
    return AlreadyExists("rename " + from + " to " + to + ": it exists");
  }
  if (mode == RenameMode::kReplace && target != nullptr) {
    if (source->is_directory != target->is_directory) {
      return InvalidArgument("rename " + from + " to " + to + ": one is a directory");
    }
    if (!target->entries.empty()) {
      return AlreadyExists("rename " + from + " to " + to + ": it is not empty");
    }
  }
  VARVE_ASSIGN_OR_RETURN(
      EntryChange away,
      impl_->tree.ChangeOf(from, mode == RenameMode::kExchange ? target : nullptr));
  VARVE_ASSIGN_OR_RETURN(EntryChange here, impl_->tree.ChangeOf(to, source));
  impl_->tree.Apply({std::move(away), std::move(here)});
  return Status::Ok();
}

Status MemoryStorage::Remove(const std::string& name) {
  const std::scoped_lock lock(impl_->mutex);
  auto node = impl_->tree.Find(name);
  if (!node.ok()) {
    return node.status().code() == StatusCode::kNotFound ? Status::Ok() : node.status();
  }
  VARVE_ASSIGN_OR_RETURN(const EntryChange removal, impl_->tree.ChangeOf(name, nullptr));
  RemoveTree(impl_->tree, removal, *node);
  return Status::Ok();
}

Result<std::unique_ptr<StorageLock>> MemoryStorage::Lock(const std::string& name) {
  const std::scoped_lock lock(impl_->mutex);
  if (!options_.locks) {
    return Unimplemented("the storage of " + name + " has no locks");
  }
  VARVE_ASSIGN_OR_RETURN(NodePointer node, impl_->tree.FindOrNull(name));
  if (node == nullptr) {
    node = MakeNode(*impl_, /*is_directory=*/false);
    VARVE_ASSIGN_OR_RETURN(EntryChange change, impl_->tree.ChangeOf(name, node));
    impl_->tree.Apply({std::move(change)});
  }
  if (!impl_->locked.insert(node.get()).second) {
    return FailedPrecondition(name + " is locked by another holder");
  }
  return std::unique_ptr<StorageLock>(std::make_unique<MemoryLock>(impl_, std::move(node), name));
}

// ---- links and empty directories ----

Status MemoryStorage::Link(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(NodePointer node, impl_->tree.Find(from));
  VARVE_ASSIGN_OR_RETURN(const NodePointer old, impl_->tree.FindOrNull(to));
  if (old != nullptr) {
    return AlreadyExists("link " + from + " to " + to + ": it exists");
  }
  if (node->is_directory) {
    return Unimplemented("link " + from + " to " + to + ": it is a directory");
  }
  VARVE_ASSIGN_OR_RETURN(EntryChange change, impl_->tree.ChangeOf(to, std::move(node)));
  impl_->tree.Apply({std::move(change)});
  return Status::Ok();
}

Result<bool> MemoryStorage::AreOneFile(const std::string& a, const std::string& b) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(const NodePointer of_a, impl_->tree.Find(a));
  VARVE_ASSIGN_OR_RETURN(const NodePointer of_b, impl_->tree.Find(b));
  return of_a == of_b;
}

Result<std::string> MemoryStorage::ReadLink(const std::string& name) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(const NodePointer node, impl_->tree.Find(name));
  if (!node->is_link) {
    return InvalidArgument("read link " + name + ": it is none");
  }
  return node->content;
}

Status MemoryStorage::MakeLink(const std::string& target, const std::string& name) {
  const std::scoped_lock lock(impl_->mutex);
  VARVE_ASSIGN_OR_RETURN(const NodePointer old, impl_->tree.FindOrNull(name));
  if (old != nullptr) {
    return AlreadyExists("make link " + name + ": it exists");
  }
  NodePointer node = MakeNode(*impl_, /*is_directory=*/false);
  node->is_link = true;
  node->content = target;
  node->synced_content = target;
  VARVE_ASSIGN_OR_RETURN(EntryChange change, impl_->tree.ChangeOf(name, std::move(node)));
  impl_->tree.Apply({std::move(change)});
  return Status::Ok();
}

Status MemoryStorage::RemoveEmpty(const std::string& name) {
  const std::scoped_lock lock(impl_->mutex);
  auto node = impl_->tree.Find(name);
  if (!node.ok()) {
    return node.status().code() == StatusCode::kNotFound ? Status::Ok() : node.status();
  }
  if (!(*node)->is_directory || !(*node)->entries.empty()) {
    return AlreadyExists("remove directory " + name + ": it is not an empty directory");
  }
  VARVE_ASSIGN_OR_RETURN(EntryChange removal, impl_->tree.ChangeOf(name, nullptr));
  impl_->tree.Apply({std::move(removal)});
  return Status::Ok();
}

// ---- what is left ----

std::unique_ptr<MemoryStorage> MemoryStorage::AfterPowerCut(PowerCut cut,
                                                            std::uint64_t seed) const {
  auto survivor = std::make_unique<MemoryStorage>(options_);
  const std::scoped_lock lock(impl_->mutex);
  survivor->impl_->tree = impl_->tree.AfterPowerCut(cut, seed);
  survivor->impl_->clock_ns = impl_->clock_ns;
  return survivor;
}

std::unique_ptr<MemoryStorage> MemoryStorage::AfterKill() const {
  auto survivor = std::make_unique<MemoryStorage>(options_);
  const std::scoped_lock lock(impl_->mutex);
  survivor->impl_->tree = impl_->tree.Copy();
  survivor->impl_->clock_ns = impl_->clock_ns;
  return survivor;
}

}  // namespace varve
