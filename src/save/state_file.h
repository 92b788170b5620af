/// Files of whole states: torch.save's, laid out as segments, and those of memory that is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "interop/safetensors/encode.h"
#include "interop/torch/encode.h"
#include "pipeline/file_writer.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"
#include "varve/value.h"

namespace varve {

/// A tensor of the file and the function that gives its row-major bytes, on the thread that writes.
struct StateFileTensor {
  StateTensor tensor;
  ProduceFunction bytes;
  std::uint64_t step_bytes = 0;  ///< As in StateFileStorage.
  std::optional<int> device{};   ///< The CUDA device that `bytes` reads.
};

/// A storage of the file.
struct StateFileStorage {
  ProduceFunction bytes;
  /// Most bytes that one call of it is asked for; 0: as many as there is room for.
  std::uint64_t step_bytes = 0;
  std::optional<int> device{};  ///< The CUDA device that `bytes` reads.
};

/// Steps of a copy out of memory: they stay in the cache, where the checksum finds them.
inline constexpr std::uint64_t kMemoryStepBytes = std::uint64_t{256} << 10;

/// The segments of the file. The checksums of the storages are computed while their bytes pass by:
/// each stands behind its storage, and all of them in the zip directory, which is made when the
/// last has passed. The segments refer to this object, and are written once, front to back; a write
/// that begins again starts the checksums again.
class StateFile {
 public:
  /// `state` as PickleState takes it. Errors: as PickleState.
  static Result<std::unique_ptr<StateFile>> LayOut(const Value& state,
                                                   std::vector<StateFileTensor> tensors);
  /// Lays out a pickle that somebody else has made. `storages` are those that it numbers.
  static std::unique_ptr<StateFile> LayOut(PickledState state,
                                           std::vector<StateFileStorage> storages);
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;
  ~StateFile() = default;

  [[nodiscard]] const std::vector<FileSegment>& segments() const { return segments_; }
  [[nodiscard]] std::uint64_t size() const;

 private:
  StateFile(PickledState state, std::vector<StateFileStorage> storages);
  void AddSegments();
  ProduceFunction Summed(std::size_t storage);
  ProduceFunction Descriptor(std::size_t storage);
  ProduceFunction Tail();

  PickledState state_;
  std::vector<StateFileStorage> storages_;
  std::vector<std::uint32_t> crcs_;
  StateArchive archive_;
  std::vector<FileSegment> segments_;
};

/// Packed memory of this process, or of a CUDA device.
struct PackedMemory {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::optional<OnCuda> cuda{};
};

/// Writes a torch.save file of a pickle and the memory of its storages to `path`, which must not
/// exist, and makes it durable. Returns its size. Errors: as WriteSegments; the file may then be
/// there in part.
Result<std::uint64_t> WritePickledState(const std::string& path, Bytes pickle,
                                        const std::vector<PackedMemory>& storages,
                                        const SaveOptions& options);

/// A packed tensor in memory, of a type that CanBeSafetensors accepts.
struct SafetensorsSource {
  SafetensorsEntry entry;
  const std::byte* data = nullptr;
  std::optional<OnCuda> cuda{};
};

/// Writes a safetensors file to `path`, which must not exist, and makes it durable. Returns its
/// size. Errors: as WriteSegments; the file may then be there in part.
Result<std::uint64_t> WriteSafetensors(const std::string& path,
                                       std::vector<SafetensorsSource> tensors,
                                       const SaveOptions& options);

}  // namespace varve
