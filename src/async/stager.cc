// Admission, order and threads of asynchronous saves. The steps of each save are in job.cc.

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "async/attempts.h"
#include "async/job.h"
#include "async/last_deferred.h"
#include "async/serial_thread.h"
#include "async/submitter.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "device/cuda_devices.h"
#include "pipeline/staging_pool.h"
#include "publish/commit.h"
#include "varve/async_save.h"
#include "varve/storage.h"

namespace varve {
namespace {

constexpr int kMostCopyThreads = 8;
/// Threads of a save from a device wait for it most of the time; in the first one each zeroes new
/// pages, at 3 GB/s, and copies to them.
constexpr int kMostDeviceThreads = 16;
constexpr int kThreadsThatWaitForDevices = 4;

Status CheckOptions(const StagerOptions& options) {
  if (options.max_in_flight < 1) {
    return InvalidArgument("max_in_flight must be at least 1, not " +
                           std::to_string(options.max_in_flight));
  }
  if (options.local_ranks < 1 || options.copy_threads < 0) {
    return InvalidArgument("local_ranks must be at least 1 and copy_threads not negative");
  }
  if (options.pinned_memory.value_or(false) && !options.copy_from_devices.value_or(true)) {
    return InvalidArgument(
        "pinned_memory without copy_from_devices: nothing else copies from a device into staging "
        "memory");
  }
  return Status::Ok();
}

Status CanBeSubmitted(const AsyncJob& job, const Storage& storage) {
  if (&job.storage() != &storage || job.options().save.progress) {
    return InvalidArgument(
        "a save that another process writes has neither progress nor a storage "
        "of this process");
  }
  return Status::Ok();
}

/// Returns the number of threads that copy: a half of the cores where training computes meanwhile.
int CopyThreads(int wanted, bool overlapped) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int used = overlapped ? cores / 2 : cores;
  return wanted > 0 ? wanted : std::clamp(used, 1, kMostCopyThreads);
}

void NoteFailureOf(const AsyncJob& job, const Status& status) {
  if (!job.options().save.coordinate || job.rank() == 0) {
    NoteFailure(job.storage(), job.path(), status);
  }
}

}  // namespace

using Job = std::shared_ptr<AsyncJob>;

struct Stager::Impl {
  StagerOptions options;
  std::unique_ptr<Coordinator> background;
  std::unique_ptr<StagingPool> pool;
  std::unique_ptr<Submitter> submitter;  // Null where this process writes the saves.
  Storage* executors_storage = &AnyStorage();

  std::mutex call_mutex;  // One call at a time: plans and turns to write come in one order.
  std::mutex mutex;       // Guards the two members below.
  std::condition_variable changed;
  std::list<Job> in_flight;  // Not yet written; hold staging memory or are about to.
  int open = 0;              // Number of those, and of saves whose outcome is being reported.

  LastDeferred last_deferred;  // Guarded by call_mutex.

  // Last: their work uses all of the above, and ends first. The writer's may wait for the copier's.
  SerialThread writer;
  SerialThread copier;

  [[nodiscard]] bool pins() const {
    return options.pinned_memory.value_or(options.copy_from_devices.value_or(true));
  }

  [[nodiscard]] int copy_threads(const AsyncJob& job) const {
    const int threads = CopyThreads(options.copy_threads, job.options().overlapped);
    if (!job.device()) {
      return threads;
    }
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    const int more = options.copy_threads > 0 ? 0 : std::min(cores, kMostDeviceThreads);
    return std::max(threads + kThreadsThatWaitForDevices, more);
  }

  std::size_t count() {
    const std::scoped_lock lock(mutex);
    return in_flight.size();
  }

  [[nodiscard]] std::size_t most() const { return static_cast<std::size_t>(options.max_in_flight); }

  /// Places in the queues for one save. They are made before the ranks settle who writes what. From
  /// then on the other ranks count on this one, and no step of it may need memory.
  struct Places {
    std::list<Job> in_flight;
    SerialThread::Task write;
    SerialThread::Task stage;
    StagingPool::Ticket ticket{};
  };

  Result<std::shared_ptr<Places>> MakePlaces(const Job& job) {
    auto places = std::make_shared<Places>();
    places->in_flight.push_back(job);
    places->write = SerialThread::Task([this, job] { Finish(job); });
    if (job->options().overlapped) {
      places->stage = SerialThread::Task([this, job, places] { Stage(job, places->ticket); });
    }
    return places;
  }

