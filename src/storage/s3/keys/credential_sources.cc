#include "storage/s3/keys/credential_sources.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "base/bytes.h"
#include "base/json_parser.h"
#include "base/time_source.h"
#include "storage/s3/shared.h"
#include "storage/s3/xml.h"

namespace varve::s3 {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr int kMostRoles = 5;  // Of profiles that name each other.
constexpr std::size_t kMaxOutput = std::size_t{1} << 20;

/// Asks a metadata service, which is near or not there at all.
Result<HttpResponse> AskNear(const std::string& method, const std::string& url,
                             std::vector<std::string> headers) {
  HttpClient http({.connect = std::chrono::seconds(1), .proxy = false});
  HttpRequest request;
  request.method = method;
  request.url = url;
  request.headers = std::move(headers);
  request.stall = std::chrono::seconds(5);
  return http.Perform(request);
}

Result<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  std::string token = text.str();
  while (token.ends_with('\n') || token.ends_with('\r')) {
    token.pop_back();
  }
  if (token.empty()) {
    return FailedPrecondition("the token in " + path + " cannot be read, or is empty");
  }
  return token;
}

/// Returns the keys in a JSON object as metadata services and credential processes give it.
Result<FoundKeys> KeysInJson(const std::string& text, std::string_view where,
                             const char* token_name) {
  JsonParser parser;
  simdjson::dom::object object;
  std::string_view access;
  std::string_view secret;
  std::string_view token;
  std::string_view expires;
  if (parser.Parse(text).get(object) || object["AccessKeyId"].get(access) ||
      object["SecretAccessKey"].get(secret)) {
    return FailedPrecondition(std::string(where) + " gives no AccessKeyId and SecretAccessKey");
  }
  // Keys without an end have neither.
  if (object[token_name].get(token)) {
    token = {};
  }
  if (object["Expiration"].get(expires)) {
    expires = {};
  }
  return FoundKeys{{std::string(access), std::string(secret), std::string(token)},
                   ParseTime(std::string(expires)) / kSecond};
}

/// Returns where STS is asked.
std::string StsEndpoint(const Environment& environment, const std::string& region) {
  std::string endpoint =
      environment("AWS_ENDPOINT_URL_STS").value_or("https://sts." + region + ".amazonaws.com");
  while (endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  return endpoint;
}

std::string RegionOf(const Environment& environment, const Profile& profile) {
  if (auto region = environment("AWS_REGION")) {
    return *region;
  }
  if (auto region = environment("AWS_DEFAULT_REGION")) {
    return *region;
  }
  return Find(profile, "region").value_or("us-east-1");
}

/// Asks STS for the keys of a role. Signed with `keys`, unless they are empty.
Result<FoundKeys> AskSts(const Environment& environment, const Profile& profile, NameValues query,
                         const Credentials& keys) {
  const std::string region = RegionOf(environment, profile);
  const std::string endpoint = StsEndpoint(environment, region);
  query.emplace_back("Version", "2011-06-15");
  const std::string body = CanonicalQuery(query);
  const std::string date =
      AmzDate(std::chrono::duration_cast<std::chrono::seconds>(TimeOfDay()).count());
  ToSign to_sign{"POST",
                 "/",
                 {},
                 {{"host", endpoint.substr(endpoint.find("://") + 3)},
                  {"content-type", "application/x-www-form-urlencoded"}},
                 Sha256Hex(body)};
  HttpRequest request;
  if (!keys.anonymous()) {
    to_sign.headers.emplace_back("x-amz-date", date);
    if (!keys.session_token.empty()) {
      to_sign.headers.emplace_back("x-amz-security-token", keys.session_token);
    }
    request.headers.push_back("authorization: " +
                              Authorization(to_sign, keys, region, "sts", date));
  }
  request.method = "POST";
  request.url = endpoint + "/";
  for (const auto& [name, value] : to_sign.headers) {
    request.headers.push_back(HeaderLine(name, value));
  }
  request.body = AsByteSpan(body);
  const std::string ca_file =
      environment("AWS_CA_BUNDLE").value_or(Find(profile, "ca_bundle").value_or(""));
  HttpClient http({.ca_file = ca_file});
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response, http.Perform(request));
  if (response.status != 200) {
    const ErrorBody error = ParseError(response.body);
    return FailedPrecondition("STS at " + endpoint +
                              " refuses the role: " + std::to_string(response.status) + " " +
                              Printable(error.code) + ": " + Printable(error.message));
  }
  VARVE_ASSIGN_OR_RETURN(TemporaryKeys given, ParseAssumedRole(response.body));
  return FoundKeys{
      {std::move(given.access_key), std::move(given.secret_key), std::move(given.session_token)},
      given.expires_ns / kSecond};
}

