/// How the ranks of a save exchange messages when their trainers may have exited.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "save/settled.h"
#include "varve/coordinator.h"
#include "varve/status.h"

namespace varve {

/// Connects this rank, on behalf of its trainer, with the other ranks of the save of `path`,
/// through a directory beside it. Waiting ends when a rank withdraws (Withdraw), or when `give_up`
/// returns an error. `give_up` is called until all ranks have sent a message.
std::unique_ptr<Coordinator> MakeFileChannel(const SettledSave& save, const std::string& path,
                                             std::function<Status()> give_up = {});

/// Reports to all other ranks of the save, in any of their waits, that this rank does not take
/// part, and why.
void Withdraw(const SettledSave& save, const std::string& path, const Status& why);

}  // namespace varve
