// The calls that begin saves in the background, and the handles that they return.

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "async/job.h"
#include "async/stager_jobs.h"
#include "async/start.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "varve/async_save.h"
#include "varve/storage.h"

namespace varve {

struct AsyncSaveHandle::Impl final : AsyncJob {
  Impl(State state, std::string path, AsyncSaveOptions options, const JobPlace& place, Status ready)
      : AsyncJob(std::move(state), std::move(path),
                 std::move(static_cast<StagedSaveOptions&>(options)), WriteWhen::kNow, place,
                 std::move(ready)),
        outcome(std::move(options.on_done)) {}

  void Deliver(Result<AsyncSaveReport> result) override { outcome.Deliver(std::move(result)); }

  Outcome<AsyncSaveReport> outcome;
};

struct DeferredSaveHandle::Impl final : AsyncJob {
  Impl(State state, std::string path, DeferSaveOptions options, const JobPlace& place, Status ready)
      : AsyncJob(std::move(state), std::move(path),
                 std::move(static_cast<StagedSaveOptions&>(options)), WriteWhen::kDeferred, place,
                 std::move(ready)),
        outcome(std::move(options.on_held)) {}

  void Deliver(Result<AsyncSaveReport> result) override {
    if (!result.ok()) {
      outcome.Deliver(result.status());
      return;
    }
    outcome.Deliver(DeferredReport{.save_id = result->save_id,
                                   .bytes = result->bytes_written,
                                   .seconds = result->staging_seconds,
                                   .device_bytes = result->device_bytes,
                                   .pageable_bytes = result->pageable_bytes,
                                   .copied_ahead = std::move(result->copied_ahead),
                                   .differing_tensors = std::move(result->differing_tensors),
                                   .differing_objects = std::move(result->differing_objects)});
  }

  Outcome<DeferredReport> outcome;
};

AsyncSaveHandle::AsyncSaveHandle(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
std::shared_future<Status> AsyncSaveHandle::staged() const { return impl_->staged(); }
std::shared_future<Result<AsyncSaveReport>> AsyncSaveHandle::done() const {
  return impl_->outcome.future();
}
bool AsyncSaveHandle::agreed() const { return impl_->agreed(); }
std::vector<std::string> AsyncSaveHandle::differing_tensors() const {
  return impl_->differing_tensors();
}
std::vector<std::string> AsyncSaveHandle::differing_objects() const {
  return impl_->differing_objects();
}
void AsyncSaveHandle::Cancel() const { impl_->CancelByCaller(); }

DeferredSaveHandle::DeferredSaveHandle(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
std::shared_future<Status> DeferredSaveHandle::staged() const { return impl_->staged(); }
std::shared_future<Result<DeferredReport>> DeferredSaveHandle::held() const {
  return impl_->outcome.future();
}
std::vector<std::string> DeferredSaveHandle::differing_tensors() const {
  return impl_->differing_tensors();
}
std::vector<std::string> DeferredSaveHandle::differing_objects() const {
  return impl_->differing_objects();
}
void DeferredSaveHandle::Cancel() const { impl_->CancelByCaller(); }

namespace {

/// Makes the job of a Handle and starts it.
template <class Handle, class Options>
Handle Begin(State state, std::string path, Options options, Stager& stager,
             Coordinator& coordinator, Storage& storage, Status ready) {
  const bool together = options.save.coordinate;
  const Deadline deadline = Now() + options.save.timeout;
  std::shared_ptr<typename Handle::Impl> job;
  try {
    // The save may be written when the working directory is another.
    auto resolved = ResolveTarget(path, storage);
    if (resolved.ok()) {
      path = std::move(*resolved);
    } else if (ready.ok()) {
      ready = resolved.status();
    }
    job = std::make_shared<typename Handle::Impl>(
        std::move(state), std::move(path), std::move(options),
        PlaceFor(stager, storage, coordinator.rank()), std::move(ready));
  } catch (...) {
    // This function has no result. The other ranks learn the cause in their first exchange.
    if (together) {
      (void)Agree(coordinator, "asynchronous save", CaughtError(), deadline);
    }
    throw;
  }
  StartJob(stager, job, coordinator);
  return Handle(std::move(job));
}

}  // namespace

AsyncSaveHandle StartAsyncSave(State state, std::string path, AsyncSaveOptions options,
                               Stager& stager, Coordinator& coordinator, Storage& storage,
                               Status ready) {
  return Begin<AsyncSaveHandle>(std::move(state), std::move(path), std::move(options), stager,
                                coordinator, storage, std::move(ready));
}

DeferredSaveHandle StartDeferredSave(State state, std::string path, DeferSaveOptions options,
                                     Stager& stager, Coordinator& coordinator, Storage& storage,
                                     Status ready) {
  return Begin<DeferredSaveHandle>(std::move(state), std::move(path), std::move(options), stager,
                                   coordinator, storage, std::move(ready));
}

AsyncSaveHandle AsyncSave(State state, std::string path, AsyncSaveOptions options, Stager& stager,
                          Coordinator& coordinator, Storage& storage) {
  return StartAsyncSave(std::move(state), std::move(path), std::move(options), stager, coordinator,
                        storage, Status::Ok());
}

AsyncSaveHandle AsyncSave(State state, std::string path, AsyncSaveOptions options, Stager& stager,
                          Storage& storage) {
  const auto coordinator = MakeSingleProcessCoordinator();
  return AsyncSave(std::move(state), std::move(path), std::move(options), stager, *coordinator,
                   storage);
}

DeferredSaveHandle DeferSave(State state, std::string path, DeferSaveOptions options,
                             Stager& stager, Coordinator& coordinator) {
  return StartDeferredSave(std::move(state), std::move(path), std::move(options), stager,
                           coordinator, AnyStorage(), Status::Ok());
}

DeferredSaveHandle DeferSave(State state, std::string path, DeferSaveOptions options,
                             Stager& stager) {
  const auto coordinator = MakeSingleProcessCoordinator();
  return DeferSave(std::move(state), std::move(path), std::move(options), stager, *coordinator);
}

}  // namespace varve
