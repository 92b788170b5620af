/// What becomes of a stager's last deferred save when the next one is made.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "async/job.h"
#include "async/submitter.h"
#include "varve/coordinator.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// Threads: one at a time.
class LastDeferred {
 public:
  /// Remembers `job`, which was planned as the deferred save of that ticket.
  void Set(std::uint64_t ticket, const AsyncJob& job) {
    last_ = {ticket, job.save_id(), job.staged()};
  }

  /// Returns what the saves of all ranks have in common. Requires: Follow has succeeded.
  [[nodiscard]] std::shared_ptr<const DeferredGroup> group() const { return group_; }

  /// Before the deferred save `next` is planned: the ranks tell each other whether they have
  /// submitted the last one, and give up it or the ones before it. The account is in submitter.cc.
  /// Errors: those of the exchange, on all ranks; InvalidArgument for uncoordinated ranks.
  Status Follow(const AsyncJob& next, Coordinator& coordinator, Submitter& submitter);

 private:
  struct Save {
    std::uint64_t ticket = 0;
    SaveId id;
    std::shared_future<Status> staged;
  };
  std::optional<Save> last_;
  std::shared_ptr<const DeferredGroup> group_;
};

}  // namespace varve
