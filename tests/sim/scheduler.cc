#include "sim/scheduler.h"

#include <algorithm>
#include <utility>

namespace varve::sim {

Scheduler::Scheduler(test::Random* random)
    : random_(*random), switch_one_in_(std::uint64_t{1} << random->Below(6)) {}

std::size_t Scheduler::Add(std::string name, std::function<void()> body) {
  std::size_t process = 0;
  {
    const std::scoped_lock lock(mutex_);
    processes_.emplace_back();
    process = processes_.size() - 1;
  }
  (void)AddTo(process, std::move(name), std::move(body));
  return process;
}

void Scheduler::Start(std::function<void()> body) {
  const std::size_t process = process_of_running();
  (void)AddTo(process, actors_[running_]->name + "'", std::move(body));
}

std::size_t Scheduler::AddTo(std::size_t process, std::string name, std::function<void()> body) {
  auto actor = std::make_unique<Actor>();
  actor->name = std::move(name);
  actor->body = std::move(body);
  actor->process = process;
  const std::scoped_lock lock(mutex_);
  actors_.push_back(std::move(actor));
  const std::size_t self = actors_.size() - 1;
  if (runs_) {
    alive_ += processes_[process].killed ? 0 : 1;
    actors_[self]->thread = std::thread([this, self] { Live(self); });
  }
  return self;
}

std::string Scheduler::Run(std::uint64_t most_steps) {
  most_steps_ = most_steps;
  {
    std::unique_lock lock(mutex_);
    alive_ = actors_.size();
    runs_ = true;
    running_ = Choose();
    for (std::size_t i = 0; i < actors_.size(); ++i) {
      actors_[i]->thread = std::thread([this, i] { Live(i); });
    }
    const auto stands = [&] { return aborted() && stands_when_aborted_; };
    all_ended_.wait(lock, [&] { return alive_ == 0 || stands(); });
    if (stands()) {
      for (const auto& actor : actors_) {
        actor->thread.detach();
      }
      return problem_;
    }
    let_go_ = true;
    for (const auto& actor : actors_) {
      actor->turn.notify_one();
    }
  }
  for (const auto& actor : actors_) {
    actor->thread.join();
  }
  return problem_;
}

bool Scheduler::AwaitTurn(std::unique_lock<std::mutex>* lock, std::size_t self) {
  Actor& actor = *actors_[self];
  const auto stands = [&] { return aborted() && stands_when_aborted_; };
  actor.turn.wait(*lock, [&] {
    return (running_ == self && !processes_[actor.process].killed && !stands()) ||
           (aborted() && !stands_when_aborted_) || let_go_;
  });
  return !let_go_;
}

void Scheduler::Live(std::size_t self) {
  const ScopedTimeSource time(this);
  std::function<void()> body;
  {
    std::unique_lock lock(mutex_);
    if (!AwaitTurn(&lock, self)) {
      LeaveTimeSource();
    }
    body = std::move(actors_[self]->body);
  }
  body();
  const std::scoped_lock lock(mutex_);
  actors_[self]->ended = true;
  if (processes_[actors_[self]->process].killed) {
    return;
  }
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

void Scheduler::Kill(std::size_t process) {
  std::unique_lock lock(mutex_);
  if (processes_[process].killed || aborted() || let_go_) {
    return;
  }
  processes_[process].killed = true;
  for (const auto& actor : actors_) {
    alive_ -= actor->process == process && !actor->ended ? 1 : 0;
  }
  if (alive_ == 0) {
    all_ended_.notify_all();
  }
  const std::size_t self = running_;
  if (actors_[self]->process == process) {
    Yield(&lock, self);
  }
}

void Scheduler::Stop(std::size_t process, TimePoint until) {
  std::unique_lock lock(mutex_);
  processes_[process].stopped_until = until;
  if (actors_[running_]->process == process && !aborted() && !let_go_) {
    Yield(&lock, running_);
  }
}

void Scheduler::Abort(std::string problem) {
  problem_ = std::move(problem);
  all_ended_.notify_all();
  for (const auto& actor : actors_) {
    actor->turn.notify_one();
  }
}

std::size_t Scheduler::Choose() {
  std::vector<std::size_t> able;
  std::size_t first_to_time_out = actors_.size();
  TimePoint first = TimePoint::max();
  for (std::size_t i = 0; i < actors_.size(); ++i) {
    const Actor& actor = *actors_[i];
    const Standing& process = processes_[actor.process];
    if (actor.ended || process.killed) {
      continue;
    }
    const bool ready = !actor.ready || actor.deadline <= now_ || actor.ready();
    if (ready && process.stopped_until <= now_) {
      able.push_back(i);
      continue;
    }
    const TimePoint next = std::max(ready ? now_ : actor.deadline, process.stopped_until);
    if (next < first) {
      first = next;
      first_to_time_out = i;
    }
  }
  if (able.empty()) {
    now_ = std::max(now_, first_to_time_out != actors_.size() ? first : now_);
    return first_to_time_out;
  }
  return able[random_.Below(able.size())];
}

void Scheduler::Yield(std::unique_lock<std::mutex>* lock, std::size_t self) {
  const bool killed = processes_[actors_[self]->process].killed;
  const std::size_t next = alive_ == 0 ? actors_.size() : Choose();
  if (next == actors_.size() && alive_ > 0) {
    Abort("no actor can go on: " + actors_[self]->name + " waits, as all others do");
    (void)AwaitTurn(lock, self);
    return;
  }
  if (next != self || killed) {
    running_ = next;
    if (next != actors_.size()) {
      actors_[next]->turn.notify_one();
    }
    if (!AwaitTurn(lock, self)) {
      LeaveTimeSource();
    }
  }
}

void Scheduler::Step() {
  if (!IsSimulated()) {
    return;  // It was let go.
  }
  std::unique_lock lock(mutex_);
  now_ += std::chrono::milliseconds(1);
  if (aborted()) {
    return;
  }
  if (++steps_ > most_steps_) {
    Abort("more than " + std::to_string(most_steps_) + " steps");
    (void)AwaitTurn(&lock, running_);
    return;
  }
  if (random_.OneIn(switch_one_in_)) {
    Yield(&lock, running_);
  }
}

bool Scheduler::WaitFor(TimePoint deadline, const std::function<bool()>& ready) {
  if (!IsSimulated()) {
    return false;
  }
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
  return !aborted() && !let_go_ && ready();
}

void Scheduler::SleepFor(std::chrono::nanoseconds time) {
  (void)WaitFor(now_ + time, [] { return false; });
}

const std::string& Scheduler::name_of_running() const { return actors_[running_]->name; }

}  // namespace varve::sim
