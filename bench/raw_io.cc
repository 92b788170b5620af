// raw_io: the machine's own speed, without a checkpoint.
//
// Varve's speed is stated as a ratio to plain programs that move the same bytes and know nothing
// else. This file is those programs, and nothing more:
//
//   write      O_DIRECT writer: create, fallocate, `in-flight` threads that each pwrite the next
//              block, fdatasync. The time runs from open to the end of fdatasync.
//   read       O_DIRECT reader of the same shape. The time runs from open to the last block.
//   mmap-copy  copies a file out of a shared mapping into a buffer with `in-flight` threads. Its
//              time includes mmap, the page faults and munmap: any program that loads a file pays
//              them. The caller sees to it that the file is in the page cache.
//
// Buffers are aligned, filled with incompressible bytes and touched before the clock starts: the
// first touch of memory costs many times its reuse and would be the only thing measured.
//
// Usage: raw_io write|read|mmap-copy --path FILE [--bytes N] [--block N] [--in-flight N]
//        [--repeat N] [--keep]
// Prints one JSON line per repetition. `write` removes its file after each, except that --keep
// leaves the last. Without --bytes, `read` and `mmap-copy` take the whole file.

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

namespace {

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

[[noreturn]] void Fail(std::string_view action, const std::string& path, int error) {
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
Buffer WarmBuffer(std::uint64_t bytes, std::uint64_t seed) {
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

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double WallSeconds() {
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

std::uint64_t FileBytes(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    Fail("stat", path, errno);
  }
  return static_cast<std::uint64_t>(info.st_size);
}

/// Calls `move(worker, offset, length)` for every block of [0, bytes), from `in_flight` threads,
/// each of which takes the next block when it is free. `move` returns 0 or an errno; the first
/// error wins.
int ForEachBlock(const Options& options,
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

std::vector<Buffer> BlockBuffers(const Options& options) {
  std::vector<Buffer> buffers;
  buffers.reserve(options.in_flight);
  for (unsigned worker = 0; worker < options.in_flight; ++worker) {
    buffers.push_back(WarmBuffer(options.block_bytes, worker + 1));
  }
  return buffers;
}

Timing WriteOnce(const Options& options, const std::vector<Buffer>& buffers) {
  const Stopwatch watch;
  const File file(options.path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT);
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(options.bytes)) != 0) {
    Fail("fallocate", options.path, errno);
  }
  const int error =
      ForEachBlock(options, [&](unsigned worker, std::uint64_t offset, std::uint64_t length) {
        for (std::uint64_t done = 0; done < length;) {
          const ssize_t n = ::pwrite(file.get(), buffers[worker].get() + done, length - done,
                                     static_cast<off_t>(offset + done));
          if (n < 0) {
            return errno;
          }
          done += static_cast<std::uint64_t>(n);
        }
        return 0;
      });
  if (error != 0) {
    Fail("write", options.path, error);
  }
  const double before_sync = watch.Elapsed().seconds;
  if (::fdatasync(file.get()) != 0) {
    Fail("fdatasync", options.path, errno);
  }
  Timing timing = watch.Elapsed();
  timing.sync_seconds = timing.seconds - before_sync;
  return timing;
}

Timing ReadOnce(const Options& options, const std::vector<Buffer>& buffers) {
  const Stopwatch watch;
  const File file(options.path, O_RDONLY | O_DIRECT);
  const int error =
      ForEachBlock(options, [&](unsigned worker, std::uint64_t offset, std::uint64_t length) {
        // The last block may end inside a page; a direct read asks for whole pages and is cut short
        // by the end of the file.
        const std::uint64_t aligned = (length + kAlignment - 1) / kAlignment * kAlignment;
        for (std::uint64_t done = 0; done < length;) {
          const ssize_t n = ::pread(file.get(), buffers[worker].get() + done, aligned - done,
                                    static_cast<off_t>(offset + done));
          if (n <= 0) {
            return n < 0 ? errno : ENODATA;
          }
          done += static_cast<std::uint64_t>(n);
        }
        return 0;
      });
  if (error != 0) {
    Fail("read", options.path, error);
  }
  return watch.Elapsed();
}

Timing MmapCopyOnce(const Options& options, std::uint8_t* destination) {
  const Stopwatch watch;
  const File file(options.path, O_RDONLY);
  void* mapping = ::mmap(nullptr, options.bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) {
    Fail("mmap", options.path, errno);
  }
  const auto* source = static_cast<const std::uint8_t*>(mapping);
  ForEachBlock(options, [&](unsigned, std::uint64_t offset, std::uint64_t length) {
    std::memcpy(destination + offset, source + offset, length);
    return 0;
  });
  ::munmap(mapping, options.bytes);
  return watch.Elapsed();
}

void Print(const Options& options, const Timing& timing) {
  std::printf(
      "{\"mode\": \"%s\", \"seconds\": %.6f, \"bytes\": %llu, \"cpu_seconds\": %.6f, "
      "\"sync_seconds\": %.6f, \"block_bytes\": %llu, \"in_flight\": %u}\n",
      options.mode.c_str(), timing.seconds, static_cast<unsigned long long>(options.bytes),
      timing.cpu_seconds, timing.sync_seconds, static_cast<unsigned long long>(options.block_bytes),
      options.in_flight);
  std::fflush(stdout);
}

[[noreturn]] void Usage(const char* problem) {
  std::fprintf(stderr,
               "raw_io: %s\nusage: raw_io write|read|mmap-copy --path FILE [--bytes N] [--block N] "
               "[--in-flight N] [--repeat N] [--keep]\n",
               problem);
  std::_Exit(2);
}

std::uint64_t ParseCount(const char* text) {
  char* end = nullptr;
  errno = 0;
  const std::uint64_t value = std::strtoull(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value == 0) {
    Usage("numbers are positive decimal integers");
  }
  return value;
}

Options Parse(int argc, char** argv) {
  if (argc < 2) {
    Usage("no mode given");
  }
  Options options{.mode = argv[1], .path = {}};
  for (int i = 2; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--keep") {
      options.keep = true;
      continue;
    }
    if (++i == argc) {
      Usage("an option lacks its value");
    }
    if (name == "--path") {
      options.path = argv[i];
    } else if (name == "--bytes") {
      options.bytes = ParseCount(argv[i]);
    } else if (name == "--block") {
      options.block_bytes = ParseCount(argv[i]);
    } else if (name == "--in-flight") {
      options.in_flight = static_cast<unsigned>(ParseCount(argv[i]));
    } else if (name == "--repeat") {
      options.repeat = static_cast<unsigned>(ParseCount(argv[i]));
    } else {
      Usage("unknown option");
    }
  }
  if (options.path.empty()) {
    Usage("--path is required");
  }
  if (options.block_bytes % kAlignment != 0) {
    Usage("--block must be a multiple of 4096");
  }
  return options;
}

void RunWrite(const Options& options) {
  if (options.bytes == 0 || options.bytes % kAlignment != 0) {
    Usage("write needs --bytes, a multiple of 4096");
  }
  const std::vector<Buffer> buffers = BlockBuffers(options);
  for (unsigned i = 0; i < options.repeat; ++i) {
    Print(options, WriteOnce(options, buffers));
    if (!options.keep || i + 1 < options.repeat) {
      ::unlink(options.path.c_str());
    }
  }
}

void RunRead(const Options& options) {
  const std::vector<Buffer> buffers = BlockBuffers(options);
  for (unsigned i = 0; i < options.repeat; ++i) {
    Print(options, ReadOnce(options, buffers));
  }
}

void RunMmapCopy(const Options& options) {
  const Buffer destination = WarmBuffer(options.bytes, 1);
  for (unsigned i = 0; i < options.repeat; ++i) {
    Print(options, MmapCopyOnce(options, destination.get()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options = Parse(argc, argv);
  if (options.mode != "write") {
    const std::uint64_t file_bytes = FileBytes(options.path);
    options.bytes = options.bytes == 0 ? file_bytes : options.bytes;
    if (options.bytes == 0 || options.bytes > file_bytes) {
      Usage("--bytes exceeds the file");
    }
  }
  if (options.mode == "write") {
    RunWrite(options);
  } else if (options.mode == "read") {
    RunRead(options);
  } else if (options.mode == "mmap-copy") {
    RunMmapCopy(options);
  } else {
    Usage("unknown mode");
  }
  return 0;
}
