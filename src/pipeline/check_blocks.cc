#include <algorithm>
#include <cstddef>
#include <mutex>

#include "base/checksum.h"
#include "base/run_threads.h"
#include "pipeline/file_reader.h"

namespace varve {

Status CheckBlocks(ReadableFile& file, const BlockGeometry& geometry,
                   std::span<const std::uint32_t> block_crc32c, BufferPool& pool, int threads,
                   const std::function<void(ByteRange, std::uint32_t, std::uint32_t)>& on_damage,
                   const std::function<void(std::uint64_t)>& on_read, const std::stop_token& stop) {
  const auto units = ScheduleReads({{geometry.data_begin, geometry.file_size}}, geometry, 0,
                                   ReadUnitBytes(geometry.block_bytes));
  std::mutex mutex;  // Serialises on_damage.
  return RunThreads(units.size(), threads, stop, [&](std::size_t i) -> Status {
    const std::uint64_t size = units[i].end - units[i].begin;
    VARVE_ASSIGN_OR_RETURN(const auto memory, pool.Acquire());
    VARVE_RETURN_IF_ERROR(file.ReadUncached(units[i].begin, memory.data(), size, kPoolBlockBytes));
    for (std::uint64_t at = 0; at < size; at += geometry.block_bytes) {
      const std::uint64_t bytes = std::min(geometry.block_bytes, size - at);
      const std::uint32_t crc = Crc32c({memory.data() + at, bytes});
      const std::uint64_t block =
          (units[i].begin + at - geometry.data_begin) / geometry.block_bytes;
      if (crc != block_crc32c[block]) {
        const std::scoped_lock lock(mutex);
        on_damage({units[i].begin + at, units[i].begin + at + bytes}, block_crc32c[block], crc);
      }
    }
    if (on_read) {
      on_read(size);
    }
    return Status::Ok();
  });
}

}  // namespace varve
