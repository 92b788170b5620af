#include "async/last_deferred.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/fields.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "publish/save_id.h"

namespace varve {
namespace {

/// What a rank contributes.
struct Known {
  bool have_it = false;  ///< It has submitted its last deferred save, and the agent still has it.
  SaveId last;           ///< That save's id; zero where there is none.
  SaveId group;          ///< Zero where it has none, or its agent may have met others by it.
};

enum class LastSaveState : std::uint8_t { kUnknown, kBroken, kWhole };

struct Decision {
  LastSaveState last = LastSaveState::kUnknown;
  SaveId group;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Known>& known) {
  archive(known.have_it, known.last, known.group);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Decision>& decision) {
  archive.Enum(decision.last, LastSaveState::kUnknown, LastSaveState::kWhole, "unknown decision");
  archive(decision.group);
}

/// Only ranks that know of the same save decide about it: a rank that was lost while a save was
/// planned may not know of it. A group serves one meeting of the agents. Where a rank does not have
/// it, or has lost the agent that did, all ranks get `new_group`: there is no save then that all
/// ranks have.
Result<std::vector<std::string>> Decide(const std::vector<std::string>& ranks,
                                        const SaveId& new_group) {
  std::vector<Known> known;
  for (const std::string& rank : ranks) {
    VARVE_ASSIGN_OR_RETURN(Known theirs, DecodeFields<Known>(rank));
    known.push_back(theirs);
  }
  const auto same = [&](const Known& rank) { return rank.last == known.front().last; };
  const bool agree = std::all_of(known.begin(), known.end(), same);
  const bool whole = std::all_of(known.begin(), known.end(), std::mem_fn(&Known::have_it));
  const auto in_group = [&](const Known& rank) { return rank.group == known.front().group; };
  const bool has_group =
      known.front().group != SaveId{} && std::all_of(known.begin(), known.end(), in_group);
  const SaveId group = has_group ? known.front().group : new_group;
  const LastSaveState last = !agree  ? LastSaveState::kUnknown
                             : whole ? LastSaveState::kWhole
                                     : LastSaveState::kBroken;
  return std::vector<std::string>(ranks.size(), EncodeFields(Decision{last, group}));
}

}  // namespace

Status LastDeferred::Follow(const AsyncJob& next, Coordinator& coordinator, Submitter& submitter) {
  if (!next.options().save.coordinate && coordinator.size() > 1) {
    return InvalidArgument("save " + next.path() +
                           ": uncoordinated ranks cannot defer saves together");
  }
  // Made before the exchange: after it, no rank may fail alone.
  std::shared_ptr<DeferredGroup> group;
  Contribution mine = Guarded([&]() -> Contribution {
    group = std::make_shared<DeferredGroup>();
    VARVE_ASSIGN_OR_RETURN(group->path, AbsolutePath(next.path()));
    VARVE_ASSIGN_OR_RETURN(group->id, RandomSaveId());
    const bool have_it = last_ && last_->staged.get().ok() && submitter.Keeps(last_->ticket);
    const bool lost = last_ && last_->staged.get().ok() && !have_it;
    return EncodeFields(
        Known{have_it, last_ ? last_->id : SaveId{}, group_ && !lost ? group_->id : SaveId{}});
  });
  const auto decide = [&](const std::vector<std::string>& ranks) {
    return Decide(ranks, group->id);
  };
  VARVE_ASSIGN_OR_RETURN(const std::string answer,
                         Exchange(coordinator, next.what(), std::move(mine),
                                  Now() + next.options().save.timeout, std::cref(decide)));
  VARVE_ASSIGN_OR_RETURN(const Decision decision, DecodeFields<Decision>(answer));
  if (!group_ || group_->id != decision.group) {
    group->id = decision.group;
    group_ = std::move(group);
  }
  if (last_ && decision.last != LastSaveState::kUnknown) {
    // A copy that is not given up now is given up the next time, or when memory is short.
    (void)Guarded(
        [&] { submitter.DeferredIs(last_->ticket, decision.last == LastSaveState::kWhole); });
  }
  return Status::Ok();
}

}  // namespace varve
