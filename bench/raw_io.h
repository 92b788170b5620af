// Parts of all modes of raw_io: files, warm memory in huge pages, clocks, and threads that take
// blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace raw_io {

// O_DIRECT wants memory, offset and length aligned to the device's logical block. 4096 covers every
// device in use and is Varve's own alignment.
constexpr std::uint64_t kAlignment = 4096;

struct Options {
  std::string mode;
  std::string path;
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = std::uint64_t{8} << 20;
  unsigned in_flight = 8;
  unsigned repeat = 1;
  bool keep = false;
};

struct Timing {
  double seconds = 0;
  double cpu_seconds = 0;
  double sync_seconds = 0;  // The part of `seconds` spent in fdatasync; writer only.
};

[[noreturn]] inline void Fail(std::string_view action, const std::string& path, int error) {
  std::fprintf(stderr, "raw_io: %.*s %s: %s\n", static_cast<int>(action.size()), action.data(),
               path.c_str(), std::generic_category().message(error).c_str());
  std::_Exit(1);  // Every printed line has been flushed.
}

/// A file descriptor that closes itself. Never empty: a file that cannot be opened ends the
/// program.
class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) {
      Fail("open", path, errno);
    }
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1; Debian 12's headers do not have it.

struct FreeDeleter {
  void operator()(std::uint8_t* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::uint8_t, FreeDeleter>;

/// Returns `bytes` of aligned memory in huge pages where the kernel gives them, every page of it
/// touched. Of small pages O_DIRECT makes a list of thousands for each block, which costs a third
/// of a fast disk's speed. The content is a xorshift stream, which no layer below can store as
/// zeros or compress.
inline Buffer WarmBuffer(std::uint64_t bytes, std::uint64_t seed) {
  const std::uint64_t room = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = nullptr;
  if (const int error = ::posix_memalign(&memory, kHugePage, room); error != 0) {
    Fail("allocate", "buffer", error);
  }
  Buffer buffer(static_cast<std::uint8_t*>(memory));
  (void)::madvise(memory, room, MADV_HUGEPAGE);  // Where it is refused, the pages are small.
  std::memset(memory, 1, room);
  (void)::madvise(memory, room, kCollapse);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (std::uint64_t i = 0; i + sizeof(state) <= bytes; i += sizeof(state)) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    std::memcpy(buffer.get() + i, &state, sizeof(state));
  }
  return buffer;
}

inline double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

inline double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Wall and CPU time (all threads, user and system) since construction.
class Stopwatch {
 public:
  Stopwatch() : wall_(WallSeconds()), cpu_(CpuSeconds()) {}
  [[nodiscard]] Timing Elapsed() const {
    return {.seconds = WallSeconds() - wall_, .cpu_seconds = CpuSeconds() - cpu_};
  }

 private:
  double wall_;
  double cpu_;
};

inline std::uint64_t FileBytes(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    Fail("stat", path, errno);
  }
  return static_cast<std::uint64_t>(info.st_size);
}

/// Reads [offset, offset + length) of a file; returns 0 or an errno.
inline int ReadAt(int fd, std::uint8_t* to, std::uint64_t length, std::uint64_t offset) {
  for (std::uint64_t done = 0; done < length;) {
    const ssize_t n = ::pread(fd, to + done, length - done, static_cast<off_t>(offset + done));
    if (n <= 0) {
      return n < 0 ? errno : ENODATA;
    }
    done += static_cast<std::uint64_t>(n);
  }
  return 0;
}

/// Calls `move(worker, offset, length)` for every block of [0, bytes), from `in_flight` threads,
/// each of which takes the next block when it is free. `move` returns 0 or an errno; the first
/// error wins.
inline int ForEachBlock(const Options& options,
                        const std::function<int(unsigned, std::uint64_t, std::uint64_t)>& move) {
  std::atomic<std::uint64_t> next{0};
  std::atomic<int> first_error{0};
  const auto work = [&](unsigned worker) {
    while (first_error.load() == 0) {
      const std::uint64_t offset = next.fetch_add(options.block_bytes);
      if (offset >= options.bytes) {
        return;
      }
      const std::uint64_t length = std::min(options.block_bytes, options.bytes - offset);
      if (const int error = move(worker, offset, length); error != 0) {
        int expected = 0;
        first_error.compare_exchange_strong(expected, error);
      }
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(options.in_flight);
  for (unsigned worker = 0; worker < options.in_flight; ++worker) {
    threads.emplace_back(work, worker);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return first_error.load();
}

}  // namespace raw_io
