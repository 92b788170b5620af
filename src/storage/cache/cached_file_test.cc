#include "storage/cache/cached_file.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "base/bytes.h"
#include "storage/server_file.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::cache::cached_file_test {
namespace {

namespace fs = std::filesystem;
using test::FailsWith;
using test::IsOk;
using test::TempDir;

constexpr std::uint64_t kBlock = 1000;
constexpr std::uint64_t kGroup = 4;

/// A file of a server, which counts what is asked of it.
struct Remote {
  std::string content;
  std::string version = "\"1\"";
  std::atomic<int> requests = 0;
  std::atomic<std::uint64_t> bytes = 0;
  std::chrono::milliseconds delay{0};

  class File final : public ServerFile {
   public:
    explicit File(Remote& remote) : remote_(remote), version_(remote.version) {}
    [[nodiscard]] std::uint64_t size() const override { return remote_.content.size(); }
    [[nodiscard]] std::string version() const override { return version_; }
    Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
      ++remote_.requests;
      std::this_thread::sleep_for(remote_.delay);
      for (const std::span<std::byte> part : parts) {
        if (offset + part.size() > remote_.content.size()) {
          return DataLoss("ends early");
        }
        std::copy_n(AsByteSpan(remote_.content).begin() + static_cast<std::ptrdiff_t>(offset),
                    part.size(), part.begin());
        offset += part.size();
        remote_.bytes += part.size();
      }
      return Status::Ok();
    }

   private:
    Remote& remote_;
    const std::string version_;
  };
  std::unique_ptr<ReadableFile> Open() { return std::make_unique<File>(*this); }
};

std::string Random(std::size_t size, unsigned int seed = 1) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  std::generate(text.begin(), text.end(), [&] { return static_cast<char>(random()); });
  return text;
}

