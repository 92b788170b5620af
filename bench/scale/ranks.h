/// Ranks other than 0: each runs the real Save, with a coordinator that passes on the messages
/// of one exchange at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipe.h"
#include "state.h"
#include "varve/coordinator.h"

namespace varve::scale {

/// Rank `rank`'s side of all saves of a job: it keeps what they have told it. Answers the first
/// exchange of a save with the reply, if there is one, and fails it otherwise: its Save then
/// returns, and has made its part.
class OneRank final : public Coordinator {
 public:
  OneRank(const Job& job, std::uint64_t rank)
      : job_(job), size_(static_cast<int>(job.ranks)), rank_(static_cast<int>(rank)) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  Status Send(int /*to*/, std::string_view message, Deadline /*deadline*/) override {
    sent_.emplace_back(message);
    return Status::Ok();
  }
  Result<std::string> Receive(int /*from*/, Deadline /*deadline*/) override {
    if (!reply_) {
      return Unavailable("the simulation goes no further");
    }
    return *std::exchange(reply_, std::nullopt);
  }

  /// Returns the message that the rank sends in exchange A, its plan (no `reply`), or in exchange
  /// B, after it has written its file as `reply` says.
  std::string MessageOf(std::uint64_t save, std::optional<std::string> reply) {
    static const std::vector<float> memory = MakeMemory(job_);
    const std::size_t wanted = reply ? 2 : 1;
    sent_.clear();
    reply_ = std::move(reply);
    const auto in_step = MakeInStep(std::shared_ptr<Coordinator>(std::shared_ptr<void>(), this));
    const auto saved = Save(StateOf(job_, static_cast<std::uint64_t>(rank_), save, memory),
                            PathOf(job_, save), LongSave(), *in_step);
    if (sent_.size() != wanted) {
      Die("rank " + std::to_string(rank_) + ": " + saved.status().message());
    }
    return sent_.back();
  }

 private:
  const Job job_;
  const int size_;
  const int rank_;
  std::optional<std::string> reply_;
  std::vector<std::string> sent_;
};

}  // namespace varve::scale
