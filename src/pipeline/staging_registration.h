/// The registration of staging memory with the CUDA driver.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "device/cuda_devices.h"
#include "varve/events.h"

namespace varve {

/// Registers the beginning of a mapping in few, large ranges, and takes it back when destroyed,
/// which must come before the mapping is removed. Threads: safe.
class StagingRegistration {
 public:
  /// Bytes of one range at most: drivers since r580 refuse 512 GiB and more in one call, and what
  /// is refused should not be everything.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{32} << 30;

  explicit StagingRegistration(std::byte* base) : base_(base) {}
  StagingRegistration(const StagingRegistration&) = delete;
  StagingRegistration& operator=(const StagingRegistration&) = delete;
  ~StagingRegistration();

  /// Registers the first `bytes`, which must have their pages, by the context of `device`. With
  /// `sparingly` only where that doubles what is registered: then memory that grows block by block
  /// takes few registrations, 14 for 64 GiB. A range that the driver refuses stays as it is, and is
  /// not asked for again.
  void Cover(CudaDevices& devices, int device, std::uint64_t bytes, bool sparingly);

  /// Returns true where Cover would register something. Does not wait for one that is under way.
  [[nodiscard]] bool Wants(std::uint64_t bytes) const;

  [[nodiscard]] StagingMemory report() const;
  void SetNode(std::optional<int> node);

 private:
  void Note(const Status& status, std::uint64_t bytes, std::chrono::duration<double> took);

  std::byte* const base_;
  std::atomic<std::uint64_t> covered_ = 0;  // From the base on: registered, or refused.
  std::mutex covering_;                     // Held for seconds. Guards what follows.
  CudaDevices* devices_ = nullptr;
  std::vector<std::byte*> ranges_;
  mutable std::mutex mutex_;  // Guards what follows.
  StagingMemory report_;
};

}  // namespace varve
