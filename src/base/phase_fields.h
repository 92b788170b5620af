/// Phases of a report, as they are sent between processes.
#pragma once

#include "base/fields.h"
#include "varve/events.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Phase>& phase) {
  archive(phase.name, phase.seconds, phase.bytes, phase.slowest_rank, phase.slowest_seconds);
}

}  // namespace varve
