/// Destinations of a load: what their memory can hold, and targets whose memory overlaps, is of
/// another size than what is stored, or is on devices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor/region.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/status.h"

namespace varve {

/// Refuses targets that could not hold what is stored: one whose elements share memory, one in
/// memory that is mapped read-only, and two that share memory while different values are stored for
/// it. Equal values are fine, as for a tied parameter under two names: proven by the index where it
/// can (same bytes of a file, same content hash), else by reading both into scratch memory of twice
/// their size. Every target is of a stored shape, and of the stored dtype or one that `options` let
/// a load convert to. Changes no target.
/// Errors: InvalidArgument naming the tensors; those of reading.
Status CheckDestinations(CheckpointReader& reader, std::span<const TargetTensor> targets,
                         const LoadOptions& options);

/// Returns the memory of a target. Errors: InvalidArgument when there is none, when the number of
/// strides is wrong, and when elements share memory.
Result<StridedMemory> MemoryOf(const TargetTensor& target);

/// Removes from `missing` each name of `targets` whose memory is filled by `filled`, under other
/// names: a checkpoint that has only one of two tied tensors lacks nothing.
void DropTiedNames(std::span<const TargetTensor> targets, std::span<const TargetTensor> filled,
                   std::vector<std::string>* missing);

/// Returns true where a target differs from the stored tensor in sizes alone, not in the number of
/// dimensions: fit=kOverlap can fill the part that both have.
bool DiffersInSizes(const TensorMetadata& stored, const TargetTensor& target);

/// Returns the part of a target that a stored tensor of `shape` has too, as a target that fits it:
/// of the stored shape, with the same memory. Its box is empty where the target lies outside.
/// Requires: DiffersInSizes.
TargetTensor OverlapWith(const Dims& shape, TargetTensor target);

/// Counts of one load: bytes that were read, and those of them that were copied to devices.
struct ReadToDevice {
  std::uint64_t bytes_read = 0;
  std::uint64_t device_bytes = 0;
  double device_seconds = 0;  ///< For these; the threads' mean.
};

/// Orders what is copied to targets behind the work that is queued on their streams. Errors:
/// CudaDevices::Get's and After's, naming the tensor.
Status AwaitDeviceWork(std::span<const TargetTensor> targets);

/// Returns the CUDA device that a target is on; nothing for host memory.
std::optional<int> DeviceOf(const TargetTensor& target);

/// Reads a target on a device by way of host memory: for what is to be changed after it was read.
/// Errors: as CheckpointReader::ReadTensors.
Result<ReadToDevice> ReadByHost(CheckpointReader& reader, const TargetTensor& target,
                                const LoadOptions& options);

/// Returns the error of a read with ErrorDetails::destination, and with its text at the end.
Status WithDestination(const Status& read, const std::string& destination);
/// Returns the error without.
Status WithoutDestination(const Status& read);

}  // namespace varve
