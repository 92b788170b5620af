/// A value that is read without a lock, so that a child of a fork can read it whatever the parent's
/// threads did at that moment.
#pragma once

#include <atomic>
#include <utility>

namespace varve {

/// Readers get the value as it was at some moment. Values that were replaced are kept until the
/// process ends: for what changes a few times. Threads: all members are safe.
template <class T>
class CopyOnWrite {
 public:
  /// Returns the value; good until the process ends.
  [[nodiscard]] const T& Get() const { return *value_.load(std::memory_order_acquire); }

  /// Calls `change` with a copy of the value, and puts the copy in its place if it returns true. It
  /// is called again where another thread was faster. Returns what it returned.
  template <class Change>
  bool Update(const Change& change) {
    const T* before = value_.load(std::memory_order_acquire);
    while (true) {
      T* const after = new T(*before);
      if (!change(after)) {
        delete after;
        return false;
      }
      if (value_.compare_exchange_strong(before, after, std::memory_order_acq_rel)) {
        return true;
      }
      delete after;
    }
  }

 private:
  std::atomic<const T*> value_{new T()};
};

}  // namespace varve
