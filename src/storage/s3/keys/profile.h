/// Where S3 settings and keys come from: the environment and the files of AWS's tools. Names, order
/// and formats are those of the AWS SDKs ("AWS SDKs and Tools Reference Guide", settings
/// reference).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "storage/environment.h"
#include "storage/s3/object_name.h"
#include "storage/s3/shared.h"
#include "storage/s3/signature.h"
#include "storage/s3/traffic/traffic.h"
#include "varve/status.h"

namespace varve::s3 {

/// One profile: settings of ~/.aws/config and ~/.aws/credentials; the latter's come first. A
/// setting of a section's sub-block, as "s3 =" and an indented "addressing_style = path", has the
/// name "s3.addressing_style".
using Profile = std::map<std::string, std::string, std::less<>>;

/// Returns the sections of such a file by name, "profile NAME" as "NAME" ("sso-session" and others
/// as they stand). Lines that are no settings are passed over, as by AWS's own tools. Pure.
std::map<std::string, Profile> ParseProfiles(std::string_view text);

/// Reads the profile `name`. A file that is not there has no settings. Errors: InvalidArgument
/// where no file has the profile and it is not "default".
Result<Profile> ReadProfile(const std::string& name, const Environment& environment);

enum class Addressing : std::uint8_t { kPath, kVirtual };

/// Returns the profile that AWS_PROFILE names, else "default".
std::string ProfileName(const Environment& environment);

/// How a bucket is reached.
struct Settings {
  std::string_view scheme = kSchemes.front();  ///< Of the names that messages show.
  std::string endpoint;  ///< "https://host[:port]", no path. Empty: AWS, by region.
  bool tls = true;       ///< False (OLMO_NO_SSL): not where no scheme is given, nor to AWS.
  std::string region = "us-east-1";
  Addressing addressing = Addressing::kPath;
  std::string ca_file;
  bool requester_pays = false;
  bool crc32c = true;          ///< Parts carry their checksum, which servers that know it compare.
  std::string encryption;      ///< x-amz-server-side-encryption; empty: the bucket's.
  std::string encryption_key;  ///< The KMS key of "aws:kms".
  std::string tags;            ///< x-amz-tagging: "k=v&k2=v2".
  std::chrono::seconds stall{30};
  RetryPolicy retry;
  TrafficLimits traffic;
  std::uint64_t part_bytes = std::uint64_t{8} << 20;  ///< At least; the parts of an upload.
  bool weak_publish = true;  ///< Goes on, with a warning, where a server ignores If-None-Match.
};

/// Returns what a scheme of kSchemes sees of an environment. "s3" sees it as it is. For the others
/// AWS_ENDPOINT_URL_S3 is R2_ENDPOINT_URL (or WEKA_), AWS_PROFILE is R2_PROFILE where that is set,
/// and a profile that is so named hides the keys in the environment, as one that is given to boto3
/// does. The names are OLMo-core's (olmo_core/io.py).
Environment EnvironmentOf(std::string_view scheme, Environment environment);

/// Returns the settings of environment and profile. docs/storage.md lists them. `environment` is
/// what `scheme` sees. Errors: InvalidArgument naming the variable whose value cannot be used; for
/// no endpoint, where the scheme is not "s3".
Result<Settings> ReadSettings(const Environment& environment,
                              std::string_view scheme = kSchemes.front());

/// Returns the keys in the environment; nothing where it has none. Errors: InvalidArgument for half
/// a pair.
Result<std::optional<Credentials>> KeysOfEnvironment(const Environment& environment);

/// Returns the keys that stand in a profile, likewise.
Result<std::optional<Credentials>> KeysInProfile(const Profile& profile, const std::string& name);

/// Returns a profile's setting; nothing where it is not there or empty.
std::optional<std::string> Find(const Profile& profile, std::string_view name);

}  // namespace varve::s3
