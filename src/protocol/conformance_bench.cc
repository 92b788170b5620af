#include "protocol/conformance_bench.h"

#include <cstddef>
#include <utility>

#include "base/run_threads.h"

namespace varve::protocol {
namespace {

// Timeout: long for a small state, short for a test that hangs.
constexpr std::chrono::seconds kTimeout{60};

/// Runs all ranks at once. Returns the first error if all ranks have the same; otherwise an error
/// that names the ranks that differ.
Status OnRanks(int size, const std::function<Status(Coordinator&)>& work) {
  const auto count = static_cast<std::size_t>(size);
  const auto ranks = MakeInProcessCoordinators(size);
  std::vector<Status> outcomes(count);
  VARVE_RETURN_IF_ERROR(RunThreads(count, size, {}, [&](std::size_t rank) {
    outcomes[rank] = work(*ranks[rank]);
    return Status::Ok();  // An error would keep the other ranks from starting.
  }));
  for (std::size_t rank = 1; rank < count; ++rank) {
    if (outcomes[rank].ToString() != outcomes[0].ToString()) {
      return Unmet("ranks disagree: rank 0: " + outcomes[0].ToString() + "; rank " +
                   std::to_string(rank) + ": " + outcomes[rank].ToString());
    }
  }
  return outcomes[0];
}

}  // namespace

Status Bench::Save(const std::string& id, int size, const MakeHolding& holding,
                   const std::vector<SavePlanner*>& planners) {
  std::vector<std::unique_ptr<StorageWriter>> writers;
  writers.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    writers.push_back(subject_.make_writer());
  }
  return OnRanks(size, [&](Coordinator& ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    Holding mine = holding(ranks.rank());
    DefaultSavePlanner planner;
    SavePlanner& chosen = planners.empty() ? planner : *planners[rank];
    CallOptions options;
    options.checkpoint_id = id;
    options.timeout = kTimeout;
    return protocol::Save(mine.state(), *writers[rank], chosen, ranks, options).status();
  });
}

Status Bench::Load(const std::string& id, int size, const MakeWanting& wanting,
                   const std::vector<LoadPlanner*>& planners) {
  std::vector<std::unique_ptr<StorageReader>> readers;
  readers.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    readers.push_back(subject_.make_reader());
  }
  std::vector<Status> checks(static_cast<std::size_t>(size));
  VARVE_RETURN_IF_ERROR(OnRanks(size, [&](Coordinator& ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    Wanting mine = wanting(ranks.rank());
    DefaultLoadPlanner planner;
    LoadPlanner& chosen = planners.empty() ? planner : *planners[rank];
    CallOptions options;
    options.checkpoint_id = id;
    options.timeout = kTimeout;
    const Status status = protocol::Load(mine.state(), *readers[rank], chosen, ranks, options);
    checks[rank] = status.ok() ? mine.Check() : Status::Ok();
    return status;
  }));
  for (std::size_t rank = 0; rank < checks.size(); ++rank) {
    VARVE_RETURN_IF_ERROR(
        checks[rank].Annotate("the load went well, but on rank " + std::to_string(rank)));
  }
  return Status::Ok();
}

Result<StateMetadata> Bench::ReadMetadata(const std::string& id) const {
  const auto reader = subject_.make_reader();
  VARVE_RETURN_IF_ERROR(reader->Reset(id));
  return reader->ReadMetadata();
}

Status Bench::CheckAbsent(const std::string& id) const {
  const auto metadata = ReadMetadata(id);
  if (metadata.ok()) {
    return Unmet("a checkpoint shows that was never finished");
  }
  if (metadata.status().code() != StatusCode::kNotFound) {
    return Unmet("ReadMetadata where there is no checkpoint gives " + metadata.status().ToString() +
                 ", not NotFound");
  }
  return Status::Ok();
}

Status Unmet(std::string message) { return Internal(std::move(message)); }

Status MustFail(const Status& status, const std::string& phrase, const std::string& what) {
  if (status.ok()) {
    return Unmet(what + " was reported as a success");
  }
  if (status.message().find(phrase) == std::string::npos) {
    return Unmet(what + " failed, but not with that error: " + status.message());
  }
  return Status::Ok();
}

}  // namespace varve::protocol
