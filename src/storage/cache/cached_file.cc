#include "storage/cache/cached_file.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/of_process.h"
#include "storage/server_file.h"

namespace varve::cache {
namespace {

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The memory that a read fills: parts that lie one after the other in the file.
class Target {
 public:
  Target(std::uint64_t offset, std::span<const std::span<std::byte>> parts) : parts_(parts) {
    range_ = {offset, offset};
    for (const std::span<std::byte> part : parts) {
      range_.end += part.size();
    }
  }

  [[nodiscard]] const ByteRange& range() const { return range_; }

  /// Copies what the read wants of `bytes`, which lie at `at` in the file.
  void Take(std::uint64_t at, std::span<const std::byte> bytes) const {
    std::uint64_t part_begin = range_.begin;
    for (const std::span<std::byte> part : parts_) {
      const std::uint64_t begin = std::max(part_begin, at);
      const std::uint64_t end = std::min(part_begin + part.size(), at + bytes.size());
      if (begin < end) {
        std::memcpy(part.data() + (begin - part_begin), bytes.data() + (begin - at), end - begin);
      }
      part_begin += part.size();
    }
  }

 private:
  std::span<const std::span<std::byte>> parts_;
  ByteRange range_;
};

class CachedFile final : public ServerFile {
 public:
  CachedFile(BlockStore& store, const Hash128& key, std::unique_ptr<ReadableFile> file)
      : store_(store), key_(key), file_(std::move(file)), size_(file_->size()) {}

  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] std::string version() const override { return file_->version(); }

  bool Forget(std::uint64_t offset, std::uint64_t size) override {
    bool kept = false;
    for (std::uint64_t block = offset / store_.options().block_bytes;
         size > 0 && BlockRange(block).begin < std::min(offset + size, size_); ++block) {
      kept = store_.Remove({key_, block}) || kept;
    }
    return kept;
  }

  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    const Target target(offset, parts);
    const ByteRange range = target.range();
    if (!store_.usable() || range.end > size_ || range.end < range.begin) {
      return file_->ReadAt(offset, parts);
    }
    const std::uint64_t group = store_.options().block_bytes * store_.options().group_blocks;
    for (std::uint64_t begin = range.begin; begin < range.end;) {
      const std::uint64_t end = std::min(range.end, begin / group * group + group);
      VARVE_RETURN_IF_ERROR(ReadInGroup({begin, end}, target));
      begin = end;
    }
    return Status::Ok();
  }

 private:
  [[nodiscard]] ByteRange BlockRange(std::uint64_t index) const {
    const std::uint64_t begin = index * store_.options().block_bytes;
    return {begin, std::min(begin + store_.options().block_bytes, size_)};
  }

  /// Takes the blocks that the store has. Returns the others.
  std::vector<std::uint64_t> TakeKept(const std::vector<std::uint64_t>& blocks,
                                      const Target& target) {
    std::vector<std::uint64_t> missing;
    std::vector<std::byte> bytes(store_.options().block_bytes);
    for (const std::uint64_t block : blocks) {
      const ByteRange range = BlockRange(block);
      const auto whole = std::span(bytes).first(range.end - range.begin);
      if (store_.Read({key_, block}, whole)) {
        target.Take(range.begin, whole);
      } else {
        missing.push_back(block);
      }
    }
    return missing;
  }

  Status ReadInGroup(const ByteRange& wanted, const Target& target) {
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t block = wanted.begin / store_.options().block_bytes;
         BlockRange(block).begin < wanted.end; ++block) {
      blocks.push_back(block);
    }
    blocks = TakeKept(blocks, target);
    if (blocks.empty()) {
      return Status::Ok();
    }
    VARVE_ASSIGN_OR_RETURN(const CacheLock lock, store_.LockGroup({key_, blocks.front()}));
    blocks = TakeKept(blocks, target);  // Who had the lock may have fetched them.
    for (std::size_t first = 0; first < blocks.size();) {
      std::size_t last = first + 1;
      while (last < blocks.size() && blocks[last] == blocks[last - 1] + 1) {
        ++last;
      }
      VARVE_RETURN_IF_ERROR(Fetch(blocks[first], blocks[last - 1], target));
      first = last;
    }
    return Status::Ok();
  }

  /// Fetches the blocks from `first` to `last` and keeps them.
  Status Fetch(std::uint64_t first, std::uint64_t last, const Target& target) {
    const ByteRange range{BlockRange(first).begin, BlockRange(last).end};
    std::vector<std::byte> bytes(range.end - range.begin);
    const std::span<std::byte> whole(bytes);
    VARVE_RETURN_IF_ERROR(file_->ReadAt(range.begin, std::span(&whole, 1)));
    target.Take(range.begin, whole);
    for (std::uint64_t block = first; block <= last; ++block) {
      const ByteRange one = BlockRange(block);
      store_.Write({key_, block}, whole.subspan(one.begin - range.begin, one.end - one.begin));
    }
    return Status::Ok();
  }

  BlockStore& store_;
  const Hash128 key_;
  const std::unique_ptr<ReadableFile> file_;
  const std::uint64_t size_;
};

}  // namespace

std::unique_ptr<ReadableFile> ReadThrough(BlockStore& store, const std::string& name,
                                          std::unique_ptr<ReadableFile> file) {
  const std::string version = file->version();
  if (version.empty() || file->size() == 0) {
    return file;
  }
  std::string key;
  ByteWriter out(&key);
  out.String(name);
  out.String(version);
  out.U64(file->size());
  return std::make_unique<CachedFile>(store, Xxh3(AsByteSpan(key)), std::move(file));
}

// Errors are FailedPrecondition: an InvalidArgument of an open says that a name is none of a file,
// so that a checkpoint would seem to be absent.
Result<std::optional<CacheOptions>> ReadCacheOptions(const Environment& environment) {
  const auto directory = environment("VARVE_CACHE_DIR");
  if (!directory) {
    return std::optional<CacheOptions>();
  }
  if (!directory->starts_with('/')) {
    return FailedPrecondition("VARVE_CACHE_DIR=" + *directory + ": want an absolute path");
  }
  constexpr std::int64_t kLeast = std::int64_t{64} << 20;
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  const auto bytes = NumberSetting(environment, "VARVE_CACHE_BYTES", kLeast, kMost, "bytes");
  if (!bytes.ok()) {
    return FailedPrecondition(bytes.status().message());
  }
  CacheOptions options{.directory = *directory};
  options.max_bytes = *bytes ? static_cast<std::uint64_t>(**bytes) : options.max_bytes;
  return std::optional(std::move(options));
}

Result<BlockStore*> ProcessBlockStore() {
  struct Opened {
    std::mutex mutex;
    bool known = false;  // Guarded by it, as all below.
    std::unique_ptr<BlockStore> store;
  };
  static auto& of_process = *new OfProcess<Opened>();
  Opened& opened = of_process.Get();
  const std::scoped_lock lock(opened.mutex);
  if (!opened.known) {  // Options that could not be used may have been put right.
    VARVE_ASSIGN_OR_RETURN(auto options, ReadCacheOptions(ProcessEnvironment));
    opened.known = true;
    opened.store = options ? std::make_unique<BlockStore>(*std::move(options)) : nullptr;
  }
  return opened.store.get();
}

}  // namespace varve::cache
