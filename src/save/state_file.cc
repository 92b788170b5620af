#include "save/state_file.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "interop/zip/writer.h"
#include "pipeline/device_fetch.h"
#include "save/file_work.h"
#include "save/tensor_source.h"
#include "tensor/region.h"

namespace varve {

Result<std::unique_ptr<StateFile>> StateFile::LayOut(const Value& state,
                                                     std::vector<StateFileTensor> tensors) {
  std::vector<StateTensor> shapes;
  std::vector<StateFileStorage> storages;
  for (StateFileTensor& tensor : tensors) {
    shapes.push_back(std::move(tensor.tensor));
    storages.push_back({std::move(tensor.bytes), tensor.step_bytes, tensor.device});
  }
  VARVE_ASSIGN_OR_RETURN(PickledState pickled, PickleState(state, shapes));
  return LayOut(std::move(pickled), std::move(storages));
}

std::unique_ptr<StateFile> StateFile::LayOut(PickledState state,
                                             std::vector<StateFileStorage> storages) {
  std::unique_ptr<StateFile> file(new StateFile(std::move(state), std::move(storages)));
  file->AddSegments();
  return file;
}

StateFile::StateFile(PickledState state, std::vector<StateFileStorage> storages)
    : state_(std::move(state)), storages_(std::move(storages)), crcs_(storages_.size()) {}

std::uint64_t StateFile::size() const {
  std::uint64_t bytes = 0;
  for (const FileSegment& segment : segments_) {
    bytes += segment.bytes;
  }
  return bytes;
}

void StateFile::AddSegments() {
  archive_ = EncodeStateArchive(state_, {});
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const auto owner = static_cast<std::uint32_t>(i);
    const Bytes& head = archive_.heads[i];
    segments_.push_back({.bytes = head.size(), .literal = AsByteSpan(head)});
    const std::uint64_t bytes = state_.storage_bytes[i];
    if (bytes > 0) {
      segments_.push_back(
          {.bytes = bytes, .produce = Summed(i), .owner = owner, .device = storages_[i].device});
    }
    segments_.push_back({.bytes = ZipDescriptor(0, bytes).size(), .produce = Descriptor(i)});
  }
  if (storages_.empty()) {
    segments_.push_back({.bytes = archive_.tail.size(), .literal = AsByteSpan(archive_.tail)});
  } else {
    segments_.push_back({.bytes = archive_.tail.size(), .produce = Tail()});
  }
}

ProduceFunction StateFile::Summed(std::size_t storage) {
  return [this, storage](std::uint64_t at, std::span<std::byte> out) {
    crcs_[storage] = at == 0 ? 0 : crcs_[storage];
    const std::uint64_t most = storages_[storage].step_bytes;
    while (!out.empty()) {
      const std::span<std::byte> step =
          out.first(most == 0 ? out.size() : std::min<std::uint64_t>(out.size(), most));
      VARVE_RETURN_IF_ERROR(storages_[storage].bytes(at, step));
      crcs_[storage] = Crc32ZipExtend(crcs_[storage], step);
      at += step.size();
      out = out.subspan(step.size());
    }
    return Status::Ok();
  };
}

ProduceFunction StateFile::Descriptor(std::size_t storage) {
  return [this, storage](std::uint64_t at, std::span<std::byte> out) {
    const Bytes descriptor = ZipDescriptor(crcs_[storage], state_.storage_bytes[storage]);
    std::memcpy(out.data(), descriptor.data() + at, out.size());
    return Status::Ok();
  };
}

ProduceFunction StateFile::Tail() {
  return [this](std::uint64_t at, std::span<std::byte> out) {
    if (at == 0) {
      archive_.tail = EncodeStateArchive(state_, crcs_).tail;
    }
    std::memcpy(out.data(), archive_.tail.data() + at, out.size());
    return Status::Ok();
  };
}

namespace {

/// Returns a function that copies from memory.
ProduceFunction CopyOf(const PackedMemory& memory) {
  if (!memory.cuda || memory.bytes == 0) {
    return [data = memory.data](std::uint64_t at, std::span<std::byte> out) {
      std::memcpy(out.data(), data + at, out.size());
      return Status::Ok();
    };
  }
  const Box box{{0}, {memory.bytes}};
  const Region region(box, {const_cast<std::byte*>(memory.data), box, {1}, 1}, box);
  return [region, device = memory.cuda->device](std::uint64_t at, std::span<std::byte> out) {
    return CopyFromDevice(region, device, at, out);
  };
}

std::optional<int> DeviceOf(const PackedMemory& memory) {
  return memory.cuda ? std::optional(memory.cuda->device) : std::nullopt;
}

/// Orders copies behind what is queued on the stream of the memory.
Status Await(const PackedMemory& memory, DeviceWaits* waits) {
  return memory.cuda ? waits->Add(CudaMemory{memory.data, memory.cuda->device, memory.cuda->stream},
                                  "of the file")
                     : Status::Ok();
}

Result<std::uint64_t> WriteAll(const std::string& path, std::vector<FileSegment> segments,
                               const SaveOptions& options) {
  FileWork work;
  for (const FileSegment& segment : segments) {
    work.size += segment.bytes;
  }
  work.block_bytes = options.block_bytes;
  work.segments = std::move(segments);
  work.finish = [](const WrittenSegments&) -> Result<FinishedFile> { return FinishedFile{}; };
  VARVE_RETURN_IF_ERROR(WriteFileWork(AnyStorage(), path, work, nullptr, options).status());
  return work.size;
}

}  // namespace

Result<std::uint64_t> WritePickledState(const std::string& path, Bytes pickle,
                                        const std::vector<PackedMemory>& storages,
                                        const SaveOptions& options) {
  PickledState state{.pickle = std::move(pickle)};
  std::vector<StateFileStorage> produced;
  DeviceWaits waits;
  for (const PackedMemory& memory : storages) {
    VARVE_RETURN_IF_ERROR(Await(memory, &waits));
    state.storage_bytes.push_back(memory.bytes);
    produced.push_back({CopyOf(memory), memory.cuda ? 0 : kMemoryStepBytes, DeviceOf(memory)});
  }
  const auto file = StateFile::LayOut(std::move(state), std::move(produced));
  return WriteAll(path, file->segments(), options);
}

Result<std::uint64_t> WriteSafetensors(const std::string& path,
                                       std::vector<SafetensorsSource> tensors,
                                       const SaveOptions& options) {
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorsSource& a, const SafetensorsSource& b) {
              return SafetensorsBefore(a.entry, b.entry);
            });
  std::vector<SafetensorsEntry> entries;
  std::vector<FileSegment> segments(1);
  entries.reserve(tensors.size());
  segments.reserve(tensors.size() + 1);
  DeviceWaits waits;
  for (const SafetensorsSource& tensor : tensors) {
    entries.push_back(tensor.entry);
    const PackedMemory memory{tensor.data, tensor.entry.bytes(), tensor.cuda};
    VARVE_RETURN_IF_ERROR(Await(memory, &waits));
    if (memory.bytes > 0) {
      segments.push_back(
          {.bytes = memory.bytes, .produce = CopyOf(memory), .device = DeviceOf(memory)});
    }
  }
  const Bytes header = EncodeSafetensorsHeader(entries);
  segments[0] = {.bytes = header.size(), .literal = AsByteSpan(header)};
  return WriteAll(path, std::move(segments), options);
}

}  // namespace varve
