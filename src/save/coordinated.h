/// The session of a save in which the ranks exchange messages.
#pragma once

#include <memory>
#include <string>

#include "save/session.h"

namespace varve {

/// See MakeSaveSession.
std::unique_ptr<SaveSession> MakeCoordinatedSave(const State& state, const std::string& path,
                                                 const SaveOptions& options, Claim claim,
                                                 Storage& storage);

Result<std::unique_ptr<SaveSession>> ResumeCoordinatedSave(SettledSave settled,
                                                           const std::string& path,
                                                           const SaveOptions& options,
                                                           Storage& storage);

}  // namespace varve
