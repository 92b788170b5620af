#include "storage/s3/keys/profile.h"

#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::s3::profile_test {
namespace {

/// Variables, and files of AWS's tools in a home directory of their own.
class Home {
 public:
  Home& Set(const std::string& name, const std::string& value) {
    variables_[name] = value;
    return *this;
  }
  Home& Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_.path() + "/" + name) << text;
    return *this;
  }
  [[nodiscard]] Environment environment() const {
    return [this](const std::string& name) -> std::optional<std::string> {
      if (name == "AWS_CONFIG_FILE" || name == "AWS_SHARED_CREDENTIALS_FILE") {
        return directory_.path() + (name == "AWS_CONFIG_FILE" ? "/config" : "/credentials");
      }
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
  }

 private:
  test::TempDir directory_;
  std::map<std::string, std::string> variables_;
};

TEST(S3Profile, SettingsOfABlockCarryItsName) {
  const auto profiles = ParseProfiles(
      "# a comment\nregion = lost\n[default]\nregion = eu-west-1\n"
      "s3 =\n    addressing_style = path\n    max_concurrent_requests=20\n"
      "output = json\n\n[profile train run]\r\nregion=us-west-2\r\n");
  EXPECT_EQ(profiles.at("default").at("region"), "eu-west-1");
  EXPECT_EQ(profiles.at("default").at("s3.addressing_style"), "path");
  EXPECT_EQ(profiles.at("default").at("output"), "json");
  EXPECT_EQ(profiles.at("train run").at("region"), "us-west-2");
}

TEST(S3Profile, AnEndpointOfAnotherHostHasTlsUnlessItSaysOtherwise) {
  for (const auto& [given, want] : std::map<std::string, std::string>{
           {"store.example.com", "https://store.example.com"},
           {"store.example.com:9000", "https://store.example.com:9000"},
           {"127.example.com", "https://127.example.com"},
           {"localhost.example.com:80", "https://localhost.example.com:80"},
           {"[2001:db8::1]:80", "https://[2001:db8::1]:80"},
           {"localhost", "http://localhost"},
           {"127.0.0.1:9000", "http://127.0.0.1:9000"},
           {"[::1]:9000", "http://[::1]:9000"},
           {"http://store.example.com", "http://store.example.com"}}) {
    const auto settings = ReadSettings(Home().Set("AWS_ENDPOINT_URL", given).environment());
    ASSERT_TRUE(settings.ok()) << settings.status().ToString();
    EXPECT_EQ(settings->endpoint, want);
  }
}

TEST(S3Profile, LimitsOfTrafficAreWholeNumbers) {
  const auto settings = ReadSettings(Home()
                                         .Set("VARVE_S3_MAX_CONNECTIONS", "12")
                                         .Set("VARVE_S3_MAX_CONNECTIONS_PER_NODE", "40")
                                         .Set("VARVE_S3_MAX_BANDWIDTH", "250000000")
                                         .Set("VARVE_S3_MAX_BANDWIDTH_PER_NODE", "900000000")
                                         .environment());
  ASSERT_TRUE(settings.ok()) << settings.status().ToString();
  EXPECT_EQ(settings->traffic, (TrafficLimits{12, 40, 250'000'000, 900'000'000}));
  for (const char* value : {"0", "-1", "1.5", "many", "99999999999999999999999"}) {
    for (const char* name : {"VARVE_S3_MAX_CONNECTIONS", "VARVE_S3_MAX_CONNECTIONS_PER_NODE",
                             "VARVE_S3_MAX_BANDWIDTH", "VARVE_S3_MAX_BANDWIDTH_PER_NODE"}) {
      const auto refused = ReadSettings(Home().Set(name, value).environment());
      EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << name << "=" << value;
      EXPECT_NE(refused.status().message().find(name), std::string::npos);
    }
  }
}

