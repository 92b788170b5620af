/// Memory that two processes see: messages too long for a socket, and staging memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/file_descriptor.h"
#include "varve/status.h"

namespace varve {

/// Returns a memfd that holds these bytes. Errors: OutOfSpace.
Result<FileDescriptor> MakeBlob(std::string_view bytes);
/// Returns the bytes of a memfd that MakeBlob made. Errors: DataLoss when it is larger than any
/// message could be.
Result<Bytes> ReadBlob(const FileDescriptor& blob);

/// A mapping of a StagingPool's memfd in another process, to read from. Threads: safe.
class PoolMemory {
 public:
  /// Maps a memfd. Errors: DataLoss when it is not sealed or not of that size: a memfd that is cut
  /// short while it is mapped kills its readers (SIGBUS).
  static Result<std::shared_ptr<PoolMemory>> Map(FileDescriptor fd, std::uint64_t blocks);
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;
  ~PoolMemory();

  [[nodiscard]] std::uint64_t blocks() const { return blocks_; }
  [[nodiscard]] const FileDescriptor& fd() const { return fd_; }
  /// Returns true for two mappings of one memfd.
  [[nodiscard]] bool IsSameAs(const PoolMemory& other) const;
  /// Returns the addresses of these blocks. All must be below blocks().
  [[nodiscard]] std::vector<const std::byte*> At(const std::vector<std::uint64_t>& numbers) const;

  /// Gives the memory of all blocks but those that are `wanted` (by number) back to the system.
  void Release(const std::vector<bool>& wanted);

 private:
  PoolMemory(FileDescriptor fd, const std::byte* base, std::uint64_t blocks)
      : fd_(std::move(fd)), base_(base), blocks_(blocks) {}
  const FileDescriptor fd_;
  const std::byte* const base_;
  const std::uint64_t blocks_;
};

/// A page that says whether memory still holds its announced content. One process makes the page
/// and revokes it; others check it after they have read. Threads: safe.
class ValidityPage {
 public:
  /// Makes a page that is valid. Errors: OutOfSpace.
  static Result<std::shared_ptr<ValidityPage>> Make();
  /// Maps another process's page. Errors: DataLoss.
  static Result<std::shared_ptr<ValidityPage>> Map(FileDescriptor fd);
  ValidityPage(const ValidityPage&) = delete;
  ValidityPage& operator=(const ValidityPage&) = delete;
  ~ValidityPage();

  /// Returns false when bytes that were read before this call may be other content.
  [[nodiscard]] bool Valid() const;
  void Revoke();
  [[nodiscard]] const FileDescriptor& fd() const { return fd_; }

 private:
  ValidityPage(FileDescriptor fd, void* page) : fd_(std::move(fd)), page_(page) {}
  const FileDescriptor fd_;
  void* const page_;
};

}  // namespace varve
