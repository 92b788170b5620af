#include "storage/s3/keys/described.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "base/fields.h"

namespace varve::s3 {
namespace {

struct Sent {
  std::map<std::string, std::string> variables;
  bool has_keys = false;
  std::string access_key;
  std::string secret_key;
  std::string session_token;
  std::uint64_t expires = 0;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Sent>& sent) {
  archive(sent.variables, sent.has_keys, sent.access_key, sent.secret_key, sent.session_token,
          sent.expires);
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
    "OLMO_NO_SSL",
    "R2_ENDPOINT_URL",
    "R2_PROFILE",
    "VARVE_S3_ADDRESSING",
    "VARVE_S3_MAX_BANDWIDTH",
    "VARVE_S3_MAX_BANDWIDTH_PER_NODE",
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

std::string EncodeAccess(const Access& access) {
  Sent sent;
  for (const char* const name : kNames) {
    if (auto value = access.environment(name)) {
      const std::string_view kind = name;
      const bool is_path = kind.ends_with("_FILE") || kind == "AWS_CA_BUNDLE";
      sent.variables[name] = is_path ? PathForOthers(*std::move(value)) : *std::move(value);
    }
  }
  if (access.keys) {
    sent.has_keys = true;
    sent.access_key = access.keys->keys.access_key;
    sent.secret_key = access.keys->keys.secret_key;
    sent.session_token = access.keys->keys.session_token;
    sent.expires = static_cast<std::uint64_t>(access.keys->expires);
  }
  return EncodeFields(sent);
}

Result<Access> DecodeAccess(std::string_view bytes) {
  VARVE_ASSIGN_OR_RETURN(Sent sent, DecodeFields<Sent>(bytes));
  Access access;
  if (sent.has_keys) {
    access.keys = FoundKeys{{sent.access_key, sent.secret_key, sent.session_token},
                            static_cast<std::int64_t>(sent.expires)};
  }
  access.environment = [variables = std::move(sent.variables)](
                           const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found != variables.end() ? std::optional(found->second) : std::nullopt;
  };
  return access;
}

}  // namespace varve::s3
