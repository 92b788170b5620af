/// The last bytes that were read of a file, for a reader that takes files in order and of each a
/// little at a time: reads are of whole checksum blocks, and the next one begins with the rest of
/// the block in which the last one ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace varve {

/// Threads: safe to call concurrently.
class KeptTail {
 public:
  using Parts = std::span<const std::span<std::byte>>;

  /// Keeps at most `max_bytes` from now on, as a rule those of a block. Forgets what is kept. Until
  /// the first call nothing is kept.
  void Begin(std::uint64_t max_bytes);

  /// Fills the beginning of `parts`, which lie at `offset` in the file, with what is kept. Returns
  /// of how many bytes; 0 where the one at `offset` is not kept.
  std::uint64_t Take(std::uint64_t offset, Parts parts);

  /// Keeps the end of `parts`, which were read at `offset`, in place of what was kept.
  void Keep(std::uint64_t offset, Parts parts);

  /// Returns true where all bytes of the range are kept.
  [[nodiscard]] bool Has(std::uint64_t offset, std::uint64_t size);

  /// Forgets what is kept if it has bytes of the range. Returns true where it had.
  bool Forget(std::uint64_t offset, std::uint64_t size);

 private:
  std::atomic<std::uint64_t> max_bytes_{0};
  std::mutex mutex_;  // Guards what follows.
  std::uint64_t begin_ = 0;
  std::vector<std::byte> bytes_;
};

/// Returns the sum of the sizes of `parts`.
std::uint64_t BytesOf(KeptTail::Parts parts);

/// Returns `parts` without their first `bytes`.
std::vector<std::span<std::byte>> WithoutFirst(KeptTail::Parts parts, std::uint64_t bytes);

}  // namespace varve