TEST(S3Profile, HalfAPairOfKeysIsRefused) {
  EXPECT_EQ(KeysOfEnvironment(Home().Set("AWS_ACCESS_KEY_ID", "X").environment()).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(KeysInProfile({{"aws_access_key_id", "A"}}, "p").status().code(),
            StatusCode::kInvalidArgument);
}

TEST(S3Profile, AProfileThatIsNowhereIsRefusedByName) {
  const auto settings = ReadSettings(Home().Set("AWS_PROFILE", "trian").environment());
  EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(settings.status().message().find("trian"), std::string::npos);
}

TEST(S3Profile, WithoutAnythingABucketIsAWSs) {
  const Settings settings = ReadSettings(Home().environment()).value();
  EXPECT_EQ(settings.endpoint, "");
  EXPECT_EQ(settings.region, "us-east-1");
  EXPECT_EQ(settings.addressing, Addressing::kVirtual);
}

TEST(S3Profile, AnEndpointIsReachedWithTlsUnlessItIsThisHost) {
  const auto endpoint = [](const std::string& text) {
    const auto settings = ReadSettings(Home().Set("AWS_ENDPOINT_URL", text).environment());
    return settings.ok() ? settings->endpoint : settings.status().ToString();
  };
  EXPECT_EQ(endpoint("store.example:9000/"), "https://store.example:9000");
  EXPECT_EQ(endpoint("localhost:7480"), "http://localhost:7480");
  EXPECT_EQ(endpoint("http://store.example"), "http://store.example");
  for (const char* bad : {"ftp://a", "https://", "https://a/b", "https://u:p@a", "https://a?b"}) {
    EXPECT_TRUE(endpoint(bad).starts_with("InvalidArgument")) << bad;
  }
}

TEST(S3Profile, OlmosVariableTurnsTlsOffWhereNoSchemeIsGiven) {
  const auto settings = [](const std::string& endpoint) {
    return ReadSettings(
               Home().Set("OLMO_NO_SSL", "1").Set("AWS_ENDPOINT_URL", endpoint).environment())
        .value();
  };
  EXPECT_EQ(settings("store.example:9000").endpoint, "http://store.example:9000");
  EXPECT_EQ(settings("https://store.example").endpoint, "https://store.example");
  EXPECT_FALSE(ReadSettings(Home().Set("OLMO_NO_SSL", "1").environment())->tls);
  EXPECT_TRUE(ReadSettings(Home().Set("OLMO_NO_SSL", "0").environment())->tls);
}

TEST(S3Profile, TheVariableOfS3ComesBeforeThatOfAllServicesBeforeTheProfiles) {
  Home home;
  home.Write("config", "[profile p]\nendpoint_url = https://c\nregion = r\n[default]\n");
  home.Set("AWS_PROFILE", "p");
  EXPECT_EQ(ReadSettings(home.environment())->endpoint, "https://c");
  EXPECT_EQ(ReadSettings(home.environment())->region, "r");
  home.Set("AWS_ENDPOINT_URL", "https://b");
  EXPECT_EQ(ReadSettings(home.environment())->endpoint, "https://b");
  home.Set("AWS_ENDPOINT_URL_S3", "https://a");
  EXPECT_EQ(ReadSettings(home.environment())->endpoint, "https://a");
  EXPECT_EQ(ReadSettings(home.environment())->addressing, Addressing::kPath);
}

TEST(S3Profile, AValueThatCannotBeUsedIsRefusedByName) {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"VARVE_S3_STALL_TIMEOUT", "0"},
                                          {"VARVE_S3_RETRY_TIMEOUT", "1m"},
                                          {"VARVE_S3_ADDRESSING", "dns"},
                                          {"VARVE_S3_PUBLISH", "yes"},
                                          {"VARVE_S3_REQUESTER_PAYS", "yes"},
                                          {"VARVE_S3_SSE", "aes"}}) {
    const auto settings = ReadSettings(Home().Set(name, value).environment());
    EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(settings.status().message().find(name), std::string::npos);
  }
}

TEST(S3Profile, ASchemeOfAnotherServerHasItsOwnEndpointAndProfile) {
  Home home;
  home.Set("AWS_ENDPOINT_URL", "https://a").Set("AWS_PROFILE", "aws");
  home.Set("AWS_ACCESS_KEY_ID", "X").Set("AWS_SECRET_ACCESS_KEY", "Y");
  const Environment r2 = EnvironmentOf("r2", home.environment());
  const auto without = ReadSettings(EnvironmentOf("r2", Home().environment()), "r2");
  EXPECT_TRUE(test::FailsWith(without, StatusCode::kInvalidArgument, {"r2://", "R2_ENDPOINT_URL"}));
  EXPECT_EQ(ProfileName(r2), "aws");
  EXPECT_EQ(KeysOfEnvironment(r2).value()->access_key, "X");
  home.Set("R2_ENDPOINT_URL", "https://r2.test").Set("R2_PROFILE", "cloud");
  home.Write("config", "[profile cloud]\nregion = auto\n");
  EXPECT_EQ(ProfileName(r2), "cloud");
  EXPECT_FALSE(KeysOfEnvironment(r2).value().has_value());
  const Settings settings = ReadSettings(r2, "r2").value();
  EXPECT_EQ(settings.endpoint, "https://r2.test");
  EXPECT_EQ(settings.region, "auto");
  EXPECT_EQ(settings.scheme, "r2");
  EXPECT_EQ(ProfileName(EnvironmentOf("weka", home.environment())), "aws");
}

}  // namespace
}  // namespace varve::s3::profile_test