  /// Makes room for one more save. Errors: Cancelled, on all ranks, where it is to be skipped.
  Status Admit(const Job& job, Coordinator& coordinator) {
    if (options.when_busy == WhenBusy::kWait) {
      std::unique_lock lock(mutex);
      Wait(changed, lock, [&] { return in_flight.size() < most(); });
      return Status::Ok();
    }
    if (!job->options().save.coordinate && coordinator.size() > 1) {
      // Each rank would decide for itself, and leave checkpoints with parts missing.
      return InvalidArgument("save " + job->path() +
                             ": uncoordinated ranks cannot skip or replace saves together");
    }
    if (options.when_busy == WhenBusy::kReplace) {
      Replace(*job, coordinator);
      return Status::Ok();
    }
    const auto decide =
        [&](const std::vector<std::string>& ranks) -> Result<std::vector<std::string>> {
      return std::vector<std::string>(ranks.size(), count() >= most() ? "skip" : "");
    };
    VARVE_ASSIGN_OR_RETURN(const std::string decision,
                           Exchange(coordinator, job->what(), std::string(),
                                    Now() + job->options().save.timeout, std::cref(decide)));
    if (!decision.empty()) {
      return {StatusCode::kCancelled, "save " + job->path() + ": skipped, " +
                                          std::to_string(options.max_in_flight) +
                                          " saves are under way"};
    }
    return Status::Ok();
  }

  /// Gives up, on the coordinator, the newest save that has not begun to write; the other ranks
  /// learn of it when its turn comes.
  void Replace(const AsyncJob& by, const Coordinator& coordinator) {
    const std::scoped_lock lock(mutex);
    if (in_flight.size() < most() || !coordinator.is_coordinator()) {
      return;
    }
    const auto newest = std::find_if(in_flight.rbegin(), in_flight.rend(),
                                     [](const Job& job) { return !job->begun(); });
    if (newest != in_flight.rend()) {
      (*newest)->Cancel(Guarded([&] {
        return Status(StatusCode::kCancelled,
                      (*newest)->what() + ": replaced by the save of " + by.path());
      }));
    }
  }

  /// Returns why no save can be made at the moment, or Ok.
  Status Stuck() {
    const std::scoped_lock lock(mutex);
    for (const Job& job : in_flight) {
      if (job->stuck()) {
        return Unavailable("the storage has not returned from the save of " + job->path());
      }
    }
    return Status::Ok();
  }

  /// Returns why this rank cannot make the save, or Ok.
  Status Usable(const AsyncJob& job) {
    VARVE_RETURN_IF_ERROR(Stuck());
    if (submitter != nullptr) {
      return CanBeSubmitted(job, *executors_storage);
    }
    return job.deferred()
               ? InvalidArgument("only another process can write a save when this one has ended")
               : Status::Ok();
  }

  /// Makes all exchanges of the call. Errors: the same on all coordinated ranks.
  Status Settle(const Job& job, Coordinator& coordinator, const Status& usable) {
    // Where the ranks decide together, every rank takes part.
    const bool together = options.when_busy == WhenBusy::kSkip;
    VARVE_RETURN_IF_ERROR(usable.ok() || together ? Admit(job, coordinator) : Status::Ok());
    if (submitter != nullptr && job->deferred()) {
      VARVE_RETURN_IF_ERROR(last_deferred.Follow(*job, coordinator, *submitter));
      job->SetGroup(last_deferred.group());
    }
    return job->Plan(coordinator, usable);
  }

  void Start(const Job& job, Coordinator& coordinator) {
    const std::scoped_lock one_call(call_mutex);
    std::shared_ptr<Places> places;
    const Status usable = Guarded([&] {
      VARVE_ASSIGN_OR_RETURN(places, MakePlaces(job));
      return Usable(*job);
    });
    Status status = Guarded([&] { return Settle(job, coordinator, usable); });
    if (!status.ok()) {
      if (places != nullptr) {
        places->stage = {};  // It holds the places.
      }
      NoteFailureOf(*job, status);
      job->Complete(std::move(status));
      return;
    }
    const auto ticket = pool->Queue();
    places->ticket = ticket;
    {
      const std::scoped_lock lock(mutex);
      in_flight.splice(in_flight.end(), places->in_flight);
      ++open;
    }
    if (job->deferred()) {
      last_deferred.Set(static_cast<std::uint64_t>(ticket), *job);
    } else {
      writer.Run(std::move(places->write));
    }
    if (job->options().overlapped) {
      copier.Run(std::move(places->stage));
    } else {
      Stage(job, ticket);
    }
  }

