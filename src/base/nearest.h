/// The name that a user may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace varve {

/// Returns the one of `names` that is nearest to `given`, by letters that differ, are missing, too
/// many or swapped, or that begins with it; empty where none is near. Takes time in proportion to
/// the names and to the square of a name's length.
std::string Nearest(std::string_view given, const std::vector<std::string>& names);

/// Returns the one of `names`, keys joined with dots, that a user may have meant by a glob or a
/// name: it compares the first keys, as many as the glob has without a "*" at its end. Empty where
/// none is near. Looks at the first 10,000 names.
std::string NearestToGlob(std::string_view glob, const std::vector<std::string>& names);

}  // namespace varve
