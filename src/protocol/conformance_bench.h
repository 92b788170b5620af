/// Saves and loads with the backend under trial, on several ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/conformance_state.h"
#include "varve/coordinator.h"
#include "varve/protocol/checkpoint.h"
#include "varve/protocol/storage_layer.h"

namespace varve::protocol {

using MakeHolding = std::function<Holding(int rank)>;
using MakeWanting = std::function<Wanting(int rank)>;

class Bench {
 public:
  explicit Bench(const ConformanceSubject& subject) : subject_(subject) {}

  [[nodiscard]] const ConformanceSubject& subject() const { return subject_; }
  [[nodiscard]] std::string NewId() const { return subject_.new_checkpoint_id(); }

  /// Saves by `size` ranks with new writers. `planners` has one for each rank, or is empty. Checks
  /// that all ranks return the same.
  Status Save(const std::string& id, int size, const MakeHolding& holding,
              const std::vector<SavePlanner*>& planners = {});

  /// Loads by `size` ranks with new readers, and checks the loaded content. `planners` as above.
  Status Load(const std::string& id, int size, const MakeWanting& wanting,
              const std::vector<LoadPlanner*>& planners = {});

  [[nodiscard]] Result<StateMetadata> ReadMetadata(const std::string& id) const;

  /// Returns Ok when no checkpoint has the id.
  [[nodiscard]] Status CheckAbsent(const std::string& id) const;

 private:
  ConformanceSubject subject_;
};

/// Returns the error for a check that failed, with the expectation.
Status Unmet(std::string message);

/// Returns Ok when `status` is an error whose message has `phrase` in it; otherwise an error that
/// names `what` should have failed, and how.
Status MustFail(const Status& status, const std::string& phrase, const std::string& what);

}  // namespace varve::protocol