  void Stage(const Job& job, StagingPool::Ticket ticket) {
    job->Stage(*pool, ticket, copy_threads(*job));
    if (job->device() && pins()) {
      // Best effort: copies are slower without.
      (void)Guarded([&] { pool->PinUsed(*job->device()); });
    }
    if (job->deferred()) {
      Finish(job);  // Nothing is written: it need not wait for other saves.
    }
  }

  /// Ends a save, on the writing thread. Frees its place before it reports the outcome: a caller
  /// that waited for this save and starts the next must find the place free.
  void Finish(const Job& job) {
    auto result = job->Write(*background);
    {
      const std::scoped_lock lock(mutex);
      std::erase(in_flight, job);
      changed.notify_all();
    }
    NoteFailureOf(*job, result.status());
    job->Complete(std::move(result));
    const std::scoped_lock lock(mutex);
    --open;
    changed.notify_all();
  }

  void Drain() {
    std::unique_lock lock(mutex);
    Wait(changed, lock, [&] { return open == 0; });
  }

  void CancelAll() {
    const std::scoped_lock lock(mutex);
    for (const Job& job : in_flight) {
      job->Cancel(
          Guarded([&] { return Status(StatusCode::kCancelled, job->what() + ": aborted"); }));
    }
  }
};

Stager::Stager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stager::~Stager() { Drain(); }

Result<std::unique_ptr<Stager>> Stager::Make(const StagerOptions& options,
                                             std::unique_ptr<Coordinator> background,
                                             std::shared_ptr<SaveExecutor> executor) {
  return MakeStager(options, std::move(background), std::move(executor), AnyStorage());
}

Result<std::unique_ptr<Stager>> MakeStager(const StagerOptions& options,
                                           std::unique_ptr<Coordinator> background,
                                           std::shared_ptr<SaveExecutor> executor,
                                           Storage& executors_storage) {
  VARVE_RETURN_IF_ERROR(CheckOptions(options));
  VARVE_ASSIGN_OR_RETURN(auto impl, Guarded([]() -> Result<std::unique_ptr<Stager::Impl>> {
                                      return std::make_unique<Stager::Impl>();
                                    }).Annotate("start the threads of a stager"));
  impl->options = options;
  impl->executors_storage = &executors_storage;
  if (impl->options.budget_bytes == 0) {
    impl->options.budget_bytes = DefaultStagingBudget(options.local_ranks);
  }
  const bool shared = executor != nullptr;
  VARVE_ASSIGN_OR_RETURN(impl->pool, StagingPool::Make(impl->options.budget_bytes, shared));
  if (shared) {
    VARVE_ASSIGN_OR_RETURN(impl->submitter,
                           Submitter::Make(std::move(executor), *impl->pool, executors_storage));
  }
  if (options.copy_from_devices.value_or(false)) {
    VARVE_RETURN_IF_ERROR(CudaDevices::Get().status());
  }
  impl->background = background ? std::move(background) : MakeSingleProcessCoordinator();
  return std::make_unique<Stager>(std::move(impl));
}

void Stager::Prepare(std::uint64_t bytes, std::optional<int> cuda_device) {
  const auto copies = static_cast<std::uint64_t>(impl_->options.max_in_flight);
  const std::uint64_t most = budget_bytes();
  impl_->pool->Prepare(bytes > most / copies ? most : bytes * copies,
                       impl_->pins() ? cuda_device : std::nullopt);
}
void Stager::WaitPrepared() { impl_->pool->WaitPrepared(); }
void Stager::Drain() { impl_->Drain(); }

void Stager::Abort() {
  impl_->CancelAll();
  impl_->Drain();
}

std::uint64_t Stager::budget_bytes() const { return impl_->pool->block_count() * kPoolBlockBytes; }

bool Stager::idle() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->open == 0;
}

void StartJob(Stager& stager, const std::shared_ptr<AsyncJob>& job, Coordinator& coordinator) {
  stager.impl().Start(job, coordinator);
}

JobPlace PlaceFor(Stager& stager, Storage& storage, int rank) {
  const Stager::Impl& impl = stager.impl();
  return {storage, rank, impl.submitter.get(), impl.options.copy_from_devices.value_or(true),
          impl.pins()};
}

}  // namespace varve
