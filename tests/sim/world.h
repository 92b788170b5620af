/// The processes of a simulation: each sees the storage through a view of its own, in which the
/// seed lets it be killed, stand still, or meet an error; ranks of a job exchange messages.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/plants.h"
#include "sim/scheduler.h"
#include "storages/faulty.h"
#include "storages/memory.h"
#include "varve/coordinator.h"

namespace varve::sim {

/// The events of a run, for a person who replays it. Kept only if asked for.
class Trace {
 public:
  explicit Trace(bool kept) : kept_(kept) {}
  [[nodiscard]] bool kept() const { return kept_; }
  void Add(std::string line) {
    if (kept_) {
      lines_.push_back(std::move(line));
    }
  }
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

 private:
  const bool kept_;
  std::vector<std::string> lines_;
};

/// The parts of a run that all processes share.
struct Surroundings {
  test::Random* random;
  Scheduler* scheduler;
  MemoryStorage* storage;
  Plant plant = Plant::kNone;
  Trace* trace;
};

/// The failures that the seed has chosen for a process. Its operations are storage calls and
/// messages; they count from 0.
struct Fate {
  std::optional<std::uint64_t> killed_at;  ///< The operation before which it is killed.
  std::optional<std::uint64_t> stands_at;  ///< The operation before which it stands still for long.
  std::optional<std::uint64_t> stands_at_write;  ///< Likewise, of the writes to data files.
  std::optional<Fault> fault;
  std::optional<std::uint64_t> stuck_at;  ///< The operation that takes long; its other threads run.
  bool with_node = false;  ///< What kills it, or stops it, does so to all processes of its node.
  bool slow = false;       ///< Some of its operations take seconds.
  /// Its time of day jumps now and then, at most so far from the true one.
  std::chrono::milliseconds clock_jumps{0};

  [[nodiscard]] bool is_calm() const {
    return !killed_at && !stands_at && !stands_at_write && !stuck_at && !fault;
  }
};

/// Draws a fate; of about half of the processes it is calm.
Fate DrawFate(test::Random* random);

class Process {
 public:
  Process(const Surroundings& around, std::string name, Fate fate);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() = default;

  [[nodiscard]] FaultyStorage& storage() { return storage_; }
  [[nodiscard]] const Fate& fate() const { return fate_; }
  [[nodiscard]] bool killed() const { return storage_.stopped(); }
  [[nodiscard]] Scheduler& scheduler() { return *around_.scheduler; }
  [[nodiscard]] Plant plant() const { return around_.plant; }

  /// Says which of the scheduler's processes this is. Then a death or a standstill is all its
  /// actors'; otherwise it goes on with a storage that fails.
  void SetNumber(std::size_t number) { number_ = number; }
  /// Sets a function that is called when the process is killed.
  void AtDeath(std::function<void()> ends) { at_death_ = std::move(ends); }
  /// Sets a function that calls another for each process of this one's node.
  void SetNode(std::function<void(const std::function<void(Process&)>&)> node) {
    node_ = std::move(node);
  }
  /// Lets all its actors stand still for hours, once it has begun.
  void Stand(const std::string& before);
  void Kill(const std::string& before);

  /// A point at which another process may go on, and at which this one's fate may strike.
  void Point(const std::string& what);

 private:
  const Surroundings around_;
  const std::string name_;
  const Fate fate_;
  FaultyStorage storage_;
  std::uint64_t operations_ = 0;
  std::uint64_t data_writes_ = 0;
  std::optional<std::size_t> number_;
  std::function<void()> at_death_;
  std::function<void(const std::function<void(Process&)>&)> node_;
};

/// The messages between the ranks of one job.
class Mail {
 public:
  explicit Mail(int size) : alive_(static_cast<std::size_t>(size), true) {}
  void Put(int from, int to, std::string message);
  std::optional<std::string> Take(int from, int to);
  [[nodiscard]] bool Has(int from, int to);
  [[nodiscard]] bool alive(int rank);
  void Ends(int rank);
  [[nodiscard]] int size() const { return static_cast<int>(alive_.size()); }

 private:
  std::mutex mutex_;  // For a run that was aborted: its actors run at once.
  std::vector<bool> alive_;
  std::map<std::pair<int, int>, std::deque<std::string>> boxes_;
};

/// A rank's side of the mail. A process that was killed sends and receives nothing; others learn of
/// it when its rank has ended.
class MailCoordinator final : public Coordinator {
 public:
  MailCoordinator(std::shared_ptr<Mail> mail, int rank, Process* process)
      : mail_(std::move(mail)), rank_(rank), process_(*process) {}
  MailCoordinator(const MailCoordinator&) = delete;
  MailCoordinator& operator=(const MailCoordinator&) = delete;
  ~MailCoordinator() override { mail_->Ends(rank_); }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return mail_->size(); }
  Status Send(int to, std::string_view message, Deadline deadline) override;
  Result<std::string> Receive(int from, Deadline deadline) override;

 private:
  std::shared_ptr<Mail> mail_;
  const int rank_;
  Process& process_;
  // For the planted bugs of messages:
  std::map<int, std::string> last_;
  int answers_ = 0;
};

}  // namespace varve::sim
