// Reads of a checkpoint from an agent's memory. The memory belongs to a trainer that may live and
// may use it again at any time. The agent then revokes a page that we see, before the trainer
// writes to the memory. So we copy the bytes first and check the page afterwards; if it has been
// revoked we read them from the disk. An agent that is killed revokes nothing: its pages count only
// while the connection to it stands. A file is only read from memory when the checkpoint on the
// disk is of the same save. DCP has no room for a name of the save: there the checksums in the
// index must be those of the copy.

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "agent/client.h"
#include "agent/held_files.h"
#include "agent/shared_memory.h"
#include "async/submission.h"
#include "base/checksum.h"
#include "catalogue/formats.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "varve/agent.h"
#include "varve/storage.h"

namespace varve {
namespace {

// Limits for what an agent answers at once: the greeting, and each file that it has. A load waits
// no longer for an agent that is stopped or too busy, and reads from the disk.
constexpr auto kAnswerTimeout = std::chrono::seconds(1);

/// A held file as this process sees it.
struct HeldHere {
  std::shared_ptr<AgentConnection> agent;
  HeldFile file;
  std::shared_ptr<PoolMemory> pool;
  std::shared_ptr<ValidityPage> page;
  std::shared_ptr<ValidityPage> lease;
  std::vector<const std::byte*> units;
  [[nodiscard]] bool Valid() const { return page->Valid() && lease->Valid(); }
};
using HeldPtr = std::shared_ptr<const HeldHere>;
using Count = std::function<void(std::uint64_t)>;

class MemoryFile final : public ReadableFile {
 public:
  MemoryFile(std::unique_ptr<ReadableFile> disk, HeldPtr held, Count count)
      : disk_(std::move(disk)), held_(std::move(held)), count_(std::move(count)) {}

  [[nodiscard]] std::uint64_t size() const override { return disk_->size(); }

  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    return CopyAll(offset, parts, nullptr) ? Status::Ok() : disk_->ReadAt(offset, parts);
  }

  Status ReadAndSum(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
                    std::uint32_t* crc) override {
    const std::uint32_t before = *crc;
    if (CopyAll(offset, parts, crc)) {
      return Status::Ok();
    }
    *crc = before;
    return disk_->ReadAndSum(offset, parts, crc);
  }

  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t capacity) override {
    const std::span<std::byte> part(buffer, size);
    return CopyAll(offset, {&part, 1}, nullptr)
               ? Status::Ok()
               : disk_->ReadUncached(offset, buffer, size, capacity);
  }

  [[nodiscard]] bool IsCached(std::uint64_t offset, std::uint64_t size) override {
    return (Holds(offset, size) && held_->Valid()) || disk_->IsCached(offset, size);
  }

  [[nodiscard]] bool IsRemote() const override { return disk_->IsRemote(); }
  bool Forget(std::uint64_t offset, std::uint64_t size) override {
    return disk_->Forget(offset, size);
  }

 private:
  [[nodiscard]] bool Holds(std::uint64_t offset, std::uint64_t size) const {
    const std::uint64_t begin = held_->file.data_begin;
    return offset >= begin && offset - begin <= held_->file.image.bytes() &&
           size <= held_->file.image.bytes() - (offset - begin);
  }

  /// Copies bytes of the file. Returns false where they must be read from the disk.
  bool CopyAll(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
               std::uint32_t* crc) const {
    std::uint64_t size = 0;
    for (const std::span<std::byte> part : parts) {
      size += part.size();
    }
    if (!Holds(offset, size)) {
      return false;
    }
    std::uint64_t at = offset - held_->file.data_begin;
    for (const std::span<std::byte> part : parts) {
      Copy(at, part, crc);
      at += part.size();
    }
    return Took(size);
  }

  /// Copies bytes of the data; past the cache where they are summed as well, for then they are
  /// many.
  void Copy(std::uint64_t at, std::span<std::byte> out, std::uint32_t* crc) const {
    const std::uint64_t unit = StagedUnitBytes(held_->file.image.checksum_block_bytes);
    while (!out.empty()) {
      const std::uint64_t step = std::min<std::uint64_t>(unit - at % unit, out.size());
      const std::span<const std::byte> source(held_->units[at / unit] + at % unit, step);
      if (crc != nullptr) {
        *crc = StreamAndCrc32c(*crc, source, out.data());
      } else {
        std::memcpy(out.data(), source.data(), step);
      }
      out = out.subspan(step);
      at += step;
    }
  }

  [[nodiscard]] bool Took(std::uint64_t bytes) const {
    const bool valid = held_->Valid() && held_->agent->IsOpen();
    if (valid && count_) {
      count_(bytes);
    }
    return valid;
  }

  const std::unique_ptr<ReadableFile> disk_;
  const HeldPtr held_;
  const Count count_;
};

