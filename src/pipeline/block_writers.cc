#include "pipeline/block_writers.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/guarded.h"
#include "base/threads.h"
#include "base/time_source.h"
#include "base/trace.h"
#include "varve/stop.h"

namespace varve {

BlockWriters::BlockWriters(WritableFile& file, const WriteSegmentsOptions& options,
                           std::uint64_t block_count)
    : file_(file), options_(options), pace_(options.max_bytes_per_second) {
  const int wanted = IsSimulated() ? 0 : std::max(options.writes_in_flight, 1);
  const auto count = std::min(static_cast<std::uint64_t>(wanted), block_count);
  const std::stop_token stop = options.stop.stop_possible() ? options.stop : CurrentStop();
  // Best effort: where no thread can be started, the others write everything, or Push does.
  (void)Guarded([&] {
    threads_.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      threads_.push_back(StartThread<std::jthread>([this, stop] {
        const ScopedStop scoped(stop);
        Run();
      }));
    }
  });
}

bool BlockWriters::Push(BlockToWrite block) {
  if (threads_.empty()) {
    return Handle(block);
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.size() < 2 || !status_.ok(); });
  if (!status_.ok()) {
    return false;
  }
  queue_.push_back(std::move(block));
  changed_.notify_all();
  return true;
}

void BlockWriters::Join() {
  {
    const std::scoped_lock lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  threads_.clear();
}

Status BlockWriters::Finish() {
  Join();
  return std::move(status_);
}

void BlockWriters::Fail(Status status) {
  const std::scoped_lock lock(mutex_);
  if (status_.ok()) {
    status_ = std::move(status);
  }
  changed_.notify_all();
}

void BlockWriters::Run() {
  while (true) {
    BlockToWrite block;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty() || done_ || !status_.ok(); });
      if (queue_.empty() || !status_.ok()) {
        return;
      }
      block = std::move(queue_.front());
      queue_.pop_front();
      changed_.notify_all();
    }
    if (!Handle(block)) {
      return;
    }
  }
}

bool BlockWriters::Handle(const BlockToWrite& block) {
  Status status = Guarded([&] {
    VARVE_RETURN_IF_ERROR(WriteOne(block));
    if (options_.on_written) {
      options_.on_written(block.bytes);
    }
    return Status::Ok();
  });
  if (block.ended) {
    block.ended(status);
  }
  if (!status.ok()) {
    Fail(std::move(status));
    return false;
  }
  return true;
}

Status BlockWriters::WriteOne(const BlockToWrite& block) {
  if (!WaitForTurn(block.bytes)) {
    return {StatusCode::kCancelled, "was interrupted while it wrote"};
  }
  const std::uint64_t size = file_.direct() ? RoundUp(block.bytes, kDirectAlignment) : block.bytes;
  const Slice slice("write block", size);
  return file_.WriteAt(block.offset, {block.data, size});
}

bool BlockWriters::WaitForTurn(std::uint64_t bytes) {
  if (pace_.has_limit()) {
    std::unique_lock lock(mutex_);
    const TimePoint start = pace_.Reserve(bytes, std::chrono::steady_clock::now());
    changed_.wait_until(lock, options_.stop, start, [&] { return !status_.ok(); });
  }
  return !options_.stop.stop_requested();
}

}  // namespace varve
