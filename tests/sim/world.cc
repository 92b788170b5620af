#include "sim/world.h"

#include <utility>

#include "base/guarded.h"

namespace varve::sim {

namespace {

/// Longer than every timeout of a save.
constexpr auto kLong = std::chrono::hours(2);

Fault DrawFault(test::Random* random) {
  constexpr Operation kOperations[] = {
      Operation::kOpenForWrite,  Operation::kWrite,  Operation::kSync,
      Operation::kMakeDirectory, Operation::kRename, Operation::kSyncDirectory,
      Operation::kRemove,        Operation::kLock,   Operation::kOpenForRead,
      Operation::kRead,          Operation::kList};
  const bool full = random->OneIn(3);
  Fault fault;
  fault.operation = kOperations[random->Below(std::size(kOperations))];
  fault.number = random->Below(6);
  fault.forever = random->OneIn(2);
  fault.status =
      full ? Status(StatusCode::kOutOfSpace, "no space left") : Unavailable("input/output error");
  return fault;
}

}  // namespace

Fate DrawFate(test::Random* random) {
  Fate fate;
  if (random->OneIn(3)) {
    fate.killed_at = random->Below(90);
  }
  if (random->OneIn(8)) {
    fate.stands_at = random->Below(90);
  }
  if (random->OneIn(5)) {
    fate.fault = DrawFault(random);
  }
  return fate;
}

Process::Process(const Surroundings& around, std::string name, Fate fate)
    : around_(around), name_(std::move(name)), fate_(std::move(fate)), storage_(*around.storage) {
  if (fate_.fault) {
    storage_.FailAt({fate_.fault->operation, fate_.fault->number, fate_.fault->forever,
                     CopyOf(fate_.fault->status)});
  }
  storage_.SetObserver([this](Operation operation, const std::string& what) {
    Point(std::string(OperationName(operation)) + " " + what);
  });
  if (around_.plant != Plant::kNone) {
    storage_.SetSkipped([this](Operation operation, const std::string& what, bool fails) {
      return Skips(around_.plant, name_, operation, what, fails);
    });
  }
}

void Process::Point(const std::string& what) {
  if (storage_.stopped()) {
    return;
  }
  if (around_.scheduler->aborted()) {
    storage_.Stop();  // So that its thread ends soon.
    return;
  }
  const std::uint64_t operation = operations_++;
  if (fate_.clock_jumps.count() > 0 && (operation == 0 || around_.random->OneIn(16))) {
    const std::int64_t most = fate_.clock_jumps.count();
    const auto by =
        static_cast<std::int64_t>(around_.random->Below(2 * static_cast<std::uint64_t>(most) + 1));
    around_.scheduler->SetClockAhead(std::chrono::milliseconds(by - most));
  }
  const auto others = [&](const std::function<void(Process&)>& strike) {
    if (fate_.with_node && node_) {
      node_([&](Process& other) {
        if (&other != this) {
          strike(other);
        }
      });
    }
  };
  if (fate_.killed_at == operation) {
    others([&](Process& other) { other.Kill("its node dies"); });
    Kill(what);
    return;
  }
  const bool writes_data = what.starts_with("write ") && what.find("/data-") != std::string::npos;
  const bool stands_at_write = writes_data && fate_.stands_at_write == data_writes_++;
  if (fate_.stands_at == operation || stands_at_write) {
    others([](Process& other) { other.Stand("its node stands still"); });
    Stand(what);
  }
  if (fate_.stuck_at == operation) {
    around_.trace->Add(name_ + ": STUCK in: " + what);
    around_.scheduler->SleepFor(kLong);
  }
  if (fate_.slow && around_.random->OneIn(6)) {
    around_.scheduler->SleepFor(std::chrono::milliseconds(around_.random->Below(3000)));
  }
  around_.scheduler->Step();
  if (around_.trace->kept()) {
    around_.trace->Add(name_ + ": " + what);
  }
}

void Process::Stand(const std::string& before) {
  if (storage_.stopped()) {
    return;
  }
  around_.trace->Add(name_ + ": stands still before: " + before);
  if (number_) {
    around_.scheduler->Stop(*number_, around_.scheduler->Now() + kLong);
  } else {
    around_.scheduler->SleepFor(kLong);
  }
}

void Process::Kill(const std::string& before) {
  if (storage_.stopped()) {
    return;
  }
  around_.trace->Add(name_ + ": KILLED before: " + before);
  storage_.Stop();
  if (at_death_) {
    at_death_();
  }
  if (number_) {
    around_.scheduler->Kill(*number_);
  }
}

void Mail::Put(int from, int to, std::string message) {
  const std::scoped_lock lock(mutex_);
  boxes_[{from, to}].push_back(std::move(message));
}

std::optional<std::string> Mail::Take(int from, int to) {
  const std::scoped_lock lock(mutex_);
  auto& box = boxes_[{from, to}];
  if (box.empty()) {
    return std::nullopt;
  }
  std::string message = std::move(box.front());
  box.pop_front();
  return message;
}

bool Mail::Has(int from, int to) {
  const std::scoped_lock lock(mutex_);
  const auto found = boxes_.find({from, to});
  return found != boxes_.end() && !found->second.empty();
}

bool Mail::alive(int rank) {
  const std::scoped_lock lock(mutex_);
  return alive_[static_cast<std::size_t>(rank)];
}

void Mail::Ends(int rank) {
  const std::scoped_lock lock(mutex_);
  alive_[static_cast<std::size_t>(rank)] = false;
}

Status MailCoordinator::Send(int to, std::string_view message, Deadline /*deadline*/) {
  process_.Point("send to rank " + std::to_string(to));
  if (process_.killed()) {
    return Unavailable("killed");
  }
  if (!mail_->alive(to)) {
    return Unavailable("rank " + std::to_string(to) + " is lost");
  }
  mail_->Put(rank_, to, std::string(message));
  return Status::Ok();
}

Result<std::string> MailCoordinator::Receive(int from, Deadline deadline) {
  process_.Point("receive from rank " + std::to_string(from));
  const auto ready = [&] { return mail_->Has(from, rank_) || !mail_->alive(from); };
  if (!process_.killed() && !ready()) {
    (void)process_.scheduler().WaitFor(deadline, ready);
  }
  if (process_.killed()) {
    return Unavailable("killed");
  }
  std::string& last = last_[from];
  if (process_.plant() == Plant::kAnswersTwice && !last.empty() && ++answers_ % 2 == 0) {
    return last;
  }
  std::optional<std::string> message = mail_->Take(from, rank_);
  if (message) {
    last = *message;
    return *std::move(message);
  }
  if (process_.plant() == Plant::kLostRankCounted && !last.empty()) {
    return last;
  }
  return Unavailable(mail_->alive(from) ? "no answer before the deadline" : "is lost");
}

}  // namespace varve::sim
