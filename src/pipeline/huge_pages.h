/// Memory in pages of 2 MiB: its alignment, and how shared memory gets such pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace varve {

inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;

/// Maps `bytes` at an address that huge pages can have, and no memory yet: Maps the file `fd`,
/// shared, from its beginning; anonymous memory if `fd` is -1. `protection` as mmap takes it. The
/// caller calls munmap with the same size. Returns null and sets errno when the system refuses.
std::byte* MapForHugePages(std::uint64_t bytes, int protection, int fd);

/// Takes pages for memory that was mapped by MapForHugePages and never used: as large as the system
/// gives them. Its content is undefined afterwards.
void TakePages(std::span<std::byte> memory);

/// Takes huge pages for shared memory. Returns false where the system has none for it, now or at
/// all; parts may have pages then. Requires: `memory` begins and ends at multiples of
/// kHugePageBytes, and huge pages have been advised for it.
///
/// Linux gives shared memory small pages by default, whatever is advised (`shmem_enabled`). Since
/// 6.1 MADV_COLLAPSE makes huge ones of them all the same, unless the setting is `deny`; it is
/// refused where the file has no page yet, so the first of each is touched before. Before 6.1 the
/// setting decides. A refusal may take long, as the system looks for memory in one piece.
/// Measured, 1 GiB: 2.9 s so and 4.2 s page by page; memory that the hypervisor had given out
/// before, 1.3 s and 1.6 s.
bool TakeHugeSharedPages(std::span<std::byte> memory);

/// Has pages of memory that has none yet taken from that NUMA node, as long as it has some. Returns
/// false where the system refuses.
bool PreferNode(std::span<std::byte> memory, int node);

}  // namespace varve
