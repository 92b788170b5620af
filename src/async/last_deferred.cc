#include "async/last_deferred.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "base/guarded.h"

namespace varve {
namespace {

/// What each rank contributes: '+' where it has submitted its last deferred save and the agent
/// still has it, else '-', and that save's id. Only ranks that know of the same save decide about
/// it: a rank that was lost while a save was planned may not know of it.
Result<std::vector<std::string>> Decide(const std::vector<std::string>& ranks) {
  if (std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.empty(); })) {
    return Internal("a rank is at another place of the save");
  }
  const std::string& first = ranks.front();
  const auto same = [&](const std::string& rank) { return rank.substr(1) == first.substr(1); };
  const auto whole = [](const std::string& rank) { return rank.front() == '+'; };
  const bool agree = std::all_of(ranks.begin(), ranks.end(), same);
  const bool all = std::all_of(ranks.begin(), ranks.end(), whole);
  return std::vector<std::string>(ranks.size(), !agree ? "" : all ? "whole" : "broken");
}

}  // namespace

Status LastDeferred::Follow(const AsyncJob& next, Coordinator& coordinator, Submitter& submitter) {
  if (!next.options().save.coordinate && coordinator.size() > 1) {
    return InvalidArgument("save " + next.path() +
                           ": uncoordinated ranks cannot defer saves together");
  }
  Contribution mine = Guarded([&]() -> Contribution {
    const bool have_it = last_ && last_->staged.get().ok() && submitter.Keeps(last_->turn);
    return (have_it ? "+" : "-") + (last_ ? ToString(last_->id) : std::string());
  });
  VARVE_ASSIGN_OR_RETURN(
      const std::string found,
      Exchange(coordinator, next.what(), std::move(mine),
               std::chrono::steady_clock::now() + next.options().save.timeout, Decide));
  if (last_ && (found == "whole" || found == "broken")) {
    // A copy that is not given up now is given up the next time, or when memory is short.
    (void)Guarded([&] {
      submitter.DeferredIs(last_->turn, found == "whole");
      return Status::Ok();
    });
  }
  return Status::Ok();
}

}  // namespace varve
