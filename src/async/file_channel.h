/// How the ranks of a save exchange messages when their trainers may have exited.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "save/settled.h"
#include "varve/coordinator.h"
#include "varve/status.h"

namespace varve {

/// Connects this rank, on behalf of its trainer, with those of the save of `path` that are
/// elsewhere, through a directory beside it. Waiting ends when a rank says that it will not come
/// (SayGone), and when `give_up` returns an error; it is asked as long as not all ranks have been
/// heard of.
std::unique_ptr<Coordinator> MakeFileChannel(const SettledSave& save, const std::string& path,
                                             std::function<Status()> give_up = {});

/// Tells all other ranks of the save, whatever they wait for, that this one is gone, and why.
void SayGone(const SettledSave& save, const std::string& path, const Status& why);

}  // namespace varve
