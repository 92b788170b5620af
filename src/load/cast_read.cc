#include "load/cast_read.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/run_threads.h"
#include "base/time_source.h"
#include "device/cuda_devices.h"
#include "load/destinations.h"
#include "load/tensor_stream.h"
#include "pipeline/buffer_pool.h"
#include "pipeline/device_fetch.h"
#include "pipeline/file_reader.h"
#include "tensor/box.h"
#include "tensor/cast.h"
#include "tensor/region.h"

namespace varve {
namespace {

// A batch is read by all threads together; a piece is converted by one.
constexpr std::uint64_t kBatchBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kPieceBytes = std::uint64_t{16} << 20;
// Converted values wait here for their copy, in the processor's cache.
constexpr std::uint64_t kStepElements = std::uint64_t{8} << 10;
// For elements of any type.
constexpr std::uint64_t kPieceAlignment = 64;

/// A slab of a target, and where its stored bytes are in the batch.
struct Piece {
  const TargetTensor* target = nullptr;
  DType stored = DType::kUInt8;
  Box box;
  std::uint64_t begin = 0;
  [[nodiscard]] std::uint64_t bytes() const { return Volume(box.sizes) * ItemSize(stored); }
};

/// Converts elements [at, at + count) of a piece into `values`.
void ConvertStep(const Piece& piece, std::span<const std::byte> stored, std::uint64_t at,
                 std::uint64_t count, std::span<std::byte> values) {
  const std::uint64_t from = ItemSize(piece.stored);
  Cast(piece.stored, stored.subspan(at * from, count * from), piece.target->dtype, values);
}

/// Counts what threads copy to devices.
struct DeviceCopies {
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::int64_t> nanoseconds{0};
};

/// Converts in blocks that a device copies from.
Status ConvertToDevice(const Piece& piece, std::span<const std::byte> stored, const Region& region,
                       std::uint64_t count, DeviceCopies* copies) {
  VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
  VARVE_ASSIGN_OR_RETURN(const auto block, BufferPool::Shared().Acquire());
  block.Pin(*devices, piece.target->cuda->device);
  const std::uint64_t to = region.item_size();
  const std::uint64_t most = kPoolBlockBytes / to;
  for (std::uint64_t at = 0; at < count; at += most) {
    const std::uint64_t step = std::min(most, count - at);
    const std::span<std::byte> values(block.data(), step * to);
    ConvertStep(piece, stored, at, step, values);
    const TimePoint begin = Now();
    VARVE_RETURN_IF_ERROR(CopyToDevice(region, piece.target->cuda->device, at * to, values)
                              .Annotate("tensor \"" + piece.target->fqn + "\""));
    copies->bytes += values.size();
    copies->nanoseconds += std::chrono::nanoseconds(Now() - begin).count();
  }
  return Status::Ok();
}

Status Convert(const Piece& piece, std::span<const std::byte> stored, DeviceCopies* copies) {
  VARVE_ASSIGN_OR_RETURN(const StridedMemory memory, MemoryOf(*piece.target));
  const Region region(piece.box, memory, piece.box);
  const std::uint64_t to = memory.item_size;
  const std::uint64_t count = Volume(piece.box.sizes);
  if (piece.target->cuda) {
    return ConvertToDevice(piece, stored, region, count, copies);
  }
  std::vector<std::byte> converted(std::min(count, kStepElements) * to);
  for (std::uint64_t at = 0; at < count; at += kStepElements) {
    const std::uint64_t step = std::min(kStepElements, count - at);
    const std::span<std::byte> values(converted.data(), step * to);
    ConvertStep(piece, stored, at, step, values);
    region.CopyToMemory(at * to, values);
  }
  return Status::Ok();
}

Result<std::uint64_t> ReadBatch(CheckpointReader& reader, const std::vector<Piece>& pieces,
                                const LoadOptions& options, std::vector<std::byte>* memory,
                                DeviceCopies* copies) {
  std::vector<TargetTensor> targets;
  targets.reserve(pieces.size());
  memory->resize(pieces.back().begin + pieces.back().bytes());
  for (const Piece& piece : pieces) {
    targets.push_back({piece.target->fqn, piece.stored, piece.target->shape, piece.box,
                       memory->data() + piece.begin, Strides{}});
  }
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t bytes, reader.ReadTensors(targets, options));
  VARVE_RETURN_IF_ERROR(RunThreads(
      pieces.size(), StorageThreads(options.io_threads), options.stop, [&](std::size_t i) {
        return Convert(pieces[i], std::span(*memory).subspan(pieces[i].begin, pieces[i].bytes()),
                       copies);
      }));
  return bytes;
}

/// Returns the targets' slabs, in batches. Errors: InvalidArgument for a box that is not in its
/// tensor.
Result<std::vector<std::vector<Piece>>> Batches(const Metadata& metadata,
                                                const std::vector<TargetTensor>& targets) {
  std::vector<std::vector<Piece>> batches;
  std::uint64_t end = kBatchBytes;
  for (const TargetTensor& target : targets) {
    const DType stored = metadata.FindTensor(target.fqn)->dtype;
    if (Status status = CheckBox(target.shape, target.box, ItemSize(stored)); !status.ok()) {
      return status.Annotate("tensor \"" + target.fqn + "\"");
    }
    for (Box& box : Slabs(target.box, ItemSize(stored), kPieceBytes)) {
      Piece piece{&target, stored, std::move(box), RoundUp(end, kPieceAlignment)};
      if (piece.begin + piece.bytes() > kBatchBytes) {
        batches.emplace_back();
        piece.begin = 0;
      }
      end = piece.begin + piece.bytes();
      batches.back().push_back(std::move(piece));
    }
  }
  return batches;
}

/// Returns the bytes that are read for these targets.
std::uint64_t StoredBytes(const Metadata& metadata, const std::vector<TargetTensor>& targets) {
  std::uint64_t bytes = 0;
  for (const TargetTensor& target : targets) {
    const TensorMetadata* const stored = metadata.FindTensor(target.fqn);
    bytes += Volume(target.box.sizes) * ItemSize(stored != nullptr ? stored->dtype : target.dtype);
  }
  return bytes;
}

/// Returns a function that reports the progress of one read of several to `progress`: `before`
/// bytes were read before it, `total` by all together.
ProgressFunction PartOf(const ProgressFunction& progress, std::uint64_t before,
                        std::uint64_t total) {
  if (!progress) {
    return {};
  }
  return [&progress, before, total](std::uint64_t done, std::uint64_t /*of_this_read*/) {
    progress(std::min(before + done, total), total);
  };
}

}  // namespace

