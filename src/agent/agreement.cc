// While ranks submit a deferred save, some have submitted it and some not: if the trainers are
// killed then, only the one before it is whole, which all still have. No agent can see that alone.
//  1. Each agent that has deferred saves of a trainer that has ended contributes their ids. A rank
//     may end minutes after another, which it waits for in a collective; so the agents wait for
//     each other for the agent's one timeout.
//  2. Rank 0's agent finds those that all have. Each agent drops the others: no save that a rank
//     does not have can become whole.
//  3. All write the newest; if that fails, which all of them learn, the one before it.
// Where the agents do not agree, because one is silent, none of the saves is whole: each needs
// every rank. A rank that gives up says so to those that come later.

#include "agent/agreement.h"

#include <algorithm>
#include <string>
#include <utility>

#include "async/file_channel.h"
#include "base/fields.h"
#include "varve/coordinator.h"

namespace varve {
namespace {

struct Ids {
  std::vector<SaveId> ids;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Ids>& ids) {
  archive(ids.ids);
}

Result<std::vector<std::string>> KeepCommon(const std::vector<std::string>& ranks) {
  VARVE_ASSIGN_OR_RETURN(Ids common, DecodeFields<Ids>(ranks.front()));
  for (const std::string& rank : ranks) {
    VARVE_ASSIGN_OR_RETURN(const Ids theirs, DecodeFields<Ids>(rank));
    std::erase_if(common.ids, [&](const SaveId& id) {
      return std::find(theirs.ids.begin(), theirs.ids.end(), id) == theirs.ids.end();
    });
  }
  return std::vector<std::string>(ranks.size(), EncodeFields(common));
}

}  // namespace

Result<std::vector<SaveId>> AgreeOnDeferred(const KeptSaves& mine, Storage& storage,
                                            const std::function<Status()>& give_up) {
  FileIdentity rank = mine.rank;
  rank.save_id = mine.group.id;
  const MeetingPlace place{storage, rank, mine.group.path};
  bool gave_up = false;
  const auto check = [&] {
    Status status = give_up();
    gave_up = gave_up || !status.ok();
    return status;
  };
  auto channel = MakeFileChannel(place, check);
  const auto answer = Exchange(*channel, "find the deferred save that all ranks have",
                               EncodeFields(Ids{mine.ids}), Deadline::max(), KeepCommon);
  channel.reset();
  if (!answer.ok() && gave_up) {
    Withdraw(place, answer.status());  // The others may come yet.
  }
  VARVE_RETURN_IF_ERROR(answer.status());
  VARVE_ASSIGN_OR_RETURN(Ids common, DecodeFields<Ids>(*answer));
  return std::move(common.ids);  // In the order of rank 0, which all ranks have.
}

}  // namespace varve