class MemoryStorage final : public Storage {
 public:
  MemoryStorage(Storage& base, std::map<std::string, HeldPtr> files, Count count)
      : Storage(base.extras()), base_(base), files_(std::move(files)), count_(std::move(count)) {}

  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override {
    VARVE_ASSIGN_OR_RETURN(auto disk, base_.OpenForRead(name));
    const auto found = files_.find(BaseName(name));
    if (found == files_.end() || !IsOfTheSameSave(name, *disk, found->second->file)) {
      return disk;
    }
    return std::unique_ptr<ReadableFile>(
        std::make_unique<MemoryFile>(std::move(disk), found->second, count_));
  }

  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override {
    return base_.OpenForWrite(name, options);
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    return base_.List(directory);
  }
  Status MakeDirectory(const std::string& name) override { return base_.MakeDirectory(name); }
  Status SyncDirectory(const std::string& name) override { return base_.SyncDirectory(name); }
  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override {
    return base_.Rename(from, to, mode);
  }
  Status Remove(const std::string& name) override { return base_.Remove(name); }
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override {
    return base_.Lock(name);
  }

 private:
  bool IsOfTheSameSave(const std::string& name, const ReadableFile& disk, const HeldFile& held) {
    if (disk.size() != held.data_begin + held.image.bytes()) {
      return false;
    }
    const std::string directory = ParentPath(name);
    const auto record = ReadCommitRecord(
        base_, IsDataDirectoryName(BaseName(directory)) ? ParentPath(directory) : directory);
    if (record.ok() || record.status().code() != StatusCode::kNotFound) {
      return record.ok() && record->save_id == held.save_id;
    }
    // An uncoordinated rank's file has the save in its name; DCP's names are the same in all saves.
    return IsDataFileName(held.name) || HasTheSameChecksums(ParentPath(name), held);
  }

  bool HasTheSameChecksums(const std::string& directory, const HeldFile& held) {
    const auto opened = OpenKnown(base_, directory);
    if (!opened.ok() || opened->metadata.block_bytes != held.image.checksum_block_bytes) {
      return false;
    }
    const std::vector<DataFile>& files = opened->metadata.files;
    return std::any_of(files.begin(), files.end(), [&](const DataFile& file) {
      return file.name == held.name && file.data_begin == held.data_begin &&
             file.block_crc32c == held.image.crc32c;
    });
  }

  Storage& base_;
  const std::map<std::string, HeldPtr> files_;
  const Count count_;
};

Result<HeldPtr> Open(std::shared_ptr<AgentConnection> agent, AgentMessage message) {
  if (message.fds.size() != 4) {
    return DataLoss("a file in memory without its memory");
  }
  auto held = std::make_shared<HeldHere>();
  held->agent = std::move(agent);
  VARVE_ASSIGN_OR_RETURN(const Bytes encoded, ReadBlob(message.fds[1]));
  VARVE_ASSIGN_OR_RETURN(held->file, DecodeHeldFile(encoded));
  VARVE_ASSIGN_OR_RETURN(held->pool,
                         PoolMemory::Map(std::move(message.fds[0]), held->file.pool_blocks));
  VARVE_ASSIGN_OR_RETURN(held->page, ValidityPage::Map(std::move(message.fds[2])));
  VARVE_ASSIGN_OR_RETURN(held->lease, ValidityPage::Map(std::move(message.fds[3])));
  held->units = held->pool->At(held->file.image.blocks);
  return HeldPtr(std::move(held));
}

/// Returns the files that the agent holds, by name. Files whose memory cannot be mapped are left
/// out, and read from the disk.
std::map<std::string, HeldPtr> FindHeld(const std::shared_ptr<AgentConnection>& agent,
                                        const std::string& path) {
  std::map<std::string, HeldPtr> files;
  if (!agent->Send({AgentVerb::kFind, 0, path, {}}).ok()) {
    return files;
  }
  const auto receive = [&] {
    return agent->Receive(std::chrono::steady_clock::now() + kAnswerTimeout);
  };
  for (auto message = receive(); message.ok() && message->verb == AgentVerb::kHeld;
       message = receive()) {
    if (auto held = Open(agent, std::move(*message)); held.ok()) {
      files[(*held)->file.name] = *held;
    }
  }
  return files;
}

}  // namespace

std::unique_ptr<Storage> OpenAgentMemory(const std::string& path, Storage& base,
                                         std::function<void(std::uint64_t)> bytes_from_memory,
                                         const std::string& directory) {
  const auto resolved = ResolvePath(path);
  const auto absolute = resolved.ok() ? AbsolutePath(*resolved) : resolved;
  if (!absolute.ok() || absolute->size() > kMaxAgentPayload) {
    return nullptr;
  }
  const auto agent = ConnectAndGreet(directory, std::chrono::steady_clock::now() + kAnswerTimeout);
  if (!agent.ok()) {
    return nullptr;
  }
  auto files = FindHeld(*agent, *absolute);
  if (files.empty()) {
    return nullptr;
  }
  return std::make_unique<MemoryStorage>(base, std::move(files), std::move(bytes_from_memory));
}

}  // namespace varve
