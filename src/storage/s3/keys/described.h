/// The variables of a process that decide how it reaches an object store, for another process of
/// the same user and host: it finds the same settings, and keys in the same places, and asks for
/// new ones when they end.
#pragma once

#include <string>
#include <string_view>

#include "storage/s3/keys/profile.h"
#include "varve/status.h"

namespace varve::s3 {

/// Returns those variables and their values, for DescribedEnvironment. Holds secrets.
std::string DescribeEnvironment(const Environment& environment);

/// Returns the environment that DescribeEnvironment saw. Errors: DataLoss for other bytes.
Result<Environment> DescribedEnvironment(std::string_view description);

}  // namespace varve::s3
