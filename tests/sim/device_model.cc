#include "sim/device_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cuda_devices.h"

namespace varve::sim {
namespace {

/// Addresses of a device begin here: x86-64 and arm64 map none of these for a process.
constexpr CudaDriver::Address kDeviceBegin = 0x7d00'0000'0000'0000;
constexpr CudaDriver::Address kDeviceApart = CudaDriver::Address{1} << 32;
/// The first stream's handle: null is the default stream.
constexpr std::uintptr_t kStreamHandle = 0x1000;

/// Returns true if a range of the map holds all of [memory, memory + bytes).
bool Holds(const std::map<const std::byte*, std::uint64_t>& ranges, const std::byte* memory,
           std::uint64_t bytes) {
  const auto after = ranges.upper_bound(memory);
  return after != ranges.begin() &&
         memory + bytes <= std::prev(after)->first + std::prev(after)->second;
}

}  // namespace

DeviceModel::DeviceModel(test::Random* random, Trace* trace, Plant plant,
                         DeviceModelOptions options)
    : random_(*random),
      trace_(*trace),
      plant_(plant),
      options_(std::move(options)),
      driver_(MakeDriver()) {
  devices_.resize(static_cast<std::size_t>(options_.devices));
  for (int device = 0; device < options_.devices; ++device) {
    std::vector<std::byte>& memory = devices_[static_cast<std::size_t>(device)].memory;
    memory.resize(kDeviceBytes);
    for (std::uint64_t offset = 0; offset < kDeviceBytes; ++offset) {
      memory[offset] = ContentAt(0, offset);
    }
    streams_.push_back({.device = device});
  }
}

std::byte* DeviceModel::AddressOf(int device, std::uint64_t offset) {
  return reinterpret_cast<std::byte*>(BaseOf(device) + offset);
}

CudaDriver::Address DeviceModel::BaseOf(int device) {
  return kDeviceBegin + kDeviceApart * static_cast<Address>(device);
}

void DeviceModel::Blame(std::string problem) {
  if (problem_.empty()) {
    trace_.Add("wrong: " + problem);
    problem_ = std::move(problem);
  }
}

// ---- what the training does ----

DeviceModel::Handle DeviceModel::AddStream(int device) {
  streams_.push_back({.device = device});
  return reinterpret_cast<Handle>(kStreamHandle + streams_.size() - 1);
}

/// Returns the place of a stream; that of none for a handle that is none.
std::size_t DeviceModel::IndexOf(Handle stream, int device) const {
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  if (number == 0) {
    return static_cast<std::size_t>(device);
  }
  return std::min(number - kStreamHandle, streams_.size());
}

void DeviceModel::QueueKernel(int device, Handle stream, std::vector<DevicePart> parts) {
  if (!is_dead(device)) {
    streams_[IndexOf(stream, device)].queue.push_back({.parts = std::move(parts)});
  }
}

void DeviceModel::Order(int device, Handle first, Handle second) {
  if (!is_dead(device)) {
    const auto reached = std::make_shared<bool>(false);
    streams_[IndexOf(first, device)].queue.push_back({.reaches = reached});
    streams_[IndexOf(second, device)].queue.push_back({.waits_for = reached});
  }
}

// ---- the devices ----

/// Queues a copy, and blames the engine for more bytes than it may queue. A call that failed may
/// have queued some of them before they are queued again.
void DeviceModel::QueueCopy(Stream* stream, std::vector<DevicePart> parts) {
  for (const DevicePart& part : parts) {
    stream->copy_bytes += part.bytes;
    stream->copies_to_device |= part.kind == DevicePart::Kind::kToDevice;
  }
  if (stream->copy_bytes > CudaDevices::kMostQueuedBytes && failures_ == 0 &&
      options_.has_kernels) {
    Blame(std::to_string(stream->copy_bytes) + " bytes are queued at once");
  }
  stream->queue.push_back({.parts = std::move(parts)});
}

bool DeviceModel::CanRun(const Stream& stream) {
  return !stream.queue.empty() &&
         (stream.queue.front().waits_for == nullptr || *stream.queue.front().waits_for);
}

/// Runs the next part of any stream. Returns false if there is none that can run.
bool DeviceModel::RunOne() {
  std::vector<Stream*> able;
  for (Stream& stream : streams_) {
    if (CanRun(stream)) {
      able.push_back(&stream);
    }
  }
  if (able.empty()) {
    return false;
  }
  Stream& stream = *able[random_.Below(able.size())];
  if (++steps_ == options_.dies_at) {
    Die(stream.device);
    return true;
  }
  Operation& operation = stream.queue.front();
  if (!operation.parts.empty()) {
    std::swap(operation.parts[random_.Below(operation.parts.size())], operation.parts.back());
    RunPart(&stream, operation.parts.back());
    operation.parts.pop_back();
  }
  if (operation.parts.empty()) {
    if (operation.reaches != nullptr) {
      *operation.reaches = true;
    }
    stream.queue.pop_front();
  }
  return true;
}

void DeviceModel::RunPart(Stream* stream, const DevicePart& part) {
  if (part.offset + part.bytes > kDeviceBytes) {
    Blame("an operation uses memory behind the end of device " + std::to_string(stream->device));
    return;
  }
  std::byte* const at =
      devices_[static_cast<std::size_t>(stream->device)].memory.data() + part.offset;
  if (part.kind == DevicePart::Kind::kWrite) {
    for (std::uint64_t i = 0; i < part.bytes; ++i) {
      at[i] = ContentAt(part.value, part.offset + i);
    }
    return;
  }
  if (part.kind == DevicePart::Kind::kRead) {
    for (std::uint64_t i = 0; i < part.bytes; ++i) {
      if (at[i] != ContentAt(part.value, part.offset + i)) {
        Blame("a kernel on device " + std::to_string(stream->device) +
              " reads something else than value " + std::to_string(part.value) + " at " +
              std::to_string(part.offset + i));
        return;
      }
    }
    return;
  }
  stream->copy_bytes -= part.bytes;
  CopyPart(at, part);
}

void DeviceModel::CopyPart(std::byte* on_device, const DevicePart& part) {
  const bool out = part.kind == DevicePart::Kind::kToHost;
  if (!Holds(lent_, part.host, part.bytes)) {
    Blame("a copy " + std::string(out ? "from" : "to") +
          " a device uses host memory that was given back: " + std::to_string(part.bytes) +
          " bytes for offset " + std::to_string(part.offset));
  } else if (out) {
    std::memcpy(part.host, on_device, part.bytes);
  } else {
    std::memcpy(on_device, part.host, part.bytes);
  }
}

/// Ends a device as an error of the hardware does: what is queued never runs.
void DeviceModel::Die(int device) {
  trace_.Add("device " + std::to_string(device) + " dies");
  ++failures_;
  devices_[static_cast<std::size_t>(device)].dead = true;
  for (Stream& stream : streams_) {
    if (stream.device != device) {
      continue;
    }
    for (const Operation& operation : stream.queue) {
      if (operation.reaches != nullptr) {
        *operation.reaches = true;
      }
    }
    stream.queue.clear();
    stream.copy_bytes = 0;
  }
}

void DeviceModel::RunSome() {
  if (options_.runs_one_in != 0 && random_.OneIn(options_.runs_one_in)) {
    for (std::uint64_t left = random_.Between(1, 6); left > 0 && RunOne(); --left) {
    }
  }
}

void DeviceModel::RunUntil(const bool& reached) {
  while (!reached && RunOne()) {
  }
  if (!reached) {
    Blame("the host waits for what never runs");
  }
}

void DeviceModel::RunAll() {
  while (RunOne()) {
  }
  if (std::any_of(streams_.begin(), streams_.end(),
                  [](const Stream& stream) { return !stream.queue.empty(); })) {
    Blame("a stream waits for ever");
  }
}

bool DeviceModel::IsRegistered(const std::byte* memory, std::uint64_t bytes) const {
  return Holds(registered_, memory, bytes);
}

void DeviceModel::JudgeThread() {
  if (!contexts_.empty() || capture_mode_ != 0) {
    Blame("a call of the engine leaves a context or a capture mode on its thread");
  }
}

}  // namespace varve::sim
