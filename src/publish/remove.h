/// The removal of a checkpoint by the rules of its run; RemoveCheckpoint (varve/catalogue.h) is the
/// one on request. The account of the steps is at the top of remove.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "varve/catalogue.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

struct RemovalTerms {
  DryRun dry_run = DryRun::kNo;
  double busy_share = 1.0;  ///< As PruneOptions::busy_share.
  std::stop_token stop{};
  /// Called when the name is locked and nothing is removed yet; an error ends the removal.
  std::function<Status()> still_goes{};
};

/// What a removal makes of readers.
enum class Readers : std::uint8_t { kIgnore, kRespect };

/// Removes a checkpoint as RemoveCheckpoint does, unless a reader has it open. Errors: those of
/// RemoveCheckpoint; FailedPrecondition also when it is being read.
Result<RemovalReport> RemoveUnlessUsed(const std::string& path, const RemovalTerms& terms,
                                       Storage& storage);

/// Returns FailedPrecondition where one of these files of a checkpoint's directory, relative to it,
/// is the pin of another checkpoint, which is in a directory below, or where such a directory is a
/// step and `path` is none by its name: then that is a run with a stray file of a checkpoint in it.
Status CheckNoneBelow(Storage& storage, const std::string& path,
                      const std::vector<std::string>& others);

}  // namespace varve
