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
//   pread-copy reads a cached file into such a buffer with `in-flight` threads, from open to close.
//   limits     copies, checksums and reads of warm memory, with one thread and with `in-flight`
//              (raw_limits.h). FILE is made and removed; --bytes is the memory to copy.
//
// Buffers are aligned, filled with incompressible bytes and touched before the clock starts: the
// first touch of memory costs many times its reuse and would be the only thing measured.
//
// Usage: raw_io write|read|mmap-copy|pread-copy|limits --path FILE [--bytes N] [--block N]
//        [--in-flight N] [--repeat N] [--keep]
// Prints one JSON line per repetition. `write` removes its file after each, except that --keep
// leaves the last. Without --bytes, those that read take the whole file.

#include "raw_io.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "raw_limits.h"

namespace raw_io {
namespace {

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

Timing PreadCopyOnce(const Options& options, std::uint8_t* destination) {
  const Stopwatch watch;
  const File file(options.path, O_RDONLY);
  const int error =
      ForEachBlock(options, [&](unsigned, std::uint64_t offset, std::uint64_t length) {
        return ReadAt(file.get(), destination + offset, length, offset);
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
               "raw_io: %s\nusage: raw_io write|read|mmap-copy|pread-copy|limits --path FILE "
               "[--bytes N] [--block N] [--in-flight N] [--repeat N] [--keep]\n",
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

void RunCopy(const Options& options,
             const std::function<Timing(const Options&, std::uint8_t*)>& once) {
  const Buffer destination = WarmBuffer(options.bytes, 1);
  for (unsigned i = 0; i < options.repeat; ++i) {
    Print(options, once(options, destination.get()));
  }
}

}  // namespace

void Main(int argc, char** argv) {
  Options options = Parse(argc, argv);
  if (options.mode == "write" || options.mode == "limits") {
    if (options.bytes == 0 || options.bytes % kAlignment != 0) {
      Usage("write and limits need --bytes, a multiple of 4096");
    }
  } else {
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
    RunCopy(options, MmapCopyOnce);
  } else if (options.mode == "pread-copy") {
    RunCopy(options, PreadCopyOnce);
  } else if (options.mode == "limits") {
    RunLimits(options);
  } else {
    Usage("unknown mode");
  }
}

}  // namespace raw_io

int main(int argc, char** argv) {
  raw_io::Main(argc, argv);
  return 0;
}
