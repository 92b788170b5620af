// The limits of this machine that targets are ratios to: copies, checksums and reads of warm
// memory.
//
// Each is measured with one thread and with a thread per core, in turns, on memory in huge pages
// that has been written to. Threads take pieces of 8 MiB, as the parallel memcpy of bench/ does.
// A figure counts each byte once, though a copy reads and writes it.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <fcntl.h>
#include <unistd.h>
#ifdef RAW_IO_CHECKSUMS  // The engine's libraries, where they are installed.
#include <isa-l/crc.h>
#include <xxh_x86dispatch.h>
#endif

#include "raw_io.h"

namespace raw_io {

struct Limit {
  const char* name;
  std::uint64_t bytes;
  /// Moves or sums the piece [offset, offset + length); returns 0 or an errno.
  std::function<int(std::uint64_t offset, std::uint64_t length)> piece;
};

#ifdef __SSE2__
/// Copies with stores that bypass the cache, so that the destination is not read first.
/// Requires: both aligned to 64 bytes, a multiple of 64 long.
inline void StreamCopy(std::uint8_t* destination, const std::uint8_t* source,
                       std::uint64_t length) {
  for (std::uint64_t at = 0; at < length; at += 64) {
    const auto* from = reinterpret_cast<const __m128i*>(source + at);
    auto* to = reinterpret_cast<__m128i*>(destination + at);
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(to + i, _mm_load_si128(from + i));
    }
  }
  _mm_sfence();
}
#endif

/// Writes `bytes` of `data` to `path`, and leaves them in the page cache as a reader does.
inline void WriteCached(const std::string& path, std::uint8_t* data, std::uint64_t bytes) {
  const File file(path, O_RDWR | O_CREAT | O_TRUNC);
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(file.get(), data + done, bytes - done, static_cast<off_t>(done));
    if (n < 0) {
      Fail("write", path, errno);
    }
    done += static_cast<std::uint64_t>(n);
  }
  if (::fdatasync(file.get()) != 0) {
    Fail("sync", path, errno);
  }
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (const int error = ReadAt(file.get(), data, bytes, 0); error != 0) {
    Fail("read", path, error);
  }
}

/// Returns the limits of memory: reading `bytes` at `from`, and copying them to `to`. Checksums are
/// added to `sums`, so that the compiler cannot leave them out.
inline std::vector<Limit> MemoryLimits(std::uint8_t* to, const std::uint8_t* from,
                                       std::uint64_t bytes,
                                       [[maybe_unused]] std::atomic<std::uint64_t>& sums) {
  std::vector<Limit> limits;
  limits.push_back({"memcpy", bytes, [=](std::uint64_t at, std::uint64_t length) {
                      std::memcpy(to + at, from + at, length);
                      return 0;
                    }});
#ifdef __SSE2__
  limits.push_back({"stream copy", bytes, [=](std::uint64_t at, std::uint64_t length) {
                      StreamCopy(to + at, from + at, length);
                      return 0;
                    }});
#endif
#ifdef RAW_IO_CHECKSUMS
  limits.push_back({"CRC-32C", bytes, [=, &sums](std::uint64_t at, std::uint64_t length) {
                      auto* data = const_cast<std::uint8_t*>(from + at);  // ISA-L only reads.
                      sums += crc32_iscsi(data, static_cast<int>(length), 0);
                      return 0;
                    }});
  limits.push_back({"XXH3", bytes, [=, &sums](std::uint64_t at, std::uint64_t length) {
                      sums += XXH3_64bits(from + at, length);
                      return 0;
                    }});
#endif
  return limits;
}

/// Measures `limit` once with `options.in_flight` threads and prints a JSON line.
inline void Measure(const Limit& limit, Options options) {
  options.bytes = limit.bytes;
  const Stopwatch watch;
  const int error = ForEachBlock(options, [&](unsigned, std::uint64_t at, std::uint64_t length) {
    return limit.piece(at, length);
  });
  if (error != 0) {
    Fail(limit.name, options.path, error);
  }
  std::printf("{\"limit\": \"%s\", \"threads\": %u, \"bytes\": %llu, \"seconds\": %.6f}\n",
              limit.name, options.in_flight, static_cast<unsigned long long>(limit.bytes),
              watch.Elapsed().seconds);
}

/// Prints one JSON line per limit, number of threads and repetition. The memory limits use
/// `options.bytes` twice; `options.path` is a file of half as many, which is removed.
inline void RunLimits(Options options) {
  const Buffer source = WarmBuffer(options.bytes, 1);
  const Buffer destination = WarmBuffer(options.bytes, 2);
  const std::uint64_t file_bytes = options.bytes / 2;
  WriteCached(options.path, source.get(), file_bytes);
  const File file(options.path, O_RDONLY);
  ::unlink(options.path.c_str());

  std::atomic<std::uint64_t> sums{0};
  std::uint8_t* const to = destination.get();
  std::vector<Limit> limits = MemoryLimits(to, source.get(), options.bytes, sums);
  limits.push_back({"pread", file_bytes, [=, &file](std::uint64_t at, std::uint64_t length) {
                      return ReadAt(file.get(), to + at, length, at);
                    }});
  std::vector<unsigned> threads{1};
  if (options.in_flight > 1) {
    threads.push_back(options.in_flight);
  }
  for (unsigned turn = 0; turn < options.repeat; ++turn) {
    for (const Limit& limit : limits) {
      for (const unsigned count : threads) {
        options.in_flight = count;
        Measure(limit, options);
      }
    }
  }
  std::fflush(stdout);
}

}  // namespace raw_io
