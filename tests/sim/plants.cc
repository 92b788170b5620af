#include "sim/plants.h"

#include <algorithm>

namespace varve::sim {
namespace {

constexpr PlantName kPlants[] = {
    {Plant::kDataNotSynced, "data-not-synced", "a data file counts before it is synced"},
    {Plant::kManifestNotSynced, "manifest-not-synced",
     "the manifest is published before it is synced"},
    {Plant::kRecordNotSynced, "record-not-synced", "varve.json is published before it is synced"},
    {Plant::kStagingNotSynced, "staging-not-synced",
     "the names in the staging directory are not synced"},
    {Plant::kParentNotSynced, "parent-not-synced",
     "success is reported before the new name is synced"},
    {Plant::kNameNotLocked, "name-not-locked", "two saves of one name are not kept apart"},
    {Plant::kGarbageIgnoresLocks, "garbage-ignores-locks", "gc removes what live saves use"},
    {Plant::kWriteLost, "write-lost", "a block is never written"},
    {Plant::kWriteErrorSwallowed, "write-error-swallowed",
     "a failed write is taken for a good one"},
    {Plant::kSyncErrorSwallowed, "sync-error-swallowed", "a failed sync is taken for a good one"},
    {Plant::kRenameErrorSwallowed, "rename-error-swallowed",
     "a failed rename is taken for a good one"},
    {Plant::kLeftoversStay, "leftovers-stay", "gc and saves remove nothing"},
    {Plant::kLostRankCounted, "lost-rank-counted", "the last message of a lost rank counts again"},
    {Plant::kLeaseNotSeen, "lease-not-seen",
     "an agent does not see that the trainer uses the memory of a copy again"},
    {Plant::kRanksDoNotMeet, "ranks-do-not-meet",
     "the agents of a job look for each other in different places"},
    {Plant::kAnswersTwice, "answers-twice", "a message is taken for one of a later exchange"},
    {Plant::kCompletionErrorSwallowed, "completion-error-swallowed",
     "an upload whose completion has no answer is taken for complete"},
    {Plant::kPartErrorSwallowed, "part-error-swallowed",
     "a part that has no answer is taken for uploaded"},
    {Plant::kOtherObjectTaken, "other-object-taken",
     "an object that was there before is taken for the one that is uploaded"},
    {Plant::kUploadsNotEnded, "uploads-not-ended", "uploads that are given up are not ended"},
    {Plant::kEventNotWaited, "event-not-waited", "the host does not wait for the event of a copy"},
    {Plant::kBlockReusedEarly, "block-reused-early",
     "a block is filled again before its copy to a device has ended"},
    {Plant::kStreamNotOrdered, "stream-not-ordered",
     "copies are not ordered behind the work that the training has queued"},
};

bool EndsWith(std::string_view name, std::string_view end) { return name.ends_with(end); }

bool IsStaging(std::string_view name) {
  return name.find("varve-saving") != std::string_view::npos;
}

bool IsRankLock(std::string_view name) { return name.find("/.rank-") != std::string_view::npos; }

}  // namespace

std::span<const PlantName> Plants() { return kPlants; }

std::optional<Plant> PlantNamed(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kPlants), std::end(kPlants),
                                         [&](const PlantName& each) { return each.name == name; });
  return found == std::end(kPlants) ? std::nullopt : std::optional(found->plant);
}

bool Skips(Plant plant, std::string_view process, Operation operation, std::string_view name,
           bool fails) {
  const bool sync = operation == Operation::kSync;
  const bool sync_directory = operation == Operation::kSyncDirectory;
  const bool record = EndsWith(name, "varve.json") || EndsWith(name, "varve.json.varve-part");
  const bool manifest = name.find("manifest") != std::string_view::npos;
  switch (plant) {
    case Plant::kDataNotSynced: return sync && !record && !manifest;
    case Plant::kManifestNotSynced: return sync && manifest;
    case Plant::kRecordNotSynced: return sync && record;
    case Plant::kStagingNotSynced: return sync_directory && IsStaging(name);
    case Plant::kParentNotSynced: return sync_directory && !IsStaging(name);
    case Plant::kNameNotLocked: return operation == Operation::kLock && !IsRankLock(name);
    case Plant::kGarbageIgnoresLocks: return operation == Operation::kLock && process == "gc";
    case Plant::kWriteLost: return operation == Operation::kWrite && !record && !manifest;
    case Plant::kWriteErrorSwallowed: return operation == Operation::kWrite && fails;
    case Plant::kSyncErrorSwallowed: return (sync || sync_directory) && fails;
    case Plant::kRenameErrorSwallowed: return operation == Operation::kRename && fails;
    case Plant::kLeftoversStay: return operation == Operation::kRemove;
    case Plant::kLostRankCounted:
    case Plant::kAnswersTwice:
    case Plant::kLeaseNotSeen:
    case Plant::kRanksDoNotMeet:
    case Plant::kCompletionErrorSwallowed:
    case Plant::kPartErrorSwallowed:
    case Plant::kOtherObjectTaken:
    case Plant::kUploadsNotEnded:
    case Plant::kEventNotWaited:
    case Plant::kBlockReusedEarly:
    case Plant::kStreamNotOrdered:
    case Plant::kNone: return false;
  }
  return false;
}

}  // namespace varve::sim
