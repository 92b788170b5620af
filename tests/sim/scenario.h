/// One simulated run: what the seed makes of it, and what must hold in it.
///
/// The name `runs/step` holds version 1, or nothing. Beside each other run:
///   - a job of one to three ranks that saves version 2, coordinated or each rank apart;
///   - perhaps a second job that saves version 3 to the same name;
///   - perhaps a third, of any world size, that begins when the first has ended: version 4;
///   - perhaps a process that loads again and again, and one that collects garbage.
/// The seed may kill a rank, let it stand still for hours, or give it an I/O error; it may kill gc
/// or give it one. At the end all processes have ended, or the power is cut. One case is left out:
/// without exchange, jobs of both kinds never save to one name at once (docs/durability.md says
/// why).
///
/// The invariants (docs/durability.md has a row for each):
///   1. A load finds one version whole, never a mix or damaged bytes.
///   2. It finds no version older than the newest whose save was over when the load began, and
///      finds one if there was one. This holds after the power cut too.
///   3. The ranks of a coordinated job report the same outcome, unless one of them was killed or
///      stood still.
///   4. A save that meets no fault, no rival and no death succeeds.
///   5. Nothing waits for ever.
///   6. `gc` leaves the checkpoint and nothing else, and the next save of the name works. (Without
///      locks gc keeps what dead saves left. Files of an older save that ranks made apart may stay
///      until the next.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plants.h"

namespace varve::sim {

struct Outcome {
  std::string problem;  ///< Empty: all of it held.
  std::vector<std::string> trace;
  std::uint64_t steps = 0;
};

/// Runs the scenario of a seed. The same seed and plant give the same outcome.
Outcome RunScenario(std::uint64_t seed, Plant plant, bool keep_trace);

}  // namespace varve::sim
