/// Files in memory, and a file whose way of being read a test chooses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>

#include <gtest/gtest.h>

#include "varve/storage.h"

namespace varve::test {

/// Keeps what is written; fails from the `fail_from`-th write on. Checks the alignment that a
/// direct file asks for. `mutex` guards `content` and `writes`.
class MemoryFile final : public WritableFile {
 public:
  explicit MemoryFile(bool direct = false) : direct_(direct) {}

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    const std::scoped_lock lock(mutex);
    if (++writes > fail_from) {
      return {StatusCode::kOutOfSpace, "write " + std::to_string(writes) + " refused"};
    }
    if (direct_) {
      EXPECT_EQ(offset % kDirectAlignment, 0U);
      EXPECT_EQ(data.size() % kDirectAlignment, 0U);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data.data()) % kDirectAlignment, 0U);
    }
    if (content.size() < offset + data.size()) {
      content.resize(offset + data.size(), '\x5A');
    }
    std::memcpy(content.data() + offset, data.data(), data.size());
    return Status::Ok();
  }

  Status Sync(std::uint64_t size) override {
    content.resize(size);
    return Status::Ok();
  }

  [[nodiscard]] bool direct() const override { return direct_; }

  std::mutex mutex;
  std::string content;
  std::uint64_t writes = 0;
  std::uint64_t fail_from = std::numeric_limits<std::uint64_t>::max();

 private:
  bool direct_;
};

/// Reads from another file, but decides itself whether the bytes are cached, and counts reads.
class ChosenWayFile final : public ReadableFile {
 public:
  ChosenWayFile(std::unique_ptr<ReadableFile> file, bool cached)
      : file_(std::move(file)), cached_(cached) {}

  [[nodiscard]] std::uint64_t size() const override { return file_->size(); }
  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    ++cached_reads;
    return file_->ReadAt(offset, parts);
  }
  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t capacity) override {
    ++uncached_reads;
    return file_->ReadUncached(offset, buffer, size, capacity);
  }
  [[nodiscard]] bool IsCached(std::uint64_t /*offset*/, std::uint64_t /*size*/) override {
    return cached_;
  }

  std::atomic<int> cached_reads{0};
  std::atomic<int> uncached_reads{0};

 private:
  std::unique_ptr<ReadableFile> file_;
  bool cached_;
};

}  // namespace varve::test
