#include "base/retry_time.h"

#include <algorithm>

namespace varve {
namespace {

thread_local ScopedRetryTime* current_retry_time = nullptr;

}  // namespace

ScopedRetryTime::ScopedRetryTime(std::chrono::milliseconds in_all)
    : left_(current_retry_time == nullptr ? in_all : std::min(in_all, current_retry_time->left())),
      before_(std::exchange(current_retry_time, this)) {}
ScopedRetryTime::~ScopedRetryTime() { current_retry_time = before_; }

void ScopedRetryTime::Spend(std::chrono::milliseconds time) {
  for (ScopedRetryTime* scope = this; scope != nullptr; scope = scope->before_) {
    scope->left_ -= time;
  }
}

ScopedRetryTime* CurrentRetryTime() { return current_retry_time; }

}  // namespace varve
