/// Simulated saves and loads of tensors on devices: the engine's own CudaDevices, over a driver on
/// which nothing runs when it is queued (device_model.h).
///
/// A training has two to five tensors on each of one or two devices, and queues kernels that write
/// and read them on two or three streams. Up to two saves and loads at a time copy some of the
/// tensors, block by block through a few blocks of host memory, each of which is used again as soon
/// as its copy has ended. The memory of a tensor that was saved is freed when the save is staged,
/// and other tensors are written there. A tensor that was loaded is used on any stream. Blocks may
/// be registered, the driver may have neither batches nor kernels. The seed may let calls of the
/// driver fail or a device die.
///
/// What must hold:
///   1. A save has the bytes that each tensor held at the call, when the work that was queued by
///      then had run.
///   2. A kernel that is queued when a load has returned finds the bytes that were loaded, on any
///      stream; so does whoever looks at the end. What was queued before the load changes nothing.
///   3. A copy uses host memory only from the call that queues it until the wait for it returns,
///      and not after a call that failed.
///   4. Where no call fails and no device dies, all saves and loads succeed. An error is
///      Unavailable and names the device.
///   5. No byte around the tensors changes.
///   6. No more than CudaDevices::kMostQueuedBytes are queued; no context stays current.
///   7. Nothing waits for ever.
#pragma once

#include "sim/scenario.h"

namespace varve::sim {

/// As RunScenario.
Outcome RunDevices(std::uint64_t seed, Plant plant, bool keep_trace);

}  // namespace varve::sim
