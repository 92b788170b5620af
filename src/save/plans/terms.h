/// The options in which all ranks of a coordinated save must agree.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "varve/options.h"
#include "varve/status.h"

namespace varve {

/// An option and its value, as a message names them.
struct SaveTerm {
  std::string name;
  std::string value;
  friend bool operator==(const SaveTerm&, const SaveTerm&) = default;
};

/// Returns the terms of a save of `path` by `world_size` ranks, always in the same order. Of the
/// path only its last name counts: ranks may see the storage under other directories.
std::vector<SaveTerm> TermsOf(const SaveOptions& options, std::string_view path, int world_size,
                              bool asynchronous);

/// Returns a message of this rank: its terms, then `plan`.
Bytes EncodeTerms(const std::vector<SaveTerm>& terms, std::string_view plan);

/// Checks that the messages of all ranks, by rank, have the terms of rank 0, and cuts them down to
/// their plans. Errors: InvalidArgument naming each option that differs, its values and the ranks
/// that have them; FailedPrecondition where a rank has sent something else than a save's message.
Status AgreeOnTerms(std::vector<std::string>* messages);

}  // namespace varve
