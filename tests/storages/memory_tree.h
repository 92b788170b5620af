/// The inodes behind MemoryStorage and their state after a power cut. The owner does the locking.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "storages/memory.h"
#include "varve/status.h"

namespace varve {

/// A file or a directory, as it is now and as a power cut would leave it.
struct MemoryNode {
  bool is_directory = false;
  bool is_link = false;  ///< A symbolic link; `content` is its text and always durable.
  std::int64_t modified_ns = 0;
  std::string content;
  std::string synced_content;
  using Entries = std::map<std::string, std::shared_ptr<MemoryNode>>;
  Entries entries;
  Entries synced_entries;
};
using NodePointer = std::shared_ptr<MemoryNode>;

/// A name in a directory gets another node, or none.
struct EntryChange {
  NodePointer directory;
  std::string name;
  NodePointer node;
};

/// All inodes of a storage and the changes of names that are not synced yet, oldest first.
class MemoryTree {
 public:
  MemoryTree();

  /// Returns a node. Errors: NotFound; InvalidArgument when a file stands where a directory must.
  [[nodiscard]] Result<NodePointer> Find(const std::string& path) const;

  /// Returns the node, or null when there is none. Errors: as Find, for the parent.
  [[nodiscard]] Result<NodePointer> FindOrNull(const std::string& path) const;

  /// Changes several entries as one step: a power cut takes all of it or nothing.
  void Apply(std::vector<EntryChange> changes);

  /// Returns the change that sets `path` to `node`. Errors: as Find, for the parent.
  [[nodiscard]] Result<EntryChange> ChangeOf(const std::string& path, NodePointer node) const;

  void SyncDirectory(const NodePointer& directory);

  [[nodiscard]] MemoryTree Copy() const;
  [[nodiscard]] MemoryTree AfterPowerCut(PowerCut cut, std::uint64_t seed) const;

 private:
  struct Operation {
    std::uint64_t number = 0;
    std::vector<EntryChange> changes;
  };

  NodePointer root_;
  std::vector<Operation> pending_;
  std::uint64_t next_number_ = 0;
  std::uint64_t synced_before_ = 0;  ///< Some operation with the number before this was synced.
};

}  // namespace varve
