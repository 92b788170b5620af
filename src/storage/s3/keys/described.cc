#include "storage/s3/keys/described.h"

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "base/fields.h"

namespace varve::s3 {
namespace {

struct Variables {
  std::map<std::string, std::string> values;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Variables>& variables) {
  archive(variables.values);
}

/// All that the settings and the places of keys ask for; a test asks them all.
constexpr std::array kNames{
    "AWS_ACCESS_KEY_ID",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_PROFILE",
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_REQUEST_CHECKSUM_CALCULATION",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "HOME",
    "R2_ENDPOINT_URL",
    "R2_PROFILE",
    "VARVE_S3_ADDRESSING",
    "VARVE_S3_MAX_BANDWIDTH",
    "VARVE_S3_MAX_CONNECTIONS",
    "VARVE_S3_MAX_CONNECTIONS_PER_NODE",
    "VARVE_S3_PUBLISH",
    "VARVE_S3_REQUESTER_PAYS",
    "VARVE_S3_RETRY_TIMEOUT",
    "VARVE_S3_SSE",
    "VARVE_S3_SSE_KMS_KEY_ID",
    "VARVE_S3_STALL_TIMEOUT",
    "VARVE_S3_TAGS",
    "VARVE_S3_UNSIGNED",
    "WEKA_ENDPOINT_URL",
    "WEKA_PROFILE",
};

/// Returns a path as another process finds it, whose working directory may differ.
std::string PathForOthers(std::string path) {
  if (path.starts_with('/') || path.starts_with('~')) {
    return path;
  }
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

}  // namespace

std::string DescribeEnvironment(const Environment& environment) {
  Variables variables;
  for (const char* const name : kNames) {
    if (auto value = environment(name)) {
      const std::string_view kind = name;
      const bool is_path = kind.ends_with("_FILE") || kind == "AWS_CA_BUNDLE";
      variables.values[name] = is_path ? PathForOthers(*std::move(value)) : *std::move(value);
    }
  }
  return EncodeFields(variables);
}

Result<Environment> DescribedEnvironment(std::string_view description) {
  VARVE_ASSIGN_OR_RETURN(Variables variables, DecodeFields<Variables>(description));
  return Environment([values = std::move(variables.values)](
                         const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found != values.end() ? std::optional(found->second) : std::nullopt;
  });
}

}  // namespace varve::s3
