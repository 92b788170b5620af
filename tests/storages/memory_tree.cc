#include "storages/memory_tree.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>

namespace varve {
namespace {

constexpr std::size_t kPageBytes = 4096;

std::vector<std::string> Components(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin < path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") {
      parts.push_back(std::move(part));
    }
    begin = end + 1;
  }
  return parts;
}

/// Copies a graph of nodes; nodes that are shared stay shared.
class Copier {
 public:
  NodePointer operator()(const NodePointer& node) {
    if (node == nullptr) {
      return nullptr;
    }
    NodePointer& copy = copies_[node.get()];
    if (copy == nullptr) {
      copy = std::make_shared<MemoryNode>(*node);
      for (auto* entries : {&copy->entries, &copy->synced_entries}) {
        for (auto& [name, child] : *entries) {
          child = (*this)(child);
        }
      }
    }
    return copy;
  }

 private:
  std::map<const MemoryNode*, NodePointer> copies_;
};

std::string SurvivingContent(const MemoryNode& file, PowerCut cut, std::mt19937_64& random) {
  if (file.content == file.synced_content) {
    return file.content;
  }
  std::string survivor = file.synced_content;
  switch (cut) {
    case PowerCut::kKeepAll:
    case PowerCut::kKeepData: return file.content;
    case PowerCut::kKeepSynced:
    case PowerCut::kTruncateData: return survivor;
    case PowerCut::kZeroData: survivor.resize(file.content.size()); return survivor;
    case PowerCut::kRandomOrdered:
    case PowerCut::kRandom: break;
  }
  if (random() % 2 == 0) {
    survivor.resize(file.content.size());
  }
  for (std::size_t at = 0; at < std::min(survivor.size(), file.content.size()); at += kPageBytes) {
    if (random() % 2 == 0) {
      const std::size_t end = std::min({at + kPageBytes, survivor.size(), file.content.size()});
      survivor.replace(at, end - at, file.content, at, end - at);
    }
  }
  return survivor;
}

/// The survivors as a tree of new nodes, all durable. A directory that lost changes have left with
/// two names becomes two; a file with two names stays one.
class Survivors {
 public:
  Survivors(PowerCut cut, std::mt19937_64& random) : cut_(cut), random_(random) {}

  NodePointer operator()(const MemoryNode& node) {
    if (node.is_directory) {
      return Make(node);
    }
    NodePointer& file = files_[&node];
    if (file == nullptr) {
      file = Make(node);
    }
    return file;
  }

 private:
  NodePointer Make(const MemoryNode& node) {
    auto survivor = std::make_shared<MemoryNode>();
    survivor->is_directory = node.is_directory;
    survivor->is_link = node.is_link;
    survivor->modified_ns = node.modified_ns;
    for (const auto& [name, child] : node.entries) {
      survivor->entries[name] = (*this)(*child);
    }
    survivor->synced_entries = survivor->entries;
    survivor->content = SurvivingContent(node, cut_, random_);
    survivor->synced_content = survivor->content;
    return survivor;
  }

  PowerCut cut_;
  std::mt19937_64& random_;
  std::map<const MemoryNode*, NodePointer> files_;
};

/// Takes every name back to its synced state.
void Revert(const NodePointer& node) {
  node->entries = node->synced_entries;
  for (const auto& [name, child] : node->entries) {
    Revert(child);
  }
}

void Set(const EntryChange& change) {
  if (change.node == nullptr) {
    change.directory->entries.erase(change.name);
  } else {
    change.directory->entries[change.name] = change.node;
  }
}

}  // namespace

MemoryTree::MemoryTree() : root_(std::make_shared<MemoryNode>()) { root_->is_directory = true; }

Result<NodePointer> MemoryTree::Find(const std::string& path) const {
  NodePointer node = root_;
  for (const std::string& part : Components(path)) {
    if (!node->is_directory) {
      return InvalidArgument(path + ": a part of it is not a directory");
    }
    const auto found = node->entries.find(part);
    if (found == node->entries.end()) {
      return NotFound(path + ": no such file or directory");
    }
    node = found->second;
  }
  return node;
}

Result<NodePointer> MemoryTree::FindOrNull(const std::string& path) const {
  VARVE_RETURN_IF_ERROR(Find(ParentPath(path)).status());
  auto node = Find(path);
  if (node.status().code() == StatusCode::kNotFound) {
    return NodePointer();
  }
  return node;
}

Result<EntryChange> MemoryTree::ChangeOf(const std::string& path, NodePointer node) const {
  VARVE_ASSIGN_OR_RETURN(NodePointer parent, Find(ParentPath(path)));
  if (!parent->is_directory) {
    return InvalidArgument(path + ": a part of it is not a directory");
  }
  return EntryChange{std::move(parent), BaseName(path), std::move(node)};
}

void MemoryTree::Apply(std::vector<EntryChange> changes) {
  for (const EntryChange& change : changes) {
    Set(change);
  }
  pending_.push_back({next_number_++, std::move(changes)});
}

void MemoryTree::SyncDirectory(const NodePointer& directory) {
  directory->synced_entries = directory->entries;
  for (Operation& operation : pending_) {
    const auto synced = std::erase_if(operation.changes, [&](const EntryChange& change) {
      return change.directory == directory;
    });
    if (synced > 0) {
      synced_before_ = std::max(synced_before_, operation.number + 1);
    }
  }
  std::erase_if(pending_, [](const Operation& operation) { return operation.changes.empty(); });
}

MemoryTree MemoryTree::Copy() const {
  MemoryTree copy;
  Copier copier;
  copy.root_ = copier(root_);
  for (const Operation& operation : pending_) {
    Operation copied{operation.number, {}};
    for (const EntryChange& change : operation.changes) {
      copied.changes.push_back({copier(change.directory), change.name, copier(change.node)});
    }
    copy.pending_.push_back(std::move(copied));
  }
  copy.next_number_ = next_number_;
  copy.synced_before_ = synced_before_;
  return copy;
}

MemoryTree MemoryTree::AfterPowerCut(PowerCut cut, std::uint64_t seed) const {
  std::mt19937_64 random(seed);
  const MemoryTree copy = Copy();
  const bool ordered = cut == PowerCut::kRandomOrdered;
  if (ordered || cut == PowerCut::kRandom || cut == PowerCut::kKeepSynced ||
      cut == PowerCut::kKeepData) {
    Revert(copy.root_);
    for (const Operation& operation : copy.pending_) {
      // A node that is not reachable from the root yet becomes so by a later change.
      for (const EntryChange& change : operation.changes) {
        if (change.node != nullptr) {
          Revert(change.node);
        }
        Revert(change.directory);
      }
    }
  }
  if (ordered || cut == PowerCut::kRandom) {
    std::uint64_t end = synced_before_;
    if (ordered && next_number_ > synced_before_) {
      end += random() % (next_number_ - synced_before_ + 1);
    }
    for (const Operation& operation : copy.pending_) {
      if (ordered ? operation.number < end : random() % 2 == 0) {
        std::for_each(operation.changes.begin(), operation.changes.end(), Set);
      }
    }
  }
  MemoryTree survivor;
  survivor.root_ = Survivors(cut, random)(*copy.root_);
  return survivor;
}

}  // namespace varve
