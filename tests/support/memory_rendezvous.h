/// A rendezvous of ranks that are threads of one process.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "varve/coordinator.h"

namespace varve::test {

class MemoryRendezvous final : public Rendezvous {
 public:
  Status Set(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(mutex_);
    values_[key] = value;
    return Status::Ok();
  }
  Result<std::optional<std::string>> Get(const std::string& key) override {
    const std::scoped_lock lock(mutex_);
    ++looks_;
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] int looks() const { return looks_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::atomic<int> looks_{0};
};

}  // namespace varve::test
