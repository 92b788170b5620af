/// The keys of a process: where they come from and when they are asked for again.
#pragma once

#include <memory>

#include "storage/s3/client.h"
#include "storage/s3/profile.h"

namespace varve::s3 {

/// Returns a function that gives the process's keys: those of the environment, else those of the
/// profile. With VARVE_S3_UNSIGNED=1 requests are not signed. Its errors: FailedPrecondition where
/// there are no keys, naming the places it has looked at. Threads: safe to call concurrently.
CredentialsFunction ProcessCredentials(Environment environment);

}  // namespace varve::s3
