// Threads take units of up to 8 MiB in file order. A unit goes one of three ways:
//  - in the page cache: each checksum block is read straight into the tensors it belongs to and
//    checked there, so bytes cross memory once;
//  - of a server: the unit is read by one request straight into the tensors, and its checksum
//    blocks are checked there;
//  - not cached: the unit is read past the cache into a pool block, each checksum block is checked
//    there and then copied.
// Where ranks of a node read the same, all units count as cached: one's read brings them there.
// Memory that is strided in small steps always takes a pool block in between, and so does memory of
// a device: all of a unit is checked in the block before any of it is copied to a device, by one
// call. The thread waits for the copy, while others read and check.

#include "pipeline/file_reader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/checked.h"
#include "base/checksum.h"
#include "base/run_threads.h"
#include "base/trace.h"
#include "device/cuda_devices.h"
#include "pipeline/core_slots.h"
#include "pipeline/device_fetch.h"
#include "pipeline/read_units.h"
#include "pipeline/record_sums.h"
#include "pipeline/target_index.h"

namespace varve {
namespace {

// Pieces shorter than this cost more as separate parts of a vectored read than as a copy.
constexpr std::uint64_t kMinDirectPiece = 4096;

// Bytes copied out of the page cache before they are summed: source and destination together must
// still be in the second-level cache then (measured on 1 MiB of it: whole blocks of 1 MiB made
// checksums cost 20 % of a warm load, steps 5 %).
constexpr std::size_t kCachedStep = std::size_t{128} << 10;

/// Adds the time since its last reading.
class Stopwatch {
 public:
  void AddTo(std::atomic<std::int64_t>* nanoseconds) {
    const auto now = std::chrono::steady_clock::now();
    *nanoseconds += std::chrono::nanoseconds(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

class Reader {
 public:
  Reader(std::span<FileReads> files, std::uint32_t owner_count, BufferPool& pool,
         const ReadFilesOptions& options)
      : files_(files),
        pool_(pool),
        options_(options),
        units_(UnitsOf(files, options.max_gap_bytes, options.shared_by, options.order)),
        touched_(owner_count) {
    for (FileReads& reads : files_) {
      for (const ReadTarget& target : reads.targets) {
        has_devices_ = has_devices_ || target.device.has_value();
      }
      index_.emplace_back(&reads.targets);
      sums_.push_back(std::make_unique<RecordSums>(&reads));
    }
  }

  ReadOutcome Execute() {
    ReadOutcome outcome;
    outcome.status = RunThreads(units_.size(), threads_, options_.stop,
                                [&](std::size_t i) { return ReadOne(units_[i]); });
    for (std::size_t f = 0; f < files_.size() && outcome.status.ok(); ++f) {
      outcome.status = sums_[f]->Check(options_.owner_name);
    }
    outcome.bytes_read = bytes_read_;
    outcome.storage_bytes = storage_bytes_;
    const auto most =
        std::max<std::size_t>(std::min(units_.size(), static_cast<std::size_t>(threads_)), 1);
    const auto mean = [&](const std::atomic<std::int64_t>& nanoseconds) {
      return static_cast<double>(nanoseconds) / 1e9 / static_cast<double>(most);
    };
    outcome.read_seconds = mean(read_ns_);
    outcome.verify_seconds = mean(verify_ns_);
    outcome.copy_seconds = mean(copy_ns_);
    outcome.device_seconds = mean(device_ns_);
    outcome.device_bytes = device_bytes_;
    for (const auto& touched : touched_) {
      outcome.touched.push_back(touched);
    }
    return outcome;
  }

 private:
  [[nodiscard]] std::vector<ByteRange> BlocksOf(const ReadUnit& unit) const {
    const BlockGeometry& geometry = files_[unit.file].geometry;
    std::vector<ByteRange> blocks;
    for (std::uint64_t at = unit.range.begin; at < unit.range.end; at += geometry.block_bytes) {
      blocks.push_back({at, std::min(at + geometry.block_bytes, unit.range.end)});
    }
    return blocks;
  }

  using Parts = std::vector<std::span<std::byte>>;

  Status ReadOne(const ReadUnit& unit) {
    ReadableFile& file = *files_[unit.file].file;
    const std::uint64_t size = unit.range.end - unit.range.begin;
    if (size > kPoolBlockBytes) {
      return Unimplemented(files_[unit.file].name + ": checksum blocks larger than 8 MiB");
    }
    RecordSums::Piece sums(sums_[unit.file].get(), unit.range.begin);
    Stopwatch watch;
    const std::optional<int> device = DeviceOf(unit);
    const bool was_cached = file.IsCached(unit.range.begin, size);
    const bool cached = was_cached || IsShared(unit);
    if (device) {
      VARVE_RETURN_IF_ERROR(ReadThroughBlock(unit, cached, device, &sums, &watch));
    } else if (cached) {
      // Copying out of the cache is the processor's work: more threads than cores only push each
      // other's blocks out of it before they are checked (measured: 8 on 2 cores cost 1.4 times 2).
      const CoreSlots::Holder slot(&cores_);
      const Slice slice("read cached block", size);
      std::optional<BufferPool::Lease> scratch;
      for (const ByteRange& block : BlocksOf(unit)) {
        VARVE_RETURN_IF_ERROR(ReadCachedBlock(unit.file, block, &scratch, &sums));
      }
      watch.AddTo(&read_ns_);
    } else if (auto pieces = file.IsRemote() ? PiecesOf(unit) : std::nullopt; pieces) {
      const CoreSlots::Holder slot(&storage_);
      VARVE_RETURN_IF_ERROR(ReadRemote(unit, *pieces, &sums));
      watch.AddTo(&read_ns_);
    } else {
      VARVE_RETURN_IF_ERROR(ReadThroughBlock(unit, false, device, &sums, &watch));
    }
    sums.Finish();
    bytes_read_ += size;
    storage_bytes_ += was_cached || !unit.own ? 0 : size;
    if (options_.on_read) {
      options_.on_read(size);
    }
    return Status::Ok();
  }

  /// Returns true for a unit that other ranks of the node read too, or have read.
  [[nodiscard]] bool IsShared(const ReadUnit& unit) const {
    return options_.shared_by.ranks > 1 && !files_[unit.file].file->IsRemote();
  }

  /// Returns a device that some of a unit goes to; nothing where all goes to host memory.
  [[nodiscard]] std::optional<int> DeviceOf(const ReadUnit& unit) const {
    std::optional<int> device;
    if (has_devices_) {
      index_[unit.file].ForEachIn(unit.range, [&](const ReadTarget& target) {
        device = target.device ? target.device : device;
      });
    }
    return device;
  }

  /// Reads a unit into a pool block, checks it there and copies it to its targets.
  Status ReadThroughBlock(const ReadUnit& unit, bool cached, std::optional<int> device,
                          RecordSums::Piece* sums, Stopwatch* watch) {
    ReadableFile& file = *files_[unit.file].file;
    const std::uint64_t size = unit.range.end - unit.range.begin;
    // Before the block, as everywhere here: a thread that holds a block waits for no slot.
    std::optional<CoreSlots::Holder> slot(std::in_place, cached ? &cores_ : &storage_);
    VARVE_ASSIGN_OR_RETURN(const auto memory, pool_.Acquire());
    if (device) {
      VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
      memory.Pin(*devices, *device);
    }
    if (!cached) {
      const Slice slice("read block", size);
      VARVE_RETURN_IF_ERROR(
          file.ReadUncached(unit.range.begin, memory.data(), size, kPoolBlockBytes));
      watch->AddTo(&read_ns_);
    }
    for (const ByteRange& block : BlocksOf(unit)) {
      const std::span<std::byte> bytes(memory.data() + (block.begin - unit.range.begin),
                                       block.end - block.begin);
      if (cached) {
        VARVE_ASSIGN_OR_RETURN(const std::uint32_t crc,
                               ReadAndSum(unit.file, block.begin, {bytes}, sums));
        VARVE_RETURN_IF_ERROR(Check(unit.file, block, crc));
        watch->AddTo(&read_ns_);
      } else {
        Status intact = Check(unit.file, block, Sum(unit.file, 0, bytes, sums));
        if (!intact.ok() && file.Forget(block.begin, bytes.size())) {
          intact = ReadAgain(unit.file, block, {bytes});
        }
        VARVE_RETURN_IF_ERROR(std::move(intact));
        watch->AddTo(&verify_ns_);
      }
      CopyOut(unit.file, block, bytes);
      watch->AddTo(&copy_ns_);
    }
    slot.reset();
    if (device) {
      VARVE_RETURN_IF_ERROR(CopyToDevices(unit, {memory.data(), size}));
      watch->AddTo(&device_ns_);
    }
    return Status::Ok();
  }

  /// Copies what targets on devices want of a unit, all of which has been checked.
  Status CopyToDevices(const ReadUnit& unit, std::span<const std::byte> bytes) {
    std::vector<DeviceMove> moves;
    std::uint32_t owner = 0;
    index_[unit.file].ForEachIn(unit.range, [&](const ReadTarget& target) {
      const ByteRange range = Clip(target, unit.range);
      if (!target.device || range.begin == range.end) {
        return;
      }
      touched_[target.owner] = true;
      owner = target.owner;
      const std::uint64_t skip = target.chunk_begin + range.begin - unit.range.begin;
      AppendMoves(target.region, *target.device, range.begin,
                  bytes.subspan(skip, range.end - range.begin), &moves);
    });
    std::uint64_t moved = 0;
    for (const DeviceMove& move : moves) {
      moved += move.bytes();
    }
    device_bytes_ += moved;
    VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
    return devices->Move(Direction::kToDevice, moves)
        .Annotate(files_[unit.file].name + ", up to " + options_.owner_name(owner));
  }

  /// Reads a block for a second time, after this host had kept a wrong copy of it. Of a file whose
  /// records have sums too, those have seen the wrong bytes: the next load is the second time.
  Status ReadAgain(std::size_t f, ByteRange block, const Parts& parts) {
    const FileReads& reads = files_[f];
    VARVE_RETURN_IF_ERROR(reads.file->ReadAt(block.begin, parts));
    std::uint32_t crc = 0;
    for (const std::span<std::byte> part : parts) {
      crc = Crc32cExtend(crc, part);
    }
    return reads.records.empty()
               ? Check(f, block, crc)
               : DataLoss(reads.name + ": a wrong copy of it was dropped; read it again");
  }

  /// Bytes of a block and the memory they go to.
  struct Piece {
    std::uint64_t begin = 0;
    std::span<std::byte> memory;
    std::uint32_t owner = 0;
  };

  /// Returns the block's wanted bytes as memory pieces in file order; nothing when some are too
  /// small or wanted twice, so that they must be copied.
  std::optional<std::vector<Piece>> Pieces(std::size_t file, ByteRange block) {
    std::vector<Piece> pieces;
    bool usable = true;
    index_[file].ForEachIn(block, [&](const ReadTarget& target) {
      if (target.region.contiguous_bytes() < kMinDirectPiece) {
        usable = false;
      }
      if (!usable) {
        return;
      }
      target.region.ForEachRun(Clip(target, block), [&](const Run& run) {
        const auto bytes = run.count * static_cast<std::uint64_t>(run.memory_step);
        pieces.push_back({target.chunk_begin + run.chunk_begin, {run.memory, bytes}, target.owner});
      });
    });
    if (!usable) {
      return std::nullopt;
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < pieces.size(); ++i) {
      if (pieces[i - 1].begin + pieces[i - 1].memory.size() > pieces[i].begin) {
        return std::nullopt;
      }
    }
    return pieces;
  }

  /// Returns the part of `block` that lies in the target's chunk, relative to the chunk.
  static ByteRange Clip(const ReadTarget& target, ByteRange block) {
    const ByteRange extent = target.region.extent();
    const std::uint64_t begin = std::max(block.begin, target.chunk_begin + extent.begin);
    const std::uint64_t end = std::min(block.end, target.chunk_begin + extent.end);
    return {begin - target.chunk_begin, std::max(begin, end) - target.chunk_begin};
  }

  Status ReadCachedBlock(std::size_t f, ByteRange block, std::optional<BufferPool::Lease>* scratch,
                         RecordSums::Piece* sums) {
    auto pieces = Pieces(f, block);
    std::uint64_t covered = 0;
    if (pieces) {
      for (const Piece& piece : *pieces) {
        covered += piece.memory.size();
      }
    }
    const std::uint64_t size = block.end - block.begin;
    if ((!pieces || covered != size) && !*scratch) {
      VARVE_ASSIGN_OR_RETURN(*scratch, pool_.Acquire());
    }
    if (!pieces) {
      const std::span<std::byte> bytes((*scratch)->data(), size);
      VARVE_ASSIGN_OR_RETURN(const std::uint32_t crc, ReadAndSum(f, block.begin, {bytes}, sums));
      VARVE_RETURN_IF_ERROR(Check(f, block, crc));
      CopyOut(f, block, bytes);
      return Status::Ok();
    }
    const Parts parts =
        WithGaps(*pieces, block, *scratch ? (*scratch)->data() : nullptr, block.begin);
    VARVE_ASSIGN_OR_RETURN(const std::uint32_t crc, ReadAndSum(f, block.begin, parts, sums));
    return Check(f, block, crc);
  }

  /// Returns the memory that a block is read into. Bytes that no target wants still count for the
  /// checksum: they go to `scratch`, which stands for the file from `scratch_begin` on. Notes the
  /// owners.
  Parts WithGaps(const std::vector<Piece>& pieces, ByteRange block, std::byte* scratch,
                 std::uint64_t scratch_begin) {
    Parts parts;
    std::uint64_t at = block.begin;
    for (const Piece& piece : pieces) {
      if (piece.begin > at) {
        parts.emplace_back(scratch + (at - scratch_begin), piece.begin - at);
      }
      parts.push_back(piece.memory);
      touched_[piece.owner] = true;
      at = piece.begin + piece.memory.size();
    }
    if (at < block.end) {
      parts.emplace_back(scratch + (at - scratch_begin), block.end - at);
    }
    return parts;
  }

  /// Returns the pieces of each block of a unit; nothing when bytes of some must be copied.
  std::optional<std::vector<std::vector<Piece>>> PiecesOf(const ReadUnit& unit) {
    std::vector<std::vector<Piece>> all;
    for (const ByteRange& block : BlocksOf(unit)) {
      auto pieces = Pieces(unit.file, block);
      if (!pieces) {
        return std::nullopt;
      }
      all.push_back(*std::move(pieces));
    }
    return all;
  }

  /// Reads a unit with one request. `pieces` are those of its blocks.
  Status ReadRemote(const ReadUnit& unit, const std::vector<std::vector<Piece>>& pieces,
                    RecordSums::Piece* sums) {
    const std::vector<ByteRange> blocks = BlocksOf(unit);
    VARVE_ASSIGN_OR_RETURN(const auto scratch, pool_.Acquire());
    Parts whole;
    std::vector<Parts> parts;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      parts.push_back(WithGaps(pieces[i], blocks[i], scratch.data(), unit.range.begin));
      whole.insert(whole.end(), parts[i].begin(), parts[i].end());
    }
    ReadableFile& file = *files_[unit.file].file;
    {
      const Slice slice("read by request", unit.range.end - unit.range.begin);
      VARVE_RETURN_IF_ERROR(file.ReadAt(unit.range.begin, whole));
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::uint32_t crc = 0;
      for (const std::span<std::byte> part : parts[i]) {
        crc = Sum(unit.file, crc, part, sums);
      }
      Status intact = Check(unit.file, blocks[i], crc);
      if (!intact.ok() && file.Forget(blocks[i].begin, blocks[i].end - blocks[i].begin)) {
        intact = ReadAgain(unit.file, blocks[i], parts[i]);
      }
      VARVE_RETURN_IF_ERROR(std::move(intact));
    }
    return Status::Ok();
  }

  /// Fills `parts` with the bytes from `at` on and returns their checksum.
  Result<std::uint32_t> ReadAndSum(std::size_t f, std::uint64_t at, const Parts& parts,
                                   RecordSums::Piece* sums) {
    ReadableFile& file = *files_[f].file;
    std::uint32_t crc = 0;
    Parts step;
    std::uint64_t step_bytes = 0;
    const auto flush = [&]() -> Status {
      if (files_[f].records.empty() && !files_[f].block_crc32c.empty()) {
        VARVE_RETURN_IF_ERROR(file.ReadAndSum(at, step, &crc));
      } else {
        VARVE_RETURN_IF_ERROR(file.ReadAt(at, step));
        for (const std::span<std::byte> part : step) {
          crc = Sum(f, crc, part, sums);
        }
      }
      at += step_bytes;
      step_bytes = 0;
      step.clear();
      return Status::Ok();
    };
    for (std::span<std::byte> part : parts) {
      while (!part.empty()) {
        const std::size_t take = std::min<std::size_t>(part.size(), kCachedStep - step_bytes);
        step.push_back(part.first(take));
        part = part.subspan(take);
        step_bytes += take;
        if (step_bytes == kCachedStep) {
          VARVE_RETURN_IF_ERROR(flush());
        }
      }
    }
    if (!step.empty()) {
      VARVE_RETURN_IF_ERROR(flush());
    }
    return crc;
  }

  void CopyOut(std::size_t file, ByteRange block, std::span<const std::byte> bytes) {
    index_[file].ForEachIn(block, [&](const ReadTarget& target) {
      const ByteRange range = Clip(target, block);
      if (target.device || range.begin == range.end) {
        return;
      }
      touched_[target.owner] = true;
      const std::uint64_t skip = target.chunk_begin + range.begin - block.begin;
      target.region.CopyToMemory(range.begin, bytes.subspan(skip, range.end - range.begin));
    });
  }

  /// Extends the file's checksum, of either kind, over its next bytes.
  std::uint32_t Sum(std::size_t f, std::uint32_t crc, std::span<const std::byte> bytes,
                    RecordSums::Piece* sums) {
    if (!files_[f].records.empty()) {
      sums->Add(bytes);
    }
    return files_[f].block_crc32c.empty() ? 0 : Crc32cExtend(crc, bytes);
  }

  Status Check(std::size_t f, ByteRange block, std::uint32_t crc) {
    const FileReads& reads = files_[f];
    if (reads.block_crc32c.empty()) {
      return Status::Ok();
    }
    const std::uint64_t i = (block.begin - reads.geometry.data_begin) / reads.geometry.block_bytes;
    if (crc == reads.block_crc32c[i]) {
      return Status::Ok();
    }
    std::string owners;
    std::set<std::uint32_t> named;
    index_[f].ForEachIn(block, [&](const ReadTarget& target) {
      if (owners.size() < 200 && named.insert(target.owner).second) {
        owners += (owners.empty() ? ", holds " : ", ") + options_.owner_name(target.owner);
      }
    });
    return DataLoss(reads.name + " [" + std::to_string(block.begin) + ", " +
                    std::to_string(block.end) + "): checksum mismatch (want " +
                    HexU32(reads.block_crc32c[i]) + ", got " + HexU32(crc) + ")" + owners);
  }

  std::span<FileReads> files_;
  BufferPool& pool_;
  const ReadFilesOptions& options_;
  const int cores_there_ = std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
  // Copying out of the cache goes at 2 to 3 GB/s a core where others have their part of the memory
  // (16 cores); storage is as fast by eight readers as by more.
  const int threads_ = options_.threads > 0 ? options_.threads
                                            : std::clamp(cores_there_, StorageThreads(0), 16);
  CoreSlots cores_{static_cast<std::size_t>(cores_there_)};
  CoreSlots storage_{static_cast<std::size_t>(StorageThreads(options_.threads))};
  const std::vector<ReadUnit> units_;
  std::vector<TargetIndex> index_;
  std::vector<std::unique_ptr<RecordSums>> sums_;  // By file.
  std::vector<std::atomic<bool>> touched_;
  std::atomic<std::uint64_t> bytes_read_{0};
  std::atomic<std::uint64_t> storage_bytes_{0};
  std::atomic<std::int64_t> read_ns_{0};
  std::atomic<std::int64_t> verify_ns_{0};
  std::atomic<std::int64_t> copy_ns_{0};
  std::atomic<std::int64_t> device_ns_{0};
  std::atomic<std::uint64_t> device_bytes_{0};
  bool has_devices_ = false;
};

}  // namespace

ReadOutcome ReadFiles(std::span<FileReads> files, std::uint32_t owner_count, BufferPool& pool,
                      const ReadFilesOptions& options) {
  return Reader(files, owner_count, pool, options).Execute();
}

}  // namespace varve
