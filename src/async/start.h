/// AsyncSave and DeferSave for a caller that must call them whether its rank can save or not: the
/// Python module finds out only while it walks the state, when the other ranks wait already.
#pragma once

#include <string>

#include "varve/async_save.h"

namespace varve {

/// As AsyncSave. Where `ready` is an error the save fails with it on all ranks.
AsyncSaveHandle StartAsyncSave(State state, std::string path, AsyncSaveOptions options,
                               Stager& stager, Coordinator& coordinator, Storage& storage,
                               Status ready);

/// As DeferSave, likewise.
DeferredSaveHandle StartDeferredSave(State state, std::string path, DeferSaveOptions options,
                                     Stager& stager, Coordinator& coordinator, Storage& storage,
                                     Status ready);

}  // namespace varve
