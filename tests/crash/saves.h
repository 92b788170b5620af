/// The ways to save a JobState: by one process, by coordinated ranks, by uncoordinated ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crash/states.h"
#include "storages/faulty.h"
#include "varve/checkpoint.h"

namespace varve::test {

inline SaveOptions SmallSave(bool overwrite, Format format = Format::kVarve) {
  return {.overwrite = overwrite ? Overwrite::kAlways : Overwrite::kNever,
          .format = format,
          .timeout = std::chrono::seconds(20),
          .block_bytes = 4096,
          .shard_size = 3000};
}

/// Saves by a single process.
inline Status SaveAlone(const JobState& job, const std::string& path, Storage& storage,
                        bool overwrite) {
  return Save(job.rank(0), path, SmallSave(overwrite), storage).status();
}

/// A coordinator that goes silent when the storage of its rank has stopped, as both do when the
/// process dies.
class MortalCoordinator final : public Coordinator {
 public:
  MortalCoordinator(std::unique_ptr<Coordinator> inner, Storage* storage)
      : inner_(std::move(inner)), storage_(dynamic_cast<FaultyStorage*>(storage)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  Status Send(int to, std::string_view message, Deadline deadline) override {
    return dead() ? Unavailable("dead") : inner_->Send(to, message, deadline);
  }
  Result<std::string> Receive(int from, Deadline deadline) override {
    return dead() ? Result<std::string>(Unavailable("dead")) : inner_->Receive(from, deadline);
  }

 private:
  [[nodiscard]] bool dead() const { return storage_ != nullptr && storage_->stopped(); }
  std::unique_ptr<Coordinator> inner_;
  FaultyStorage* storage_;
};

/// Calls `save` for each rank of a world on a thread of its own, with its coordinator and its view
/// of the storage. `mortal`: a rank whose storage has stopped sends no more messages. Returns each
/// rank's outcome.
template <class SaveOfRank>
std::vector<Status> Together(const std::vector<Storage*>& storages, bool mortal,
                             const SaveOfRank& save) {
  std::vector<Status> outcomes(storages.size());
  auto coordinators = MakeInProcessCoordinators(static_cast<int>(storages.size()));
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < storages.size(); ++rank) {
    threads.emplace_back([&, rank, inner = std::move(coordinators[rank])]() mutable {
      MortalCoordinator coordinator(std::move(inner), mortal ? storages[rank] : nullptr);
      outcomes[rank] = save(coordinator, *storages[rank]);
    });
  }
  threads.clear();
  return outcomes;
}

/// Saves by coordinated ranks.
inline std::vector<Status> SaveTogether(const JobState& job, const std::string& path,
                                        const std::vector<Storage*>& storages, bool overwrite,
                                        bool mortal = false, Format format = Format::kVarve) {
  return Together(storages, mortal, [&](Coordinator& rank, Storage& storage) {
    return Save(job.rank(rank.rank()), path, SmallSave(overwrite, format), rank, storage).status();
  });
}

/// A coordinator for uncoordinated ranks, which must send no messages.
class SilentCoordinator final : public Coordinator {
 public:
  SilentCoordinator(int rank, int size) : rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  Status Send(int /*to*/, std::string_view /*message*/, Deadline /*deadline*/) override {
    return Internal("an uncoordinated save sent a message");
  }
  Result<std::string> Receive(int /*from*/, Deadline /*deadline*/) override {
    return Internal("an uncoordinated save waited for a message");
  }

 private:
  int rank_;
  int size_;
};

/// Saves by uncoordinated ranks, one after the other in the given order. Ends at the first failure.
inline Status SaveApart(const JobState& job, std::uint8_t save_number,
                        const std::vector<int>& order, const std::string& path, Storage& storage,
                        bool overwrite) {
  for (const int rank : order) {
    SilentCoordinator coordinator(rank, job.world_size());
    SaveOptions options = SmallSave(overwrite);
    options.coordinate = false;
    options.save_id = SaveId{{save_number}};
    VARVE_RETURN_IF_ERROR(Save(job.rank(rank), path, options, coordinator, storage).status());
  }
  return Status::Ok();
}

}  // namespace varve::test
