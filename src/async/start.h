/// AsyncSave and DeferSave for a caller that must call them whether its rank can save or not: the
/// Python module finds out only while it walks the state, when the other ranks wait already.
#pragma once

#include <cstdint>
#include <string>

#include "varve/async_save.h"

namespace varve {

/// When the copy is written.
enum class WriteWhen : std::uint8_t {
  kNow,
  kDeferred,  ///< By the agent, if this process ends before a newer save replaces it.
};

/// Begins a save. Where `ready` is an error the save fails with it on all ranks. A deferred one is
/// done when the agent holds this rank's copy, or never will.
AsyncSaveHandle StartSave(State state, std::string path, AsyncSaveOptions options, WriteWhen when,
                          Stager& stager, Coordinator& coordinator, Storage& storage, Status ready);

/// Returns what the caller of a deferred save receives of its report.
DeferredReport DeferredFrom(const AsyncSaveReport& report);

}  // namespace varve
