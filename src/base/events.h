/// Where modules report events; the callers of the engine read them with SetEventFunction.
#pragma once

#include "varve/events.h"

namespace varve {

/// Returns true where a function takes events. Callers ask before they make one.
bool EventsAreTaken();

/// Reports an event. Does not wait, calls no callback and never fails: may be called with locks
/// held. Where there is no memory for the event it is dropped, and counted.
void ReportEvent(Event event) noexcept;

}  // namespace varve