bool NeedsCast(const TensorMetadata& stored, const TargetTensor& target) {
  return stored.dtype != target.dtype && stored.shape == target.shape && IsCastable(stored.dtype) &&
         IsCastable(target.dtype);
}

Result<ReadToDevice> ReadCasting(CheckpointReader& reader, std::span<const TargetTensor> targets,
                                 LoadOptions options) {
  options.cast = false;
  std::vector<TargetTensor> as_stored;
  std::vector<TargetTensor> to_convert;
  for (const TargetTensor& target : targets) {
    const TensorMetadata* stored = reader.metadata().FindTensor(target.fqn);
    const bool convert = stored != nullptr && NeedsCast(*stored, target);
    (convert ? to_convert : as_stored).push_back(target);
  }
  VARVE_ASSIGN_OR_RETURN(const auto batches, Batches(reader.metadata(), to_convert));
  const ProgressFunction progress = std::move(options.progress);
  std::uint64_t done = StoredBytes(reader.metadata(), as_stored);
  const std::uint64_t total = done + StoredBytes(reader.metadata(), to_convert);
  options.progress = PartOf(progress, 0, total);
  ReadToDevice all;
  DeviceCopies copies;
  VARVE_ASSIGN_OR_RETURN(all.bytes_read, reader.ReadTensors(as_stored, options));
  std::vector<std::byte> memory;
  for (const std::vector<Piece>& batch : batches) {
    options.progress = PartOf(progress, done, total);
    for (const Piece& piece : batch) {
      done += piece.bytes();
    }
    const auto read = ReadBatch(reader, batch, options, &memory, &copies);
    if (!read.ok()) {
      return WithDestination(WithoutDestination(read.status()),
                             "the destination is partly written: tensors that were read before \"" +
                                 batch.front().target->fqn + "\" hold new values");
    }
    all.bytes_read += *read;
  }
  all.device_bytes = copies.bytes;
  all.device_seconds =  // The threads' mean, as of other loads.
      std::chrono::duration<double>(std::chrono::nanoseconds(copies.nanoseconds)).count() /
      StorageThreads(options.io_threads);
  return all;
}

}  // namespace varve
