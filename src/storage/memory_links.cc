// Links and empty directories of the storage in memory.

#include <mutex>
#include <utility>

#include "storage/memory.h"
#include "storage/memory_impl.h"

namespace varve {

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
  auto node = std::make_shared<MemoryNode>();
  node->is_link = true;
  node->modified_ns = ++impl_->clock_ns;
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

}  // namespace varve
