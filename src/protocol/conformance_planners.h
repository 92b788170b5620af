/// Planners that observe a backend, or fail in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tensor/box.h"
#include "varve/protocol/planner.h"

namespace varve::protocol {

/// Calls a function before it returns content; the function's error becomes the result.
class WatchedSavePlanner : public DefaultSavePlanner {
 public:
  explicit WatchedSavePlanner(std::function<Status(const WriteItem&)> watch)
      : watch_(std::move(watch)) {}
  Result<ItemData> ResolveData(const WriteItem& item) override {
    VARVE_RETURN_IF_ERROR(watch_(item));
    return DefaultSavePlanner::ResolveData(item);
  }

 private:
  std::function<Status(const WriteItem&)> watch_;
};

/// Returns copies that are overwritten when their owner is destroyed.
class LendingSavePlanner : public DefaultSavePlanner {
 public:
  Result<ItemData> ResolveData(const WriteItem& item) override {
    VARVE_ASSIGN_OR_RETURN(ItemData data, DefaultSavePlanner::ResolveData(item));
    if (!item.tensor_data) {
      std::string& copy = Keep(std::string(data.bytes));
      data.bytes = copy;
      data.owner = OwnerOf(copy);
      return data;
    }
    // The suite's shards are row-major and whole, so one piece of memory is one chunk.
    std::string& copy = Keep(std::string(static_cast<const char*>(data.data), ItemBytes(item)));
    data.data = copy.data();
    data.owner = OwnerOf(copy);
    return data;
  }

 private:
  std::string& Keep(std::string bytes) {
    const std::lock_guard lock(mutex_);
    return memory_.emplace_back(std::move(bytes));
  }
  static std::shared_ptr<const void> OwnerOf(std::string& bytes) {
    return {bytes.data(), [&bytes](const void*) { std::memset(bytes.data(), 0xEE, bytes.size()); }};
  }

  std::mutex mutex_;
  std::deque<std::string> memory_;
};

/// Fails in one hook.
class RefusingLoadPlanner : public DefaultLoadPlanner {
 public:
  enum class Hook : std::uint8_t { kLoadBytes, kResolveTensor, kCommitTensor };
  explicit RefusingLoadPlanner(Hook hook) : hook_(hook) {}

  Status LoadBytes(const ReadItem& item, std::string_view encoded) override {
    return hook_ == Hook::kLoadBytes ? Refusal() : DefaultLoadPlanner::LoadBytes(item, encoded);
  }
  Result<TensorMemory> ResolveTensor(const ReadItem& item) override {
    return hook_ == Hook::kResolveTensor ? Result<TensorMemory>(Refusal())
                                         : DefaultLoadPlanner::ResolveTensor(item);
  }
  Status CommitTensor(const ReadItem& item, const TensorMemory& memory) override {
    return hook_ == Hook::kCommitTensor ? Refusal()
                                        : DefaultLoadPlanner::CommitTensor(item, memory);
  }

 private:
  static Status Refusal() { return FailedPrecondition("refused by the planner"); }
  Hook hook_;
};

/// Counts the deliveries of each item.
class CountingLoadPlanner : public DefaultLoadPlanner {
 public:
  Result<LoadPlan> FinishPlan(LoadPlan plan) override {
    for (const ReadItem& item : plan.items) {
      counts_[NameOf(item)] = {};
    }
    return plan;
  }
  Status LoadBytes(const ReadItem& item, std::string_view encoded) override {
    Count(item, &Counts::delivered);
    return DefaultLoadPlanner::LoadBytes(item, encoded);
  }
  Result<TensorMemory> ResolveTensor(const ReadItem& item) override {
    Count(item, &Counts::resolved);
    return DefaultLoadPlanner::ResolveTensor(item);
  }
  Status CommitTensor(const ReadItem& item, const TensorMemory& /*memory*/) override {
    Count(item, &Counts::delivered);
    return Status::Ok();
  }

  /// Checks that each value was delivered once, and each piece resolved and committed once.
  [[nodiscard]] Status Check() const {
    for (const auto& [name, counts] : counts_) {
      const bool is_tensor = name.starts_with("tensor");
      if (counts.delivered != 1 || counts.resolved != (is_tensor ? 1 : 0)) {
        return DataLoss(name + ": resolved " + std::to_string(counts.resolved) +
                        " times, delivered " + std::to_string(counts.delivered) + " times");
      }
    }
    return Status::Ok();
  }

 private:
  struct Counts {
    int resolved = 0;
    int delivered = 0;
  };
  static std::string NameOf(const ReadItem& item) {
    return ToString(item.dest_index) + " + " + varve::ToString(item.dest_offsets);
  }
  void Count(const ReadItem& item, int Counts::* what) {
    const std::lock_guard lock(mutex_);
    ++(counts_[NameOf(item)].*what);
  }

  std::mutex mutex_;
  std::map<std::string, Counts> counts_;
};

}  // namespace varve::protocol
