// What tests see of the driver.

#include "support/fake_cuda.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <sys/mman.h>

#include "fake_cuda/state.h"

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): the functions are C.

namespace {

/// Returns the name by which the driver's functions know themselves.
std::string WithoutVersion(std::string_view function) {
  return std::string(function.ends_with("_v2") ? function.substr(0, function.size() - 3)
                                               : function);
}

}  // namespace

void* fake_cuda_alloc(int device, std::size_t bytes) {
  void* const address =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const std::scoped_lock lock(g.mutex);
  g.memory[static_cast<std::byte*>(address)] =
      std::make_shared<Allocation>(Allocation{device, std::vector<std::byte>(bytes)});
  return address;
}

void fake_cuda_free(void* memory) {
  const std::scoped_lock lock(g.mutex);
  const auto known = g.memory.find(static_cast<std::byte*>(memory));
  std::fill(known->second->content.begin(), known->second->content.end(), std::byte{0xDD});
  ::munmap(memory, known->second->content.size());
  g.memory.erase(known);
}

void fake_cuda_poke(void* memory, const void* from, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  const std::scoped_lock lock(g.mutex);
  std::size_t offset = 0;
  const auto known = Find(static_cast<std::byte*>(memory), bytes, &offset);
  std::memcpy(known->content.data() + offset, from, bytes);
}

void fake_cuda_peek(const void* memory, void* to, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  const std::scoped_lock lock(g.mutex);
  std::size_t offset = 0;
  const auto known = Find(static_cast<const std::byte*>(memory), bytes, &offset);
  std::memcpy(to, known->content.data() + offset, bytes);
}

void* fake_cuda_stream(int device) { return KeptStream(device); }

void fake_cuda_fill(int device, void* stream, void* memory, std::size_t bytes, std::uint8_t value,
                    int milliseconds) {
  StreamOf(stream, device).Queue([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    const std::scoped_lock lock(g.mutex);
    std::size_t offset = 0;
    const auto known = Find(static_cast<std::byte*>(memory), bytes, &offset);
    if (known == nullptr) {
      return;  // Freed meanwhile.
    }
    std::memset(known->content.data() + offset, value, bytes);
  });
}

void fake_cuda_fail(const char* function, int error, int calls) {
  const std::scoped_lock lock(g.mutex);
  g.failures[WithoutVersion(function)] = {error, calls};
}

void fake_cuda_hide(const char* function) {
  const std::scoped_lock lock(g.mutex);
  if (function == nullptr) {
    g.hidden.clear();
  } else {
    g.hidden.insert(WithoutVersion(function));
  }
}

void fake_cuda_poison(int error) {
  const std::scoped_lock lock(g.mutex);
  Poison(error);
}

void fake_cuda_limit_registration(std::size_t most_bytes_per_call, std::size_t most_bytes_in_all) {
  const std::scoped_lock lock(g.mutex);
  g.most_registered_per_call = most_bytes_per_call;
  g.most_registered = most_bytes_in_all;
}

void fake_cuda_slow_copies(int microseconds) {
  const std::scoped_lock lock(g.mutex);
  g.copy_microseconds = microseconds;
}

void fake_cuda_slow_calls(int microseconds) { g.call_microseconds = microseconds; }

void fake_cuda_begin_capture() {
  const std::scoped_lock lock(g.mutex);
  g.capture = Capture{std::this_thread::get_id(), false};
}

int fake_cuda_end_capture() {
  const std::scoped_lock lock(g.mutex);
  const bool intact = g.capture && !g.capture->broken;
  g.capture.reset();
  return intact ? 0 : kCaptureInvalidated;
}

FakeCudaCounts fake_cuda_counts() {
  const std::scoped_lock lock(g.mutex);
  FakeCudaCounts counts = g.counts;
  counts.registrations_now = g.registered.size();
  return counts;
}

void fake_cuda_reset_most() {
  const std::scoped_lock lock(g.mutex);
  g.counts.most_at_once = g.counts.copies_under_way;
  g.counts.most_bytes_queued = *std::max_element(g.bytes_queued.begin(), g.bytes_queued.end());
}

int fake_cuda_registered_unmapped() {
  const std::scoped_lock lock(g.mutex);
  return static_cast<int>(
      std::count_if(g.registered.begin(), g.registered.end(),
                    [](const auto& range) { return !Mapped(range.first, range.second); }));
}

void fake_cuda_log_begin() {
  const std::scoped_lock lock(g.mutex);
  g.log.clear();
  g.logging = true;
}

std::size_t fake_cuda_log_size() {
  const std::scoped_lock lock(g.mutex);
  return g.log.size();
}

FakeCudaLogEntry fake_cuda_log_at(std::size_t index) {
  const std::scoped_lock lock(g.mutex);
  return g.log.at(index);
}

unsigned long long fake_cuda_order() {
  const std::scoped_lock lock(g.mutex);
  return ++g.order;
}
