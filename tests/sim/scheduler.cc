#include "sim/scheduler.h"

#include <algorithm>
#include <utility>

namespace varve::sim {

Scheduler::Scheduler(test::Random* random)
    : random_(*random), switch_one_in_(std::uint64_t{1} << random->Below(6)) {}

void Scheduler::Add(std::string name, std::function<void()> body) {
  auto actor = std::make_unique<Actor>();
  actor->name = std::move(name);
  actor->body = std::move(body);
  actors_.push_back(std::move(actor));
}

std::string Scheduler::Run(std::uint64_t most_steps) {
  most_steps_ = most_steps;
  alive_ = actors_.size();
  {
    std::unique_lock lock(mutex_);
    running_ = Choose();
    for (std::size_t i = 0; i < actors_.size(); ++i) {
      actors_[i]->thread = std::thread([this, i] { Live(i); });
    }
    all_ended_.wait(lock, [&] { return alive_ == 0; });
  }
  for (const auto& actor : actors_) {
    actor->thread.join();
  }
  return problem_;
}

void Scheduler::Live(std::size_t self) {
  const ScopedTimeSource time(this);
  Actor& actor = *actors_[self];
  {
    std::unique_lock lock(mutex_);
    actor.turn.wait(lock, [&] { return running_ == self || aborted(); });
  }
  actor.body();
  const std::scoped_lock lock(mutex_);
  actor.ended = true;
  if (--alive_ == 0) {
    all_ended_.notify_all();
  } else if (!aborted()) {
    running_ = Choose();
    if (running_ == actors_.size()) {
      Abort("no actor can go on");
    } else {
      actors_[running_]->turn.notify_one();
    }
  }
}

void Scheduler::Abort(std::string problem) {
  problem_ = std::move(problem);
  for (const auto& actor : actors_) {
    actor->turn.notify_one();
  }
}

std::size_t Scheduler::Choose() {
  std::vector<std::size_t> able;
  std::size_t first_to_time_out = actors_.size();
  for (std::size_t i = 0; i < actors_.size(); ++i) {
    const Actor& actor = *actors_[i];
    if (actor.ended) {
      continue;
    }
    if (!actor.ready || actor.deadline <= now_ || actor.ready()) {
      able.push_back(i);
    } else if (actor.deadline != TimePoint::max() &&
               (first_to_time_out == actors_.size() ||
                actor.deadline < actors_[first_to_time_out]->deadline)) {
      first_to_time_out = i;
    }
  }
  if (able.empty()) {
    if (first_to_time_out != actors_.size()) {
      now_ = actors_[first_to_time_out]->deadline;
    }
    return first_to_time_out;
  }
  return able[random_.Below(able.size())];
}

void Scheduler::Yield(std::unique_lock<std::mutex>* lock, std::size_t self) {
  const std::size_t next = Choose();
  if (next == actors_.size()) {
    Abort("no actor can go on: " + actors_[self]->name + " waits, as all others do");
    return;
  }
  if (next != self) {
    running_ = next;
    actors_[next]->turn.notify_one();
    actors_[self]->turn.wait(*lock, [&] { return running_ == self || aborted(); });
  }
}

void Scheduler::Step() {
  std::unique_lock lock(mutex_);
  now_ += std::chrono::milliseconds(1);
  if (aborted()) {
    return;
  }
  if (++steps_ > most_steps_) {
    Abort("more than " + std::to_string(most_steps_) + " steps");
    return;
  }
  if (random_.OneIn(switch_one_in_)) {
    Yield(&lock, running_);
  }
}

bool Scheduler::WaitUntil(TimePoint deadline, const std::function<bool()>& ready) {
  std::unique_lock lock(mutex_);
  if (aborted()) {
    return false;
  }
  const std::size_t self = running_;
  Actor& actor = *actors_[self];
  actor.ready = ready;
  actor.deadline = deadline;
  Yield(&lock, self);
  actor.ready = nullptr;
  return !aborted() && ready();
}

void Scheduler::SleepFor(std::chrono::nanoseconds time) {
  (void)WaitUntil(now_ + time, [] { return false; });
}

const std::string& Scheduler::name_of_running() const { return actors_[running_]->name; }

}  // namespace varve::sim
