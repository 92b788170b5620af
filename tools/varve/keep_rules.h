/// Rules of retention as the command line takes them.
#pragma once

#include <string>
#include <vector>

#include "varve/manage.h"

namespace varve::cli {

/// Reads "last=3", "every=1000", "hours=6", "minutes=30", "newer=2", "best=2:loss:max". Errors:
/// InvalidArgument, with the rules that there are.
Result<KeepRules> ParseKeepRules(const std::vector<std::string>& texts);

}  // namespace varve::cli
