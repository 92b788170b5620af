#include "pipeline/kept_tail.h"

#include <algorithm>

namespace varve {
std::uint64_t BytesOf(KeptTail::Parts parts) {
  std::uint64_t size = 0;
  for (const std::span<std::byte> part : parts) {
    size += part.size();
  }
  return size;
}

void KeptTail::Begin(std::uint64_t max_bytes) {
  const std::scoped_lock lock(mutex_);
  max_bytes_ = max_bytes;
  bytes_ = {};
}

std::uint64_t KeptTail::Take(std::uint64_t offset, Parts parts) {
  if (max_bytes_ == 0) {
    return 0;
  }
  const std::scoped_lock lock(mutex_);
  if (offset < begin_ || offset - begin_ >= bytes_.size()) {
    return 0;
  }
  const std::span<const std::byte> kept = std::span(bytes_).subspan(offset - begin_);
  std::uint64_t taken = 0;
  for (const std::span<std::byte> part : parts) {
    const std::uint64_t size = std::min<std::uint64_t>(part.size(), kept.size() - taken);
    if (size == 0 && !part.empty()) {
      break;
    }
    std::copy_n(kept.begin() + static_cast<std::ptrdiff_t>(taken), size, part.begin());
    taken += size;
  }
  return taken;
}

void KeptTail::Keep(std::uint64_t offset, Parts parts) {
  const std::uint64_t most = max_bytes_;
  if (most == 0) {
    return;
  }
  const std::uint64_t size = BytesOf(parts);
  const std::uint64_t skipped = size - std::min(size, most);
  const std::scoped_lock lock(mutex_);
  bytes_.clear();
  bytes_.reserve(most);
  for (const std::span<std::byte> part : WithoutFirst(parts, skipped)) {
    bytes_.insert(bytes_.end(), part.begin(), part.end());
  }
  begin_ = offset + skipped;
}

bool KeptTail::Has(std::uint64_t offset, std::uint64_t size) {
  const std::scoped_lock lock(mutex_);
  return offset >= begin_ && offset - begin_ <= bytes_.size() &&
         size <= bytes_.size() - (offset - begin_);
}

bool KeptTail::Forget(std::uint64_t offset, std::uint64_t size) {
  const std::scoped_lock lock(mutex_);
  const bool had = offset < begin_ + bytes_.size() && begin_ < offset + size;
  if (had) {
    bytes_.clear();
  }
  return had;
}

std::vector<std::span<std::byte>> WithoutFirst(KeptTail::Parts parts, std::uint64_t bytes) {
  std::vector<std::span<std::byte>> rest;
  for (const std::span<std::byte> part : parts) {
    const std::uint64_t skipped = std::min<std::uint64_t>(part.size(), bytes);
    bytes -= skipped;
    if (skipped < part.size()) {
      rest.push_back(part.subspan(skipped));
    }
  }
  return rest;
}

}  // namespace varve
