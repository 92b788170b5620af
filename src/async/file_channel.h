/// How the ranks of a save exchange messages when their trainers may have exited.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "plan/file_plan.h"
#include "varve/coordinator.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Where the ranks meet: a directory beside `path`, named after the id of `identity`.
struct MeetingPlace {
  Storage& storage;
  const FileIdentity& identity;
  const std::string& path;
};

/// Connects this rank, on behalf of its trainer, with the other ranks. Waiting ends when a rank
/// withdraws (Withdraw), or when `give_up` returns an error. `give_up` is called until all ranks
/// have sent a message.
std::unique_ptr<Coordinator> MakeFileChannel(const MeetingPlace& place,
                                             std::function<Status()> give_up = {});

/// Reports to all other ranks, in any of their waits, that this rank does not take part, and why.
void Withdraw(const MeetingPlace& place, const Status& why);

}  // namespace varve
