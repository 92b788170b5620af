/// Bugs that the simulator must find. Each is a step left out, as if the line were not there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "storages/faulty.h"

namespace varve::sim {

enum class Plant : std::uint8_t {
  kNone,
  kDataNotSynced,
  kManifestNotSynced,
  kRecordNotSynced,
  kStagingNotSynced,
  kParentNotSynced,
  kNameNotLocked,
  kGarbageIgnoresLocks,
  kWriteLost,
  kWriteErrorSwallowed,
  kSyncErrorSwallowed,
  kRenameErrorSwallowed,
  kLeftoversStay,
  kLostRankCounted,
  kAnswersTwice,
  kLeaseNotSeen,
  kRanksDoNotMeet,
  kCompletionErrorSwallowed,
  kPartErrorSwallowed,
  kOtherObjectTaken,
  kUploadsNotEnded,
  kEventNotWaited,
  kBlockReusedEarly,
  kStreamNotOrdered,
};

struct PlantName {
  Plant plant;
  std::string_view name;
  std::string_view what;
};

/// All plants but kNone.
std::span<const PlantName> Plants();
std::optional<Plant> PlantNamed(std::string_view name);

/// Returns true where the planted bug leaves the operation out. `fails`: the operation fails.
bool Skips(Plant plant, std::string_view process, Operation operation, std::string_view name,
           bool fails);

}  // namespace varve::sim
