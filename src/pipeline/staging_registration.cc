#include "pipeline/staging_registration.h"

#include <algorithm>
#include <chrono>

#include "base/events.h"
#include "base/guarded.h"
#include "base/trace.h"

namespace varve {

StagingRegistration::~StagingRegistration() {
  for (std::byte* const range : ranges_) {
    devices_->Unregister(range);
  }
}

bool StagingRegistration::Wants(std::uint64_t bytes) const {
  return bytes > covered_ && bytes - covered_ >= covered_;
}

void StagingRegistration::Cover(CudaDevices& devices, int device, std::uint64_t bytes,
                                bool sparingly) {
  const std::scoped_lock one_at_a_time(covering_);
  if (sparingly && bytes < 2 * covered_) {
    return;
  }
  devices_ = &devices;
  while (covered_ < bytes) {
    const std::uint64_t size = std::min(bytes - covered_, kMostBytes);
    std::byte* const range = base_ + covered_;
    const Slice slice("register memory", size);
    const auto begun = std::chrono::steady_clock::now();
    const Status status = Guarded([&] {
      ranges_.reserve(ranges_.size() + 1);
      return devices.Register(device, {range, size});
    });
    covered_ += size;
    if (status.ok()) {
      ranges_.push_back(range);
    }
    Note(status, size, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun));
  }
}

void StagingRegistration::Note(const Status& status, std::uint64_t bytes,
                               std::chrono::duration<double> took) {
  const std::scoped_lock lock(mutex_);
  report_.register_seconds += took.count();
  if (status.ok()) {
    ++report_.registrations;
    report_.registered_bytes += bytes;
  } else if (report_.refused.empty()) {
    (void)Guarded([&] {
      report_.refused = status.message();
      ReportEvent({.level = EventLevel::kWarning,
                   .message = "staging memory stays pageable, and copies from devices to it are "
                              "slower: " +
                              status.message()});
    });
  }
}

StagingMemory StagingRegistration::report() const {
  const std::scoped_lock lock(mutex_);
  return report_;
}

void StagingRegistration::SetNode(std::optional<int> node) {
  const std::scoped_lock lock(mutex_);
  report_.numa_node = node;
}

}  // namespace varve
