/// The session of an uncoordinated save; the account of its steps is at the top of local.cc.
#pragma once

#include <memory>
#include <string>

#include "save/session.h"

namespace varve {

/// See MakeSaveSession. Both stages use of the coordinator only which rank this is.
std::unique_ptr<SaveSession> MakeRankLocalSave(const State& state, const std::string& path,
                                               const SaveOptions& options, Storage& storage);

Result<std::unique_ptr<SaveSession>> ResumeRankLocalSave(SettledSave settled,
                                                         const std::string& path,
                                                         const SaveOptions& options,
                                                         Storage& storage);

}  // namespace varve