class Caches : public testing::Test {
 protected:
  Caches() { remote_.content = Random(10'500); }

  CacheOptions Options(std::uint64_t max_bytes = 1 << 20) {
    return {.directory = place_ / "cache",
            .max_bytes = max_bytes,
            .block_bytes = kBlock,
            .group_blocks = kGroup};
  }
  /// Reads by a store of its own, as another process would.
  std::string Read(std::uint64_t offset, std::uint64_t size, std::uint64_t max_bytes = 1 << 20) {
    BlockStore store(Options(max_bytes));
    const auto file = ReadThrough(store, "https://h/f", remote_.Open());
    std::string text(size, '\0');
    const auto whole = std::as_writable_bytes(std::span(text.data(), text.size()));
    const std::array parts{whole.first(size / 3), whole.subspan(size / 3)};
    EXPECT_TRUE(IsOk(file->ReadAt(offset, parts)));
    return text;
  }
  std::vector<fs::path> Blocks() {
    std::vector<fs::path> blocks;
    for (const auto& entry : fs::recursive_directory_iterator(place_ / "cache")) {
      if (entry.is_regular_file() && entry.path().string().find("/locks/") == std::string::npos) {
        blocks.push_back(entry.path());
      }
    }
    return blocks;
  }

  TempDir place_;
  Remote remote_;
};

TEST_F(Caches, AnyRangeIsReadAndTheSecondTimeNothingIsFetched) {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t offset = random() % (remote_.content.size() + 1);
    const std::uint64_t size = random() % (remote_.content.size() - offset + 1);
    EXPECT_EQ(Read(offset, size), remote_.content.substr(offset, size));
  }
  Read(0, remote_.content.size());
  const int before = remote_.requests;
  EXPECT_EQ(Read(0, remote_.content.size()), remote_.content);
  EXPECT_EQ(remote_.requests, before);
  EXPECT_LE(remote_.bytes, remote_.content.size());  // No block came twice.
}

TEST_F(Caches, OnlyBlocksThatAReadTouchesAreFetchedAndNeighboursAtOnce) {
  Read(1999, 2);
  EXPECT_EQ(remote_.bytes, 2 * kBlock);
  EXPECT_EQ(remote_.requests, 1);
  Read(10'499, 1);
  EXPECT_EQ(remote_.bytes, 2 * kBlock + 500);  // The last block is shorter.
}

TEST_F(Caches, AReplacedObjectNeverServesOldBytes) {
  EXPECT_EQ(Read(0, 3000), remote_.content.substr(0, 3000));
  remote_.content = Random(10'500, 7);
  remote_.version = "\"2\"";
  EXPECT_EQ(Read(0, 3000), remote_.content.substr(0, 3000));
  remote_.content.resize(9000);  // A server that tells the same version of another size.
  EXPECT_EQ(Read(8500, 500), remote_.content.substr(8500));
}

TEST_F(Caches, WhatHasNoVersionIsNotKept) {
  remote_.version.clear();
  Read(0, 100);
  Read(0, 100);
  EXPECT_EQ(remote_.requests, 2);
  EXPECT_TRUE(Blocks().empty());
}

TEST_F(Caches, EveryFlippedByteAndEveryCutIsFoundAndFetchedAgain) {
  Read(0, kBlock);
  const fs::path block = Blocks().at(0);
  const std::uint64_t size = fs::file_size(block);
  ASSERT_EQ(size, kBlock + kBlockHeaderBytes);
  for (std::uint64_t at = 0; at < size; at += at < kBlockHeaderBytes ? 1 : 37) {
    {
      std::fstream file(block, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte ^ 0x10));
    }
    const int before = remote_.requests;
    ASSERT_EQ(Read(0, kBlock), remote_.content.substr(0, kBlock)) << at;
    ASSERT_EQ(remote_.requests, before + 1) << at;
    fs::resize_file(block, at);
    ASSERT_EQ(Read(0, kBlock), remote_.content.substr(0, kBlock)) << at;
    ASSERT_EQ(remote_.requests, before + 2) << at;
  }
}

TEST_F(Caches, WhatTheReaderFindsWrongIsForgotten) {
  Read(0, 5 * kBlock);
  BlockStore store(Options());
  const auto file = ReadThrough(store, "https://h/f", remote_.Open());
  EXPECT_TRUE(file->Forget(kBlock + 1, kBlock));
  EXPECT_FALSE(file->Forget(kBlock, 2 * kBlock));
  EXPECT_FALSE(file->Forget(9 * kBlock, 5 * kBlock));
  const std::uint64_t before = remote_.bytes;
  EXPECT_EQ(Read(0, 5 * kBlock), remote_.content.substr(0, 5 * kBlock));
  EXPECT_EQ(remote_.bytes - before, 2 * kBlock);
}

TEST_F(Caches, ABlockUnderAnotherBlocksNameIsNotTaken) {
  Read(0, 2 * kBlock);
  const auto blocks = Blocks();
  ASSERT_EQ(blocks.size(), 2U);
  fs::copy_file(blocks[0], blocks[1], fs::copy_options::overwrite_existing);
  EXPECT_EQ(Read(0, 2 * kBlock), remote_.content.substr(0, 2 * kBlock));
}

TEST_F(Caches, ThreadsThatWantOneBlockFetchItOnce) {
  remote_.delay = std::chrono::milliseconds(50);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(Read(0, 3500), remote_.content.substr(0, 3500)); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(remote_.requests, 1);
}

TEST_F(Caches, WhoHasWaitedLongEnoughFetchesToo) {
  CacheOptions options = Options();
  options.time_limit = std::chrono::milliseconds(10);
  BlockStore store(options);
  const auto file = ReadThrough(store, "https://h/f", remote_.Open());
  std::vector<FileDescriptor> locks;
  for (std::uint64_t i = 0; i < 1024; ++i) {  // All groups: somebody fetches for ever.
    const std::string name =
        (fs::path(place_ / "cache") / "varve-blocks-1/locks").string() + "/" + std::to_string(i);
    locks.emplace_back(::open(name.c_str(), O_RDWR | O_CREAT, 0600));
    ASSERT_EQ(::flock(locks.back().get(), LOCK_EX | LOCK_NB), 0);
  }
  std::string text(kBlock, '\0');
  EXPECT_TRUE(IsOk(static_cast<ReadableFile&>(*file).ReadAt(
      0, std::as_writable_bytes(std::span(text.data(), text.size())))));
  EXPECT_EQ(text, remote_.content.substr(0, kBlock));
}

TEST_F(Caches, TheDirectoryStaysBelowItsLimitAndTheLongestUnusedGo) {
  constexpr std::uint64_t kMost = 64 * (kBlock + kBlockHeaderBytes);
  remote_.content = Random(200 * kBlock);
  for (std::uint64_t i = 0; i < 200; ++i) {
    Read(i * kBlock, kBlock, kMost);
    Read(0, kBlock, kMost);  // The first block is used all the time.
    std::uint64_t bytes = 0;
    for (const fs::path& block : Blocks()) {
      bytes += fs::file_size(block);
    }
    ASSERT_LE(bytes, kMost) << i;
  }
  const int before = remote_.requests;
  Read(0, kBlock, kMost);
  EXPECT_EQ(remote_.requests, before);
  Read(kBlock, kBlock, kMost);
  EXPECT_EQ(remote_.requests, before + 1);
}

TEST_F(Caches, ForgottenTemporaryFilesAreRemovedAndFreshOnesStay) {
  Read(0, kBlock);
  const fs::path folder = Blocks().at(0).parent_path();
  std::ofstream(folder / ".new-1-2-3") << "torn";
  std::ofstream(folder / ".new-1-2-4") << "torn";
  fs::last_write_time(folder / ".new-1-2-3",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  BlockStore(Options()).Shrink();
  EXPECT_FALSE(fs::exists(folder / ".new-1-2-3"));
  EXPECT_TRUE(fs::exists(folder / ".new-1-2-4"));
}

TEST_F(Caches, ADirectoryThatOthersMayWriteToIsNotUsed) {
  fs::create_directories(place_ / "cache/varve-blocks-1");
  fs::permissions(place_ / "cache/varve-blocks-1", fs::perms::all);
  EXPECT_EQ(Read(0, 100), remote_.content.substr(0, 100));
  EXPECT_TRUE(Blocks().empty());
}

TEST_F(Caches, AFileInPlaceOfTheDirectoryIsNoError) {
  std::ofstream(place_ / "cache") << "a file";
  EXPECT_EQ(Read(0, 100), remote_.content.substr(0, 100));
  BlockStore store(Options());
  EXPECT_FALSE(store.usable());
}

TEST_F(Caches, ErrorsOfTheServerAreItsReaders) {
  BlockStore store(Options());
  const auto file = ReadThrough(store, "https://h/f", remote_.Open());
  std::string text(100, '\0');
  EXPECT_EQ(static_cast<ReadableFile&>(*file)
                .ReadAt(10'450, std::as_writable_bytes(std::span(text.data(), text.size())))
                .code(),
            StatusCode::kDataLoss);
}

TEST(CacheOptionsOf, TheEnvironmentSwitchesItOn) {
  std::map<std::string, std::string> variables;
  const Environment environment = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::optional<std::string>() : found->second;
  };
  EXPECT_FALSE(ReadCacheOptions(environment).value().has_value());
  variables["VARVE_CACHE_DIR"] = "/cache";
  EXPECT_EQ(ReadCacheOptions(environment).value()->max_bytes, std::uint64_t{64} << 30);
  variables["VARVE_CACHE_BYTES"] = "100000000";
  EXPECT_EQ(ReadCacheOptions(environment).value()->max_bytes, 100'000'000U);
  variables["VARVE_CACHE_BYTES"] = "1000";
  EXPECT_TRUE(FailsWith(ReadCacheOptions(environment), StatusCode::kFailedPrecondition,
                        {"VARVE_CACHE_BYTES", "67108864"}));
  variables["VARVE_CACHE_BYTES"] = "100000000";
  variables["VARVE_CACHE_DIR"] = "cache";
  EXPECT_TRUE(
      FailsWith(ReadCacheOptions(environment), StatusCode::kFailedPrecondition, {"absolute"}));
}

}  // namespace
}  // namespace varve::cache::cached_file_test
