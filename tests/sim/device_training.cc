#include "sim/device_training.h"

#include <algorithm>
#include <string>

#include "device/device_move.h"

namespace varve::sim {
namespace {

constexpr std::uint64_t kMostLargeBytes = std::uint64_t{36} << 10;
constexpr std::uint64_t kMostSmallBytes = 2500;
constexpr std::uint64_t kMostRows = 40;

std::vector<DevicePart> RowsOf(const DeviceTensor& tensor, DevicePart::Kind kind) {
  std::vector<DevicePart> parts;
  for (std::uint64_t row = 0; row < tensor.rows; ++row) {
    parts.push_back({.kind = kind,
                     .offset = tensor.begin + row * tensor.pitch,
                     .bytes = tensor.row_bytes,
                     .value = tensor.value});
  }
  return parts;
}

}  // namespace

DeviceTraining::DeviceTraining(test::Random* random, DeviceModel* model, int devices,
                               bool has_large)
    : random_(*random), model_(*model) {
  for (int device = 0; device < devices; ++device) {
    streams_.push_back({nullptr});
    for (std::uint64_t more = random_.Between(1, 2); more > 0; --more) {
      streams_.back().push_back(model_.AddStream(device));
    }
    AddTensors(device, has_large);
  }
}

void DeviceTraining::AddTensors(int device, bool has_large) {
  std::uint64_t at = 0;
  const std::uint64_t count = random_.Between(2, 5);
  for (std::uint64_t i = 0; i < count; ++i) {
    const bool large = (i < 2 && has_large) || random_.OneIn(4);
    DeviceTensor tensor;
    tensor.device = device;
    tensor.stream = AnyStream(device);
    tensor.begin = random_.OneIn(2) ? at + random_.Below(40) : (at + 15) / 16 * 16;
    tensor.extent = large ? random_.Between(kLeastCopyBytes, kMostLargeBytes)
                          : random_.Between(1, kMostSmallBytes);
    if (tensor.begin + tensor.extent > kDeviceBytes) {
      return;
    }
    at = tensor.begin + tensor.extent;
    tensors_.push_back(tensor);
    Reuse(&tensors_.back());
  }
}

void DeviceTraining::DrawShape(DeviceTensor* tensor) {
  tensor->rows = 1;
  tensor->row_bytes = tensor->pitch = tensor->extent;
  const std::uint64_t unit = std::uint64_t{1} << random_.Below(5);
  const std::uint64_t row = unit * random_.Between(1, 8);
  if (row < tensor->extent && random_.OneIn(tensor->extent < kLeastCopyBytes ? 2 : 8)) {
    tensor->row_bytes = row;
    tensor->pitch = row + unit * random_.Below(3);
    tensor->rows = std::min(kMostRows, (tensor->extent - row) / tensor->pitch + 1);
  }
}

CudaDriver::Handle DeviceTraining::AnyStream(int device) {
  const auto& streams = streams_[static_cast<std::size_t>(device)];
  return streams[random_.Below(streams.size())];
}

void DeviceTraining::Work() {
  DeviceTensor& tensor = tensors_[random_.Below(tensors_.size())];
  if (tensor.is_free() && random_.OneIn(2)) {
    Write(&tensor);
  }
  if (tensor.is_free() && random_.OneIn(4)) {
    const CudaDriver::Handle next = AnyStream(tensor.device);
    model_.Order(tensor.device, tensor.stream, next);
    tensor.stream = next;
  }
  if (!tensor.is_loaded) {
    Read(tensor);
  }
}

void DeviceTraining::Write(DeviceTensor* tensor) {
  tensor->value = NewValue();
  model_.QueueKernel(tensor->device, tensor->stream, RowsOf(*tensor, DevicePart::Kind::kWrite));
}

void DeviceTraining::Read(const DeviceTensor& tensor) {
  model_.QueueKernel(tensor.device, tensor.stream, RowsOf(tensor, DevicePart::Kind::kRead));
}

void DeviceTraining::Reuse(DeviceTensor* tensor) {
  tensor->around = NewValue();
  model_.QueueKernel(tensor->device, tensor->stream,
                     {{.offset = tensor->begin, .bytes = tensor->extent, .value = tensor->around}});
  DrawShape(tensor);
  Write(tensor);
}

void DeviceTraining::MoveToAnyStream(DeviceTensor* tensor) {
  tensor->stream = AnyStream(tensor->device);
}

void DeviceTraining::Judge() const {
  for (std::size_t device = 0; device < streams_.size(); ++device) {
    const int number = static_cast<int>(device);
    std::vector<std::uint64_t> values(kDeviceBytes, 0);
    for (const DeviceTensor& tensor : tensors_) {
      if (tensor.device == number) {
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(tensor.begin), tensor.extent,
                    tensor.around);
        for (const DevicePart& row : RowsOf(tensor, DevicePart::Kind::kWrite)) {
          std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(row.offset), row.bytes,
                      row.value);
        }
      }
    }
    for (std::uint64_t at = 0; at < kDeviceBytes && !model_.is_dead(number); ++at) {
      if (model_.At(number, at) != ContentAt(values[at], at)) {
        model_.Blame("at the end device " + std::to_string(device) + " does not hold value " +
                     std::to_string(values[at]) + " at " + std::to_string(at));
        return;
      }
    }
  }
}

}  // namespace varve::sim
