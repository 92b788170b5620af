/// Where the files are that tests read.
#pragma once

#include <filesystem>

namespace varve::test {

/// Returns the folder tests/ of the sources.
std::filesystem::path TestData();

}  // namespace varve::test
