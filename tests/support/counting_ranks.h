/// Ranks of one process that note what they send.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "varve/coordinator.h"

namespace varve::test {

/// Notes the size of each message that a rank sends; may change a byte of one.
class CountingRank final : public Coordinator {
 public:
  explicit CountingRank(std::shared_ptr<Coordinator> ranks) : ranks_(std::move(ranks)) {}
  [[nodiscard]] int rank() const override { return ranks_->rank(); }
  [[nodiscard]] int size() const override { return ranks_->size(); }
  Status Send(int to, std::string_view message, Deadline deadline) override {
    std::string sent(message);
    sizes_.push_back(sent.size());
    if (messages() == damaged_) {
      char& byte = sent[sent.size() - from_end_];
      byte = static_cast<char>(byte ^ 1);
    }
    return ranks_->Send(to, sent, deadline);
  }
  Result<std::string> Receive(int from, Deadline deadline) override {
    return ranks_->Receive(from, deadline);
  }

  /// Changes a byte of the message of that number, from 1 on; of none for 0. `from_end`: 1 is its
  /// last byte.
  void Damage(int message, std::size_t from_end = 1) {
    damaged_ = message;
    from_end_ = from_end;
  }
  void Forget() { sizes_.clear(); }
  [[nodiscard]] int messages() const { return static_cast<int>(sizes_.size()); }
  [[nodiscard]] const std::vector<std::size_t>& sizes() const { return sizes_; }
  [[nodiscard]] std::size_t bytes() const {
    std::size_t sum = 0;
    for (const std::size_t size : sizes_) {
      sum += size;
    }
    return sum;
  }
  /// Returns the same rank, which has forgotten what earlier saves have told it.
  [[nodiscard]] std::unique_ptr<CountingRank> Anew() const {
    return std::make_unique<CountingRank>(ranks_);
  }

 private:
  const std::shared_ptr<Coordinator> ranks_;
  int damaged_ = 0;
  std::size_t from_end_ = 1;
  std::vector<std::size_t> sizes_;
};

inline std::vector<std::unique_ptr<CountingRank>> MakeCountingRanks(std::size_t count) {
  std::vector<std::unique_ptr<CountingRank>> ranks;
  for (auto& coordinator : MakeInProcessCoordinators(static_cast<int>(count))) {
    ranks.push_back(std::make_unique<CountingRank>(std::move(coordinator)));
  }
  return ranks;
}

}  // namespace varve::test
