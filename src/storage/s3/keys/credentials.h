/// The keys of a process: where they come from and when they are asked for again. Places, names and
/// their order are those of AWS's SDKs ("AWS SDKs and Tools Reference Guide", standardized
/// credential providers). Keys that the program gives (SetS3Keys) come before all of them.
///   1. VARVE_S3_UNSIGNED=1: no keys, requests are not signed.
///   2. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.
///   3. A token of a web identity: AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN (Kubernetes).
///   4. The profile: its keys; its role_arn with source_profile or web_identity_token_file; its
///      credential_process.
///   5. The container's: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI (ECS, EKS Pod
///   Identity).
///   6. The instance's metadata, version 2 (EC2), unless AWS_EC2_METADATA_DISABLED is "true".
#pragma once

#include "storage/s3/client.h"
#include "storage/s3/keys/credential_sources.h"
#include "storage/s3/keys/profile.h"

namespace varve::s3 {

/// Returns a function that gives the process's keys for a scheme of kSchemes. Keys with an end are
/// asked for again five minutes before it; where that fails, the old ones are used up to their end.
/// Its errors: FailedPrecondition where there are no keys, naming the places it has looked at.
/// Threads: safe to call concurrently; one of them asks, the others wait.
CredentialsFunction ProcessCredentials(Environment environment,
                                       std::string_view scheme = kSchemes.front());

/// Returns the keys that a function of the program gives for a scheme (SetS3Keys), asked anew; none
/// where it has set none. Errors: the function's.
MaybeKeys KeysOfProgram(std::string_view scheme);

/// Returns a function that gives `keys` until they end. The function of another process gave them:
/// here nothing can renew them, and the error of the end says so.
CredentialsFunction KeysUntilTheirEnd(FoundKeys keys);

}  // namespace varve::s3
