// Coordinators inside one process: a single rank, and ranks joined by mailboxes.

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "varve/coordinator.h"

namespace varve {
namespace {

class SingleProcess final : public Coordinator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  Status Send(int to, std::string_view /*message*/, Deadline /*deadline*/) override {
    return Internal("send to rank " + std::to_string(to) + " in a world of one");
  }
  Result<std::string> Receive(int from, Deadline /*deadline*/) override {
    return Internal("receive from rank " + std::to_string(from) + " in a world of one");
  }
};

/// The mailboxes of one in-process world. `mutex` guards all members.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::string>> boxes;  // (from, to) -> messages.
  std::vector<bool> alive;
};

class InProcess final : public Coordinator {
 public:
  InProcess(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}
  InProcess(const InProcess&) = delete;
  InProcess& operator=(const InProcess&) = delete;
  ~InProcess() override {
    const std::scoped_lock lock(world_->mutex);
    world_->alive[static_cast<std::size_t>(rank_)] = false;
    world_->changed.notify_all();
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(world_->alive.size()); }

  Status Send(int to, std::string_view message, Deadline /*deadline*/) override {
    const std::scoped_lock lock(world_->mutex);
    if (!world_->alive[static_cast<std::size_t>(to)]) {
      return Unavailable("rank " + std::to_string(to) + " is lost");
    }
    world_->boxes[{rank_, to}].emplace_back(message);
    world_->changed.notify_all();
    return Status::Ok();
  }

  Result<std::string> Receive(int from, Deadline deadline) override {
    std::unique_lock lock(world_->mutex);
    // The sender makes the box, so that receiving needs no memory: a message that has arrived is
    // not lost.
    const auto box = [&] { return world_->boxes.find({from, rank_}); };
    const auto is_empty = [&] { return box() == world_->boxes.end() || box()->second.empty(); };
    const bool woken = world_->changed.wait_until(lock, deadline, [&] {
      return !is_empty() || !world_->alive[static_cast<std::size_t>(from)];
    });
    if (is_empty()) {
      return woken ? Unavailable("is lost")
                   : Unavailable("no answer before the deadline").With({.system_error = ETIMEDOUT});
    }
    std::string message = std::move(box()->second.front());
    box()->second.pop_front();
    return message;
  }

 private:
  std::shared_ptr<World> world_;
  int rank_;
};

}  // namespace

std::unique_ptr<Coordinator> MakeSingleProcessCoordinator() {
  return std::make_unique<SingleProcess>();
}

std::vector<std::unique_ptr<Coordinator>> MakeInProcessCoordinators(int size) {
  auto world = std::make_shared<World>();
  world->alive.assign(static_cast<std::size_t>(size), true);
  std::vector<std::unique_ptr<Coordinator>> ranks;
  ranks.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<InProcess>(world, rank));
  }
  return ranks;
}

}  // namespace varve
