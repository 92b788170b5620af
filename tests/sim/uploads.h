/// One simulated run of uploads to an object store: the client, its retries and the writer of
/// objects as they are, and a server and a network that are simulated.
///
/// One to three processes write one to three objects each: of no to six parts, by one to three
/// threads, in pieces of any size and order. Some names hold an object already, of the same size;
/// some names are those of two processes. Requests get lost, late, doubled, and so do their
/// answers (network.h). The seed may kill a process, let it give an object up, or let the server
/// end all open uploads, as a rule of a bucket does.
///
/// The invariants:
///   1. What Sync has reported is there, byte for byte: at once, and when all late requests have
///      come. Where two processes write one name it may be the other's.
///   2. A name holds what it held before, or one whole object of a process that called Sync on it.
///   3. After a sweep no upload is open, and no object has changed.
///   4. Where nothing happens, no upload is open before the sweep either.
///   5. Sync succeeds in a process that lives, unless the server has ended its upload, or another
///      process has written the name meanwhile: then nobody can tell whether this one did before.
///   6. Nothing waits for ever.
#pragma once

#include <cstdint>

#include "sim/scenario.h"

namespace varve::sim {

/// Runs the scenario of a seed. The same seed and plant give the same outcome.
Outcome RunUploads(std::uint64_t seed, Plant plant, bool keep_trace);

}  // namespace varve::sim
