/// Memory in pages of 2 MiB: where it must lie, and how shared memory gets it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace varve {

inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;

/// Maps `bytes` at an address that huge pages can have, and no memory yet: of the file `fd`,
/// shared, from its beginning; anonymous memory if `fd` is -1. `protection` as mmap takes it. For
/// munmap, with the same size. Null, and errno, when the system refuses.
std::byte* MapForHugePages(std::uint64_t bytes, int protection, int fd);

/// Takes pages for memory that was mapped by MapForHugePages and never used: as large as the system
/// gives them. Its content is nobody's.
void TakePages(std::span<std::byte> memory);

/// How shared memory got its pages.
enum class PagesTaken : std::uint8_t {
  kHuge,
  kSmall,
  kSmallForGood,  ///< The system has no huge pages for shared memory: asking again is no use.
};

/// The same for shared memory, in huge pages if it can be had. `memory` begins and ends at
/// multiples of kHugePageBytes. With `small`, does not try.
///
/// Linux gives shared memory small pages by default, whatever is advised (`shmem_enabled`). Since
/// 6.1 MADV_COLLAPSE puts memory that has a page into a huge one all the same, unless the setting
/// is `deny`; it is refused where nothing is mapped, so the first page of each is touched before.
/// Measured, GiB by GiB: 2.9 and 1.3 s so, 4.2 and 1.6 s page by page.
PagesTaken TakeSharedPages(std::span<std::byte> memory, bool small);

}  // namespace varve
