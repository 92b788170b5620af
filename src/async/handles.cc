// The calls that begin saves in the background, and the handles that they return.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "async/job.h"
#include "async/start.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "varve/async_save.h"
#include "varve/storage.h"

namespace varve {

AsyncSaveHandle::AsyncSaveHandle(std::shared_ptr<AsyncJob> job) : job_(std::move(job)) {}
std::shared_future<Status> AsyncSaveHandle::staged() const { return job_->staged(); }
std::shared_future<Result<AsyncSaveReport>> AsyncSaveHandle::done() const { return job_->done(); }
bool AsyncSaveHandle::agreed() const { return job_->agreed(); }
std::vector<std::string> AsyncSaveHandle::differing_tensors() const {
  return job_->differing_tensors();
}
std::vector<std::string> AsyncSaveHandle::differing_objects() const {
  return job_->differing_objects();
}
void AsyncSaveHandle::Cancel() const { job_->CancelByCaller(); }

namespace {

/// Calls `make`. The calls have no result for what it throws: the other ranks learn the cause in
/// their first exchange. No std::function: making one takes memory, which can run out before the
/// try.
template <class Make>
void OrTellTheOthers(const SaveOptions& options, Coordinator& coordinator, const Make& make) {
  const Deadline deadline = Now() + options.timeout;
  try {
    make();
  } catch (...) {
    if (options.coordinate) {
      (void)Agree(coordinator, "asynchronous save", CaughtError(), deadline);
    }
    throw;
  }
}

}  // namespace

AsyncSaveHandle StartSave(State state, std::string path, AsyncSaveOptions options, WriteWhen when,
                          Stager& stager, Coordinator& coordinator, Storage& storage,
                          Status ready) {
  std::shared_ptr<AsyncJob> job;
  OrTellTheOthers(options.save, coordinator, [&] {
    // The save may be written when the working directory is another.
    auto resolved = ResolveTarget(path, storage);
    if (resolved.ok()) {
      path = std::move(*resolved);
    } else if (ready.ok()) {
      ready = resolved.status();
    }
    job =
        std::make_shared<AsyncJob>(std::move(state), std::move(path), std::move(options), when,
                                   PlaceFor(stager, storage, coordinator.rank()), std::move(ready));
  });
  StartJob(stager, job, coordinator);
  return AsyncSaveHandle(std::move(job));
}

DeferredReport DeferredFrom(const AsyncSaveReport& report) {
  return {.save_id = report.save_id,
          .bytes = report.bytes_written,
          .seconds = report.staging_seconds,
          .device_bytes = report.device_bytes,
          .pageable_bytes = report.pageable_bytes,
          .copied_ahead = report.copied_ahead,
          .differing_tensors = report.differing_tensors,
          .differing_objects = report.differing_objects};
}

AsyncSaveHandle AsyncSave(State state, std::string path, AsyncSaveOptions options, Stager& stager,
                          Coordinator& coordinator, Storage& storage) {
  return StartSave(std::move(state), std::move(path), std::move(options), WriteWhen::kNow, stager,
                   coordinator, storage, Status::Ok());
}

AsyncSaveHandle AsyncSave(State state, std::string path, AsyncSaveOptions options, Stager& stager,
                          Storage& storage) {
  const auto coordinator = MakeSingleProcessCoordinator();
  return AsyncSave(std::move(state), std::move(path), std::move(options), stager, *coordinator,
                   storage);
}

DeferredSaveHandle DeferSave(State state, std::string path, DeferSaveOptions options,
                             Stager& stager, Coordinator& coordinator) {
  AsyncSaveOptions of_save;
  std::shared_ptr<Outcome<DeferredReport>> outcome;
  OrTellTheOthers(options.save, coordinator, [&] {
    outcome = std::make_shared<Outcome<DeferredReport>>(std::move(options.on_held));
    static_cast<StagedSaveOptions&>(of_save) = std::move(options);
    of_save.on_done = [outcome](const Result<AsyncSaveReport>& report) {
      outcome->Deliver(Guarded([&]() -> Result<DeferredReport> {
        VARVE_RETURN_IF_ERROR(report.status());
        return DeferredFrom(*report);
      }));
    };
  });
  auto save = StartSave(std::move(state), std::move(path), std::move(of_save), WriteWhen::kDeferred,
                        stager, coordinator, AnyStorage(), Status::Ok());
  return {std::move(save), outcome->future()};
}

DeferredSaveHandle DeferSave(State state, std::string path, DeferSaveOptions options,
                             Stager& stager) {
  const auto coordinator = MakeSingleProcessCoordinator();
  return DeferSave(std::move(state), std::move(path), std::move(options), stager, *coordinator);
}

}  // namespace varve
