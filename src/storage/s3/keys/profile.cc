#include "storage/s3/keys/profile.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <sstream>
#include <utility>

#include "storage/http/url.h"

namespace varve::s3 {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view Trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

/// Returns the name in "[name]" or "[profile name]".
std::string SectionName(std::string_view line) {
  constexpr std::string_view kProfile = "profile";
  line = Trim(line.substr(1, line.find(']') - 1));
  if (line.starts_with(kProfile) && line.size() > kProfile.size() &&
      kBlanks.find(line[kProfile.size()]) != std::string_view::npos) {
    line = Trim(line.substr(kProfile.size()));
  }
  return std::string(line);
}

/// Returns the path that a variable names, or one in the home directory.
std::string FilePath(const Environment& environment, const std::string& variable,
                     std::string_view in_home) {
  std::string path = environment(variable).value_or("~" + std::string(in_home));
  if (path.starts_with("~/")) {
    path.replace(0, 1, environment("HOME").value_or(""));
  }
  return path;
}

/// Returns the text of a file; empty where it cannot be read.
std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Returns the value of the first of `variables` that is set, else the profile's.
std::optional<std::string> Setting(const Environment& environment, const Profile& profile,
                                   std::initializer_list<const char*> variables,
                                   std::string_view name) {
  for (const char* const variable : variables) {
    if (auto value = environment(variable)) {
      return value;
    }
  }
  return Find(profile, name);
}

/// The whole numbers that a variable may have, for the error that names them.
struct NumberRange {
  std::int64_t most;
  const char* unit;  ///< "seconds".
};
constexpr NumberRange kSeconds{86'400, "seconds"};
constexpr NumberRange kConnections{4096, "connections"};
constexpr NumberRange kBytesPerSecond{std::int64_t{1} << 50, "bytes a second"};

Result<std::optional<std::int64_t>> Number(const Environment& environment,
                                           const std::string& variable, const NumberRange& range) {
  return NumberSetting(environment, variable, 1, range.most, range.unit);
}

Result<bool> Flag(const Environment& environment, const std::string& variable) {
  const auto text = environment(variable);
  if (!text || *text == "0" || *text == "false") {
    return false;
  }
  if (*text == "1" || *text == "true") {
    return true;
  }
  return InvalidArgument(variable + "=" + *text + ": want 1 or 0");
}

/// Returns true for a host, perhaps with a port, that is this one.
bool IsThisHost(std::string_view host) {
  return http::IsLoopback(host.substr(0, host.find(':', host.find(']') + 1)));
}

/// Returns "scheme://host[:port]". One without a scheme is reached with TLS, unless it is this
/// host or `tls` is false.
Result<std::string> CheckEndpoint(std::string endpoint, bool tls) {
  if (endpoint.find("://") == std::string::npos) {
    endpoint = (IsThisHost(endpoint) || !tls ? "http://" : "https://") + endpoint;
  }
  while (endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  const std::size_t host = endpoint.find("://") + 3;
  const bool scheme = endpoint.starts_with("http://") || endpoint.starts_with("https://");
  if (!scheme || host >= endpoint.size() ||
      endpoint.find_first_of("/?#@ \t\r\n", host) != std::string::npos) {
    const std::size_t user = endpoint.rfind('@');  // What stands before it is not shown.
    return InvalidArgument(
        "the endpoint \"" + (user == std::string::npos ? endpoint : endpoint.substr(user)) +
        "\" is not https://host[:port], without path and user (AWS_ENDPOINT_URL_S3, "
        "AWS_ENDPOINT_URL, or endpoint_url of the profile)");
  }
  return endpoint;
}

Status ReadLimits(const Environment& environment, Settings* settings) {
  VARVE_ASSIGN_OR_RETURN(const auto stall, Number(environment, "VARVE_S3_STALL_TIMEOUT", kSeconds));
  VARVE_ASSIGN_OR_RETURN(const auto limit, Number(environment, "VARVE_S3_RETRY_TIMEOUT", kSeconds));
  settings->stall = std::chrono::seconds(stall.value_or(settings->stall.count()));
  if (limit) {
    settings->retry.time_limit = std::chrono::seconds(*limit);
  }
  VARVE_ASSIGN_OR_RETURN(const auto connections,
                         Number(environment, "VARVE_S3_MAX_CONNECTIONS", kConnections));
  VARVE_ASSIGN_OR_RETURN(const auto of_node,
                         Number(environment, "VARVE_S3_MAX_CONNECTIONS_PER_NODE", kConnections));
  VARVE_ASSIGN_OR_RETURN(const auto bandwidth,
                         Number(environment, "VARVE_S3_MAX_BANDWIDTH", kBytesPerSecond));
  VARVE_ASSIGN_OR_RETURN(const auto bandwidth_of_node,
                         Number(environment, "VARVE_S3_MAX_BANDWIDTH_PER_NODE", kBytesPerSecond));
  TrafficLimits& traffic = settings->traffic;
  traffic.connections = static_cast<int>(connections.value_or(traffic.connections));
  traffic.node_connections = static_cast<int>(of_node.value_or(traffic.node_connections));
  traffic.bytes_per_second = static_cast<std::uint64_t>(bandwidth.value_or(0));
  traffic.node_bytes_per_second = static_cast<std::uint64_t>(bandwidth_of_node.value_or(0));
  return Status::Ok();
}

/// Reads what is said of every object that is written.
Status ReadObjectHeaders(const Environment& environment, Settings* settings) {
  VARVE_ASSIGN_OR_RETURN(settings->requester_pays, Flag(environment, "VARVE_S3_REQUESTER_PAYS"));
  settings->encryption = environment("VARVE_S3_SSE").value_or("");
  settings->encryption_key = environment("VARVE_S3_SSE_KMS_KEY_ID").value_or("");
  settings->tags = environment("VARVE_S3_TAGS").value_or("");
  for (const std::string& text : {settings->tags, settings->encryption_key}) {
    if (std::any_of(text.begin(), text.end(),
                    [](char c) { return static_cast<unsigned char>(c) < ' '; })) {
      return InvalidArgument("VARVE_S3_TAGS or VARVE_S3_SSE_KMS_KEY_ID holds control characters");
    }
  }
  if (!settings->encryption.empty() && settings->encryption != "AES256" &&
      settings->encryption != "aws:kms") {
    return InvalidArgument("VARVE_S3_SSE=" + settings->encryption + ": want AES256 or aws:kms");
  }
  return Status::Ok();
}

}  // namespace

std::string ProfileName(const Environment& environment) {
  const auto name = environment("AWS_PROFILE");
  return name ? *name : environment("AWS_DEFAULT_PROFILE").value_or("default");
}

std::optional<std::string> Find(const Profile& profile, std::string_view name) {
  const auto found = profile.find(name);
  return found == profile.end() || found->second.empty() ? std::nullopt
                                                         : std::optional(found->second);
}

std::map<std::string, Profile> ParseProfiles(std::string_view text) {
  std::map<std::string, Profile> profiles;
  Profile* profile = nullptr;
  std::string block;  // The setting without a value that indented ones belong to.
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view content = Trim(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') {
      continue;
    }
    if (content.front() == '[' && content.find(']') != std::string_view::npos) {
      profile = &profiles[SectionName(content)];
      block.clear();
      continue;
    }
    const std::size_t equals = content.find('=');
    if (profile == nullptr || equals == std::string_view::npos) {
      continue;
    }
    std::string name(Trim(content.substr(0, equals)));
    const std::string_view value = Trim(content.substr(equals + 1));
    const bool indented = kBlanks.find(line.front()) != std::string_view::npos;
    if (indented && !block.empty()) {
      name.insert(0, block + ".");
    } else {
      block = value.empty() ? name : std::string();
    }
    (*profile)[name] = std::string(value);
  }
  return profiles;
}

Result<Profile> ReadProfile(const std::string& name, const Environment& environment) {
  auto config = ParseProfiles(TextOf(FilePath(environment, "AWS_CONFIG_FILE", "/.aws/config")));
  auto keys = ParseProfiles(
      TextOf(FilePath(environment, "AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials")));
  if (name != "default" && !config.contains(name) && !keys.contains(name)) {
    return InvalidArgument("there is no AWS profile \"" + name +
                           "\" in ~/.aws/config and ~/.aws/credentials, or the files that "
                           "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE name");
  }
  Profile profile = std::move(keys[name]);
  profile.merge(config[name]);
  return profile;
}

namespace {

/// Returns "R2_" for "r2".
std::string PrefixOf(std::string_view scheme) {
  std::string prefix(scheme);
  std::transform(prefix.begin(), prefix.end(), prefix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return prefix + "_";
}

}  // namespace

Environment EnvironmentOf(std::string_view scheme, Environment environment) {
  if (scheme == kSchemes.front()) {
    return environment;
  }
  return [prefix = PrefixOf(scheme), environment = std::move(environment)](
             const std::string& name) -> std::optional<std::string> {
    constexpr std::array<std::string_view, 5> kKeys = {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
        "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"};
    if (name == "AWS_ENDPOINT_URL_S3") {
      return environment(prefix + "ENDPOINT_URL");
    }
    if (name == "AWS_ENDPOINT_URL") {
      return std::nullopt;  // Another server's.
    }
    auto profile = environment(prefix + "PROFILE");
    if (name == "AWS_PROFILE" && profile) {
      return profile;
    }
    const bool hidden = profile && std::find(kKeys.begin(), kKeys.end(), name) != kKeys.end();
    return hidden ? std::nullopt : environment(name);
  };
}

Result<Settings> ReadSettings(const Environment& environment, std::string_view scheme) {
  VARVE_ASSIGN_OR_RETURN(const Profile profile, ReadProfile(ProfileName(environment), environment));
  Settings settings;
  settings.scheme = scheme;
  VARVE_ASSIGN_OR_RETURN(const bool no_tls, Flag(environment, "OLMO_NO_SSL"));
  settings.tls = !no_tls;
  if (const auto endpoint = Setting(environment, profile,
                                    {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url")) {
    VARVE_ASSIGN_OR_RETURN(settings.endpoint, CheckEndpoint(*endpoint, settings.tls));
  }
  if (settings.endpoint.empty() && scheme != kSchemes.front()) {
    return InvalidArgument(std::string(scheme) + ":// is the server that " + PrefixOf(scheme) +
                           "ENDPOINT_URL names, which is not set; " + PrefixOf(scheme) +
                           "PROFILE names the profile of its keys");
  }
  if (const auto region =
          Setting(environment, profile, {"AWS_REGION", "AWS_DEFAULT_REGION"}, "region")) {
    settings.region = *region;
  }
  const std::string addressing =
      Setting(environment, profile, {"VARVE_S3_ADDRESSING"}, "s3.addressing_style")
          .value_or("auto");
  if (addressing != "auto" && addressing != "path" && addressing != "virtual") {
    return InvalidArgument("the addressing style \"" + addressing +
                           "\" (VARVE_S3_ADDRESSING, or s3.addressing_style of the profile): want "
                           "auto, path or virtual");
  }
  const bool virtual_hosts =
      addressing == "virtual" || (addressing == "auto" && settings.endpoint.empty());
  settings.addressing = virtual_hosts ? Addressing::kVirtual : Addressing::kPath;
  settings.ca_file = Setting(environment, profile, {"AWS_CA_BUNDLE"}, "ca_bundle").value_or("");
  settings.crc32c = Setting(environment, profile, {"AWS_REQUEST_CHECKSUM_CALCULATION"},
                            "request_checksum_calculation")
                        .value_or("") != "when_required";
  const std::string publish = environment("VARVE_S3_PUBLISH").value_or("auto");
  if (publish != "auto" && publish != "strict") {
    return InvalidArgument("VARVE_S3_PUBLISH=" + publish + ": want auto or strict");
  }
  settings.weak_publish = publish == "auto";
  VARVE_RETURN_IF_ERROR(ReadLimits(environment, &settings));
  VARVE_RETURN_IF_ERROR(ReadObjectHeaders(environment, &settings));
  return settings;
}

Result<std::optional<Credentials>> KeysOfEnvironment(const Environment& environment) {
  const auto access = environment("AWS_ACCESS_KEY_ID");
  const auto secret = environment("AWS_SECRET_ACCESS_KEY");
  if (access.has_value() != secret.has_value()) {
    return InvalidArgument(
        "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set; set both, or neither");
  }
  if (!access) {
    return std::optional<Credentials>();
  }
  return std::optional(
      Credentials{*access, *secret, environment("AWS_SESSION_TOKEN").value_or("")});
}

Result<std::optional<Credentials>> KeysInProfile(const Profile& profile, const std::string& name) {
  const auto access = Find(profile, "aws_access_key_id");
  const auto secret = Find(profile, "aws_secret_access_key");
  if (access.has_value() != secret.has_value()) {
    return InvalidArgument("the AWS profile \"" + name +
                           "\" has only one of aws_access_key_id and aws_secret_access_key");
  }
  if (!access) {
    return std::optional<Credentials>();
  }
  return std::optional(
      Credentials{*access, *secret, Find(profile, "aws_session_token").value_or("")});
}

}  // namespace varve::s3