Result<FoundKeys> AssumeWithToken(const Environment& environment, const Profile& profile,
                                  const std::string& role, const std::string& token_file,
                                  const std::string& session) {
  VARVE_ASSIGN_OR_RETURN(const std::string token, ReadToken(token_file));
  return AskSts(environment, profile,
                {{"Action", "AssumeRoleWithWebIdentity"},
                 {"RoleArn", role},
                 {"RoleSessionName", session},
                 {"WebIdentityToken", token}},
                {});
}

/// Runs a profile's credential_process with the shell, as AWS's tools do.
Result<FoundKeys> RunProcess(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) {
    return FailedPrecondition("the credential_process of the profile cannot be started");
  }
  std::string output;
  std::array<char, 4096> block{};
  std::size_t got = 0;
  while ((got = std::fread(block.data(), 1, block.size(), pipe)) > 0 &&
         output.size() < kMaxOutput) {
    output.append(block.data(), got);
  }
  if (::pclose(pipe) != 0) {
    return FailedPrecondition("the credential_process of the profile has failed");
  }
  return KeysInJson(output, "the credential_process of the profile", "SessionToken");
}

MaybeKeys KeysOfNamedProfile(const Environment& environment, const std::string& name, int depth);

/// Returns the keys of the role that a profile names.
Result<FoundKeys> KeysOfRole(const Environment& environment, const Profile& profile,
                             const std::string& name, const std::string& role, int depth) {
  const std::string session = Find(profile, "role_session_name").value_or("varve");
  if (const auto token = Find(profile, "web_identity_token_file")) {
    return AssumeWithToken(environment, profile, role, *token, session);
  }
  const auto source = Find(profile, "source_profile");
  if (!source) {
    return FailedPrecondition("the AWS profile \"" + name +
                              "\" has a role_arn and neither source_profile nor "
                              "web_identity_token_file, which Varve could use");
  }
  if (depth >= kMostRoles) {
    return InvalidArgument("the AWS profile \"" + name + "\" leads to itself by source_profile");
  }
  MaybeKeys keys = std::optional<FoundKeys>();
  if (*source == name) {  // A profile's own keys, with which it takes its role.
    VARVE_ASSIGN_OR_RETURN(const auto own, KeysInProfile(profile, name));
    keys = own ? std::optional(FoundKeys{*own, 0}) : std::nullopt;
  } else {
    keys = KeysOfNamedProfile(environment, *source, depth + 1);
  }
  VARVE_RETURN_IF_ERROR(keys.status());
  if (!*keys) {
    return FailedPrecondition("the AWS profile \"" + *source + "\", source_profile of \"" + name +
                              "\", has no keys");
  }
  NameValues query{{"Action", "AssumeRole"}, {"RoleArn", role}, {"RoleSessionName", session}};
  if (const auto external = Find(profile, "external_id")) {
    query.emplace_back("ExternalId", *external);
  }
  return AskSts(environment, profile, std::move(query), (*keys)->keys);
}

MaybeKeys KeysOfNamedProfile(const Environment& environment, const std::string& name, int depth) {
  VARVE_ASSIGN_OR_RETURN(const Profile profile, ReadProfile(name, environment));
  if (const auto role = Find(profile, "role_arn")) {
    VARVE_ASSIGN_OR_RETURN(FoundKeys keys, KeysOfRole(environment, profile, name, *role, depth));
    return std::optional(std::move(keys));
  }
  VARVE_ASSIGN_OR_RETURN(const auto own, KeysInProfile(profile, name));
  if (own) {
    return std::optional(FoundKeys{*own, 0});
  }
  if (const auto process = Find(profile, "credential_process")) {
    VARVE_ASSIGN_OR_RETURN(FoundKeys keys, RunProcess(*process));
    return std::optional(std::move(keys));
  }
  return std::optional<FoundKeys>();
}

}  // namespace

