#include "storage/s3/traffic/traffic.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <unistd.h>

#include "base/stop.h"
#include "base/time_source.h"
#include "varve/stop.h"

namespace varve::s3 {
namespace {

/// Other processes' slots come free without a message.
constexpr std::chrono::milliseconds kSlotPoll{10};

/// Forgets the requests of the parent's other threads in a forked child.
void BeginAnewAfterFork(Load* load) {
  if (load->process != ::getpid()) {
    load->process = ::getpid();
    load->state.in_flight = 0;
  }
}

}  // namespace

Permit::Permit(Permit&& other) noexcept
    : traffic_(std::exchange(other.traffic_, nullptr)),
      server_(other.server_),
      round_(other.round_),
      slot_(other.slot_) {}

Permit::~Permit() { (void)End(ServerLoad::kUnknown); }

std::optional<int> Permit::End(ServerLoad load) {
  Traffic* const traffic = std::exchange(traffic_, nullptr);
  return traffic == nullptr ? std::nullopt : traffic->End(server_, round_, slot_, load);
}

Traffic::Traffic(TrafficLimits limits, std::string slots_file, std::string pace_file)
    : slots_(std::move(slots_file), limits.node_connections),
      node_pace_(std::move(pace_file), limits.node_bytes_per_second),
      process_wide_{Unloaded(limits.connections)},
      pace_(limits.bytes_per_second) {}

/// Waits until the bandwidth allows a request of that size.
Status Traffic::WaitForTurn(std::uint64_t bytes) {
  if (!pace_.has_limit() && !node_pace_.has_limit()) {  // Never changes.
    return Status::Ok();
  }
  const std::stop_token stop = CurrentStop();
  std::unique_lock lock(mutex_);
  TimePoint start = pace_.Reserve(bytes, Now());
  if (node_pace_.has_limit()) {
    VARVE_ASSIGN_OR_RETURN(const TimePoint of_node, node_pace_.Reserve(bytes, Now()));
    start = std::max(start, of_node);
  }
  (void)WaitUntil(changed_, lock, stop, start, [] { return false; });
  return CheckStop(stop);
}

Result<Permit> Traffic::Begin(Load* server, std::uint64_t bytes) {
  VARVE_RETURN_IF_ERROR(WaitForTurn(bytes));
  const std::stop_token stop = CurrentStop();
  std::unique_lock lock(mutex_);
  BeginAnewAfterFork(&process_wide_);
  BeginAnewAfterFork(server);
  (void)Wait(changed_, lock, stop,
             [&] { return MayBegin(process_wide_.state) && MayBegin(server->state); });
  VARVE_RETURN_IF_ERROR(CheckStop(stop));
  (void)s3::Begin(&process_wide_.state);
  Permit permit(this, server, s3::Begin(&server->state), std::nullopt);
  lock.unlock();
  while (slots_.has_limit()) {
    VARVE_ASSIGN_OR_RETURN(permit.slot_, slots_.TryTake());
    if (permit.slot_) {
      break;
    }
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    SleepFor(kSlotPoll);
  }
  return permit;
}

std::optional<int> Traffic::End(Load* server, std::uint64_t round, std::optional<int> slot,
                                ServerLoad load) {
  if (slot) {
    slots_.GiveBack(*slot);
  }
  const std::scoped_lock lock(mutex_);
  (void)s3::End(&process_wide_.state, 0, ServerLoad::kUnknown);
  const bool halved = s3::End(&server->state, round, load);
  changed_.notify_all();
  return halved ? std::optional(server->state.limit) : std::nullopt;
}

}  // namespace varve::s3
