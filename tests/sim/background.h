/// Simulated runs of saves in the background, which agents write.
///
/// A job of one to three ranks on one or two nodes saves versions 1, 2, ... under a name each, or
/// all under one name: asynchronously, or deferred. Each node has an agent. The seed may kill a
/// trainer or an agent, stop one of them for hours, or do so to a node with all its processes. It
/// may let a storage call hang while the process goes on, break a connection, give an agent's
/// storage an error, let clocks jump, and cut the power at the end. A trainer that ends, or is
/// killed, leaves its saves to its agent. When all have ended another job, of any world size, may
/// go on, beside the agents that write what the first has left; where clocks jump, two jobs are
/// further apart than they. Stagers, executors, sessions and the exchange of the agents are the
/// engine's own.
///
/// What must hold:
///   1. What a load finds is one version, whole.
///   2. A version whose save any rank reports as done is found, or one of its name that was begun
///      later.
///   3. Without death, standstill or fault every save succeeds, and all ranks report the same.
///   4. Nothing waits for ever, and agents end.
///   5. When all trainers have ended and all agents live, the newest deferred save that all ranks
///      held is found, or a newer one.
///   6. `gc` leaves the checkpoints and nothing else.
#pragma once

#include "sim/scenario.h"

namespace varve::sim {

/// As RunScenario.
Outcome RunBackground(std::uint64_t seed, Plant plant, bool keep_trace);

}  // namespace varve::sim
