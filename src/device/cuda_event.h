/// A device's context and events, for as long as a scope or an owner lasts.
#pragma once

#include "device/cuda_driver.h"

namespace varve {

/// Makes a context current on this thread, and the thread harmless to captures, until the end of
/// the scope.
class CudaCurrent {
 public:
  CudaCurrent(const CudaDriver& driver, CudaDriver::Handle context)
      : driver_(driver), error_(driver.context_push(context)) {
    if (error_ == 0) {
      exchanged_ = driver_.exchange_capture_mode(&mode_) == 0;
    }
  }
  CudaCurrent(const CudaCurrent&) = delete;
  CudaCurrent& operator=(const CudaCurrent&) = delete;
  ~CudaCurrent() {
    if (exchanged_) {
      driver_.exchange_capture_mode(&mode_);
    }
    CudaDriver::Handle popped = nullptr;
    if (error_ == 0) {
      driver_.context_pop(&popped);
    }
  }
  [[nodiscard]] int error() const { return error_; }

 private:
  const CudaDriver& driver_;
  const int error_;
  int mode_ = CudaDriver::kRelaxedCapture;
  bool exchanged_ = false;
};

/// An event of a stream that can be waited for asleep.
class CudaEvent {
 public:
  CudaEvent(const CudaDriver& driver, CudaDriver::Handle context, CudaDriver::Handle stream)
      : driver_(driver), context_(context), stream_(stream) {
    const CudaCurrent current(driver_, context_);
    error_ = current.error() != 0 ? current.error()
                                  : driver_.event_create(&event_, CudaDriver::kEventBlockingSync |
                                                                      CudaDriver::kEventNoTiming);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent() {
    if (error_ == 0) {
      const CudaCurrent current(driver_, context_);
      driver_.event_destroy(event_);
    }
  }
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] CudaDriver::Handle get() const { return event_; }

  /// Waits until the stream has reached the event, also where the driver refuses to say when.
  [[nodiscard]] int Wait() const {
    const int error = WaitForEvent();
    if (error != 0) {
      // What is queued before the event may be under way. Waits for what is queued after it, too.
      const CudaCurrent current(driver_, context_);
      driver_.stream_synchronize(stream_);
    }
    return error;
  }

 private:
  [[nodiscard]] int WaitForEvent() const {
    const CudaCurrent current(driver_, context_);
    return current.error() != 0 ? current.error() : driver_.event_synchronize(event_);
  }

  const CudaDriver& driver_;
  const CudaDriver::Handle context_;
  const CudaDriver::Handle stream_;
  CudaDriver::Handle event_ = nullptr;
  int error_ = 0;
};

}  // namespace varve
