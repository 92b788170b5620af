/// Ranks other than 0: each runs the real Save, with a coordinator that passes on the messages
/// of one exchange at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipe.h"
#include "state.h"
#include "varve/coordinator.h"

namespace varve::scale {

/// Rank `rank`'s side of a save. Keeps its messages. Answers its first exchange with `reply`, if
/// there is one, and fails it otherwise: its Save then returns, and has made its part.
class OneRank final : public Coordinator {
 public:
  OneRank(const Job& job, std::uint64_t rank, std::optional<std::string> reply)
      : size_(static_cast<int>(job.ranks)),
        rank_(static_cast<int>(rank)),
        reply_(std::move(reply)) {}
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
  [[nodiscard]] const std::vector<std::string>& sent() const { return sent_; }

 private:
  const int size_;
  const int rank_;
  std::optional<std::string> reply_;
  std::vector<std::string> sent_;
};

/// Returns the message that a rank sends in exchange A, its plan (no `reply`), or in exchange B,
/// after it has written its file as `reply` says.
inline std::string MessageOf(const Job& job, std::uint64_t rank, std::optional<std::string> reply) {
  static const std::vector<float> memory = MakeMemory(job);
  const std::size_t wanted = reply ? 2 : 1;
  OneRank coordinator(job, rank, std::move(reply));
  const auto saved = Save(StateOf(job, rank, memory), job.path, LongSave(), coordinator);
  if (coordinator.sent().size() != wanted) {
    Die("rank " + std::to_string(rank) + ": " + saved.status().message());
  }
  return coordinator.sent().back();
}

}  // namespace varve::scale