MaybeKeys KeysOfProfile(const Environment& environment) {
  return KeysOfNamedProfile(environment, ProfileName(environment), 0);
}

MaybeKeys KeysOfWebIdentity(const Environment& environment) {
  const auto file = environment("AWS_WEB_IDENTITY_TOKEN_FILE");
  const auto role = environment("AWS_ROLE_ARN");
  if (!file || !role) {
    return std::optional<FoundKeys>();
  }
  VARVE_ASSIGN_OR_RETURN(FoundKeys keys,
                         AssumeWithToken(environment, {}, *role, *file,
                                         environment("AWS_ROLE_SESSION_NAME").value_or("varve")));
  return std::optional(std::move(keys));
}

MaybeKeys KeysOfContainer(const Environment& environment) {
  std::string url;
  if (const auto relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")) {
    url = "http://169.254.170.2" + *relative;
  } else if (const auto full = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
    url = *full;
  } else {
    return std::optional<FoundKeys>();
  }
  bool near = url.starts_with("https://");
  for (const char* const host :
       {"localhost", "127.0.0.1", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"}) {
    const std::string prefix = std::string("http://") + host;
    near = near || url.starts_with(prefix + "/") || url.starts_with(prefix + ":");
  }
  if (!near) {
    return InvalidArgument(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI names a host that is neither this one nor a metadata "
        "service, without TLS");
  }
  std::vector<std::string> headers;
  if (const auto file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
    VARVE_ASSIGN_OR_RETURN(const std::string token, ReadToken(*file));
    headers.push_back("authorization: " + token);
  } else if (const auto token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN")) {
    headers.push_back("authorization: " + *token);
  }
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response, AskNear("GET", url, std::move(headers)));
  if (response.status != 200) {
    return FailedPrecondition("the container's credentials service answers " +
                              std::to_string(response.status));
  }
  VARVE_ASSIGN_OR_RETURN(FoundKeys keys, KeysInJson(response.body,
                                                    "the container's credentials "
                                                    "service",
                                                    "Token"));
  return std::optional(std::move(keys));
}

MaybeKeys KeysOfInstance(const Environment& environment) {
  if (environment("AWS_EC2_METADATA_DISABLED").value_or("") == "true") {
    return std::optional<FoundKeys>();
  }
  std::string endpoint =
      environment("AWS_EC2_METADATA_SERVICE_ENDPOINT").value_or("http://169.254.169.254");
  while (endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  const auto token = AskNear("PUT", endpoint + "/latest/api/token",
                             {"x-aws-ec2-metadata-token-ttl-seconds: 21600"});
  if (!token.ok() || token->status != 200) {
    return std::optional<FoundKeys>();  // This host is no instance.
  }
  const std::string header = "x-aws-ec2-metadata-token: " + token->body;
  const std::string roles = endpoint + "/latest/meta-data/iam/security-credentials/";
  VARVE_ASSIGN_OR_RETURN(const HttpResponse role, AskNear("GET", roles, {header}));
  const std::string name = role.body.substr(0, role.body.find('\n'));
  if (role.status != 200 || name.empty()) {
    return std::optional<FoundKeys>();  // An instance without a role.
  }
  VARVE_ASSIGN_OR_RETURN(const HttpResponse response,
                         AskNear("GET", roles + UriEncode(name, /*keep_slashes=*/false), {header}));
  if (response.status != 200) {
    return FailedPrecondition("the instance's metadata service answers " +
                              std::to_string(response.status) + " when asked for its keys");
  }
  VARVE_ASSIGN_OR_RETURN(FoundKeys keys,
                         KeysInJson(response.body, "the instance's metadata service", "Token"));
  return std::optional(std::move(keys));
}

}  // namespace varve::s3
