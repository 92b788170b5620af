#include "base/time_source.h"

#include <thread>
#include <utility>

namespace varve {
namespace {

thread_local TimeSource* source_of_thread = nullptr;

}  // namespace

TimePoint Now() {
  return source_of_thread != nullptr ? source_of_thread->Now() : std::chrono::steady_clock::now();
}

bool IsSimulated() { return source_of_thread != nullptr; }

void SleepFor(std::chrono::nanoseconds time) {
  if (source_of_thread != nullptr) {
    source_of_thread->SleepFor(time);
  } else {
    std::this_thread::sleep_for(time);
  }
}

ScopedTimeSource::ScopedTimeSource(TimeSource* source)
    : before_(std::exchange(source_of_thread, source)) {}

ScopedTimeSource::~ScopedTimeSource() { source_of_thread = before_; }

}  // namespace varve
