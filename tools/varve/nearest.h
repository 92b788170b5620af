/// The search for the name that was probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace varve::cli {

/// Returns the one of `names` that is nearest to `given`, by letters that differ, are missing, too
/// many or swapped, or that begins with it; empty where none is near.
std::string Nearest(std::string_view given, const std::vector<std::string>& names);

}  // namespace varve::cli
