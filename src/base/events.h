/// Where modules report events; the callers of the engine read them with SetEventFunction.
#pragma once

#include <concepts>

#include "base/guarded.h"
#include "varve/events.h"

namespace varve {

/// Returns true where a function takes events.
bool EventsAreTaken();

/// Reports an event. Does not wait, calls no callback and never fails: may be called with locks
/// held. Where there is no memory for the event it is dropped, and counted.
void ReportEvent(Event event) noexcept;

/// Reports the event that `make` returns. Calls it only where a function takes events.
template <std::invocable Make>
void ReportEvent(const Make& make) noexcept {
  if (EventsAreTaken()) {
    (void)Guarded([&] { ReportEvent(Event(make())); });
  }
}

}  // namespace varve
