#include "fake_cuda/state.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <sys/mman.h>
#include <unistd.h>

namespace fake_cuda {

// Never destroyed: a process may end with work queued.
State& g = *new State;  // NOLINT(readability-identifier-length)

thread_local std::vector<Context*> t_current;
thread_local int t_capture_mode = 0;

Stream::~Stream() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::Queue(std::function<void()> work) {
  const std::scoped_lock lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

void Stream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || !work_.empty(); });
    if (work_.empty()) {
      return;
    }
    const std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    next();
    lock.lock();
  }
}

Stream* KeptStream(int device) {
  auto* const stream = new Stream(device);
  const std::scoped_lock lock(g.streams_mutex);
  g.streams.push_back(stream);
  return stream;
}

Stream& StreamOf(void* handle, int device) {
  static const std::array<Stream*, kDevices> defaults{KeptStream(0), KeptStream(1)};
  return handle == nullptr ? *defaults[static_cast<std::size_t>(device)]
                           : *static_cast<Stream*>(handle);
}

int Begin(std::string_view function) {
  if (!g.initialised && function != "cuInit" && function != "cuDriverGetVersion") {
    return kNotInitialised;
  }
  if (g.hidden.contains(function)) {
    return kNotSupported;
  }
  if (g.poison != 0 && function != "cuInit") {
    return g.poison;
  }
  const auto wanted = g.failures.find(function);
  if (wanted == g.failures.end() || wanted->second.second-- > 0) {
    return 0;
  }
  const int error = wanted->second.first;
  g.failures.erase(wanted);
  return error;
}

int BeginInContext(std::string_view function) {
  const int error = Begin(function);
  return error == 0 && t_current.empty() ? kInvalidContext : error;
}

int RefusedByCapture() {
  if (!g.capture || g.capture->by == std::this_thread::get_id() ||
      t_capture_mode == kCaptureRelaxed) {
    return 0;
  }
  g.capture->broken = true;
  return kCaptureUnsupported;
}

int BeginUnsafe(std::string_view function) {
  const int error = RefusedByCapture();
  return error == 0 ? BeginInContext(function) : error;
}

void Poison(int error) {
  g.poison = error;
  if (error != 0) {
    g.latest_poison = error;
    ++g.poisonings;
  }
  g.changed.notify_all();
}

std::shared_ptr<Allocation> Find(const std::byte* address, std::size_t bytes, std::size_t* offset) {
  auto after = g.memory.upper_bound(const_cast<std::byte*>(address));
  if (after == g.memory.begin()) {
    return nullptr;
  }
  --after;
  *offset = static_cast<std::size_t>(address - after->first);
  const std::size_t size = after->second->content.size();
  return *offset <= size && bytes <= size - *offset ? after->second : nullptr;
}

Registered RegisteredOf(const std::byte* memory, std::size_t bytes) {
  Registered found = Registered::kNo;
  for (const auto& [begin, size] : g.registered) {
    if (begin <= memory && memory + bytes <= begin + size) {
      return Registered::kWhole;
    }
    if (memory < begin + size && begin < memory + bytes) {
      found = Registered::kInPart;
    }
  }
  return found;
}

bool AllRegistered(const std::byte* memory, std::size_t bytes) {
  const std::byte* const end = memory + bytes;
  for (const auto& [begin, size] : g.registered) {
    if (begin <= memory && memory < begin + size) {
      memory = std::min<const std::byte*>(end, begin + size);
    }
  }
  return memory == end;
}

bool Mapped(const std::byte* memory, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(memory) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(memory) + bytes;
  constexpr std::size_t kAtOnce = 65536;
  static std::array<unsigned char, kAtOnce> resident;  // The lock guards it.
  for (std::uintptr_t at = begin; at < end; at += kAtOnce * page) {
    const std::size_t length = std::min<std::size_t>(end - at, kAtOnce * page);
    if (::mincore(reinterpret_cast<void*>(at), length, resident.data()) != 0 && errno == ENOMEM) {
      return false;
    }
  }
  return true;
}

void Log(const char* what, const std::byte* host, std::size_t bytes, int device) {
  if (g.logging) {
    g.log.push_back({what, reinterpret_cast<std::uintptr_t>(host), bytes, device, ++g.order});
  }
}

void QueueMove(Stream* on, Move move) {
  const int device = on->device();
  std::uint64_t& queued = g.bytes_queued[static_cast<std::size_t>(device)];
  queued += move.bytes;
  g.counts.bytes_queued += move.bytes;
  g.counts.most_bytes_queued = std::max(g.counts.most_bytes_queued, queued);
  if (!move.kernel) {
    g.counts.most_at_once = std::max(g.counts.most_at_once, ++g.counts.copies_under_way);
  }
  on->Queue([move = std::move(move), device, &queued, poisonings = g.poisonings,
             pause = std::chrono::microseconds(g.copy_microseconds)] {
    const auto log = [&](const char* what) {
      for (const Move::Part& part : move.parts) {
        Log(what, part.host, part.bytes, device);
      }
    };
    std::unique_lock held(g.mutex);
    if (poisonings == g.poisonings) {
      log("copy begins");
      held.unlock();
      std::this_thread::sleep_for(pause);
      held.lock();
    }
    if (poisonings == g.poisonings) {
      move.work();
    }
    if (poisonings == g.poisonings) {
      log("copy ends");
      (move.kernel ? g.counts.kernels : g.counts.copies) += 1;
      g.counts.kernel_bytes += move.kernel ? move.bytes : 0;
    }
    if (!move.kernel) {
      --g.counts.copies_under_way;
    }
    queued -= move.bytes;
    g.counts.bytes_queued -= move.bytes;
  });
}

}  // namespace fake_cuda
