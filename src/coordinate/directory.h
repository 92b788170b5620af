/// Ranks that share nothing but a directory of a storage: each message is a small file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "varve/coordinator.h"
#include "varve/storage.h"

namespace varve {

/// A longer message is refused by Send, and a longer file by Receive before it is read.
inline constexpr std::uint64_t kMaxDirectoryMessageBytes = std::uint64_t{1} << 30;

struct DirectoryCoordinatorOptions {
  int rank = 0;
  int size = 1;
  /// Called between looks at the directory, on the waiting thread; its error ends the wait. A
  /// message that has arrived is still delivered. May be empty.
  std::function<Status()> check;
};

/// Returns one rank of a world that exchanges messages through files in `directory`, which the
/// first rank to arrive makes (its parent must exist). It is the same for all ranks, new for every
/// attempt of a save, and holds nothing else. `storage` must outlive the coordinator.
///
/// Only rank 0 exchanges messages with others, as Exchange does; any other pair is kInternal. Its
/// destructor ends the exchange: it removes the directory once the others have read what it sent
/// them, and waits two seconds for that at most, or until `check` fails. Otherwise, and when rank 0
/// is killed, the directory stays for the owner of the attempt to remove. Peers that wait for a
/// rank 0 that has removed the directory get an error within a second or so; they notice a killed
/// rank 0 by `check`, or at the deadline.
///
/// A rank has one coordinator at a time. A process that takes the place of a dead one, in the same
/// directory, must begin at the first message again, and succeeds when the dead one had not yet
/// received an answer. Otherwise it waits until the deadline, but never gets a wrong answer.
std::unique_ptr<Coordinator> MakeDirectoryCoordinator(Storage& storage, std::string directory,
                                                      DirectoryCoordinatorOptions options);

}  // namespace varve
