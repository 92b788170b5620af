/// Where modules report events; the callers of the engine read them with SetEventFunction.
#pragma once

#include "varve/events.h"

namespace varve {

/// Returns true where somebody takes events. Callers ask before they make one.
bool EventsAreTaken();

/// Reports an event. Does not wait, calls nobody and fails never: may be called with locks held.
/// Where there is no memory for the event it is dropped, and counted.
void ReportEvent(Event event) noexcept;

}  // namespace varve
