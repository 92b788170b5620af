/// What files of servers have in common: every read is a request, and no page of theirs is cached.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "varve/storage.h"

namespace varve {

class ServerFile : public ReadableFile {
 public:
  using ReadableFile::ReadAt;

  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t /*capacity*/) final {
    const std::span<std::byte> whole(buffer, size);
    return ReadAt(offset, std::span(&whole, 1));
  }

  [[nodiscard]] bool IsRemote() const final { return true; }

  [[nodiscard]] bool IsCached(std::uint64_t /*offset*/, std::uint64_t /*size*/) final {
    return false;
  }

 protected:
  /// Returns DataLoss where `parts` from `offset` on reach beyond the end of the file `name`.
  Status CheckRange(const std::string& name, std::uint64_t offset,
                    std::span<const std::span<std::byte>> parts) const {
    std::uint64_t bytes = 0;
    for (const std::span<std::byte> part : parts) {
      bytes += part.size();
    }
    return offset <= size() && bytes <= size() - offset
               ? Status::Ok()
               : DataLoss(name + ": ends at byte " + std::to_string(size()) + ", before the " +
                          std::to_string(bytes) + " bytes wanted at " + std::to_string(offset));
  }
};

}  // namespace varve
