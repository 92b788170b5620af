/// A value that is read without a lock, so that a child of a fork can read it whatever the parent's
/// threads did at that moment.
#pragma once

#include <atomic>
#include <memory>

namespace varve {

/// Readers get the value as it was at some moment. Values that were replaced are kept as long as
/// this: for what changes a few times. Threads: all members but the destructor are safe.
template <class T>
class CopyOnWrite {
 public:
  CopyOnWrite() = default;
  CopyOnWrite(const CopyOnWrite&) = delete;
  CopyOnWrite& operator=(const CopyOnWrite&) = delete;
  ~CopyOnWrite() {
    for (const Version* version = newest_.load(); version != nullptr;) {
      const Version* const before = version->before;
      delete version;
      version = before;
    }
  }

  /// Returns the value; good as long as this.
  [[nodiscard]] const T& Get() const { return newest_.load(std::memory_order_acquire)->value; }

  /// Calls `change` with a copy of the value, and puts the copy in its place if it returns true. It
  /// is called again where another thread was faster. Returns what it returned.
  template <class Change>
  bool Update(const Change& change) {
    const Version* before = newest_.load(std::memory_order_acquire);
    while (true) {
      auto after = std::make_unique<Version>(Version{before->value, before});
      if (!change(&after->value)) {
        return false;
      }
      if (newest_.compare_exchange_strong(before, after.get(), std::memory_order_acq_rel)) {
        (void)after.release();
        return true;
      }
    }
  }

 private:
  struct Version {
    T value;
    const Version* before;  ///< Null for the first.
  };
  std::atomic<const Version*> newest_{new Version{T(), nullptr}};
};

}  // namespace varve
