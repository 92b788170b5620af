#include "storage/s3/keys/credentials.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/time_source.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/storage_plugins.h"

namespace varve::s3::credentials_test {
namespace {

using test::FailsWith;
using test::S3Server;

std::string Time(std::int64_t seconds_from_now) {
  const std::string date = AmzDate(
      std::chrono::duration_cast<std::chrono::seconds>(TimeOfDay()).count() + seconds_from_now);
  return date.substr(0, 4) + "-" + date.substr(4, 2) + "-" + date.substr(6, 5) + ":" +
         date.substr(11, 2) + ":" + date.substr(13, 3);
}

class S3Credentials : public testing::Test {
 protected:
  S3Credentials() {
    variables_ = {{"AWS_CONFIG_FILE", home_ / "config"},
                  {"AWS_SHARED_CREDENTIALS_FILE", home_ / "credentials"},
                  {"AWS_ENDPOINT_URL_STS", server_.endpoint()},
                  {"AWS_EC2_METADATA_SERVICE_ENDPOINT", server_.endpoint()},
                  {"AWS_EC2_METADATA_DISABLED", "true"}};
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(home_ / name) << text;
  }
  CredentialsFunction Function() {
    return ProcessCredentials([this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    });
  }
  std::string Found() {
    const auto keys = Function()();
    return keys.ok() ? keys->access_key + " " + keys->secret_key + " " + keys->session_token
                     : keys.status().ToString();
  }
  void SetRole(const std::string& access, std::int64_t seconds) {
    server_.SetPage("/", "<R><AssumeRoleResult><Credentials><AccessKeyId>" + access +
                             "</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t"
                             "</SessionToken><Expiration>" +
                             Time(seconds) + "</Expiration></Credentials></AssumeRoleResult></R>");
  }

  test::TempDir home_;
  S3Server server_;
  std::map<std::string, std::string> variables_;
};

TEST_F(S3Credentials, TheEnvironmentComesBeforeTheProfile) {
  Write("credentials",
        "[default]\naws_access_key_id=A\naws_secret_access_key=B\n"
        "[p]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=E\n");
  EXPECT_EQ(Found(), "A B ");
  variables_["AWS_PROFILE"] = "p";
  EXPECT_EQ(Found(), "C D E");
  variables_["AWS_ACCESS_KEY_ID"] = "X";
  variables_["AWS_SECRET_ACCESS_KEY"] = "Y";
  EXPECT_EQ(Found(), "X Y ");
  variables_["VARVE_S3_UNSIGNED"] = "1";
  EXPECT_EQ(Found(), "  ");
}

TEST_F(S3Credentials, AProfilesRoleIsAskedOfStsWithItsSourcesKeys) {
  Write("config",
        "[profile p]\nrole_arn=arn:r\nsource_profile=base\n"
        "[profile base]\naws_access_key_id=A\naws_secret_access_key=B\n");
  variables_["AWS_PROFILE"] = "p";
  SetRole("role", 3600);
  std::string body;
  std::string signed_by;
  server_.SetScript([&](const test::S3Request& request, int) {
    body = request.body;
    signed_by = request.headers.at("authorization");
    return test::S3Fault::kNone;
  });
  EXPECT_EQ(Found(), "role s t");
  EXPECT_EQ(body, "Action=AssumeRole&RoleArn=arn%3Ar&RoleSessionName=varve&Version=2011-06-15");
  EXPECT_NE(signed_by.find("Credential=A/"), std::string::npos);
}

TEST_F(S3Credentials, AProfileThatLeadsToItselfIsRefused) {
  Write("config",
        "[profile p]\nrole_arn=r\nsource_profile=q\n"
        "[profile q]\nrole_arn=r\nsource_profile=p\n");
  variables_["AWS_PROFILE"] = "p";
  EXPECT_NE(Found().find("leads to itself"), std::string::npos);
}

TEST_F(S3Credentials, AWebIdentitysTokenIsGivenForKeys) {
  Write("token", "the-token\n");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = home_ / "token";
  variables_["AWS_ROLE_ARN"] = "arn:r";
  SetRole("web", 3600);
  std::string body;
  server_.SetScript([&](const test::S3Request& request, int) {
    body = request.body;
    EXPECT_FALSE(request.headers.contains("authorization"));
    return test::S3Fault::kNone;
  });
  EXPECT_EQ(Found(), "web s t");
  EXPECT_NE(body.find("WebIdentityToken=the-token"), std::string::npos);
}

TEST_F(S3Credentials, AProcessOfTheProfileIsRun) {
  Write("config", R"([default]
credential_process = echo '{"Version": 1, "AccessKeyId": "P", "SecretAccessKey": "Q"}'
)");
  EXPECT_EQ(Found(), "P Q ");
  Write("config", "[default]\ncredential_process = false\n");
  EXPECT_NE(Found().find("credential_process"), std::string::npos);
}

TEST_F(S3Credentials, AContainersServiceIsAsked) {
  server_.SetPage("/keys", R"({"AccessKeyId": "C", "SecretAccessKey": "D", "Token": "E"})");
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server_.endpoint() + "/keys";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "let me in";
  std::string authorization;
  server_.SetScript([&](const test::S3Request& request, int) {
    authorization = request.headers.at("authorization");
    return test::S3Fault::kNone;
  });
  EXPECT_EQ(Found(), "C D E");
  EXPECT_EQ(authorization, "let me in");
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://elsewhere.example/keys";
  EXPECT_NE(Found().find("without TLS"), std::string::npos);
}

TEST_F(S3Credentials, AnInstancesMetadataAreAskedWithAToken) {
  variables_.erase("AWS_EC2_METADATA_DISABLED");
  server_.SetPage("/latest/api/token", "token");
  server_.SetPage("/latest/meta-data/iam/security-credentials/", "my-role");
  server_.SetPage("/latest/meta-data/iam/security-credentials/my-role",
                  R"({"AccessKeyId": "I", "SecretAccessKey": "J", "Token": "K"})");
  server_.SetScript([&](const test::S3Request& request, int) {
    EXPECT_TRUE(request.method == "PUT" ||
                request.headers.at("x-aws-ec2-metadata-token") == "token");
    return test::S3Fault::kNone;
  });
  EXPECT_EQ(Found(), "I J K");
}

TEST_F(S3Credentials, KeysAreRenewedBeforeTheirEndAndUsedUpToIt) {
  Write("token", "the-token");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = home_ / "token";
  variables_["AWS_ROLE_ARN"] = "arn:r";
  const CredentialsFunction keys = Function();
  SetRole("first", 3600);
  EXPECT_EQ(keys()->access_key, "first");
  SetRole("second", 3600);
  EXPECT_EQ(keys()->access_key, "first");  // They are good.
  const CredentialsFunction short_lived = Function();
  SetRole("first", 200);
  EXPECT_EQ(short_lived()->access_key, "first");
  SetRole("second", 200);
  EXPECT_EQ(short_lived()->access_key, "second");
  server_.SetScript([](const test::S3Request&, int) { return test::S3Fault::kRefused; });
  EXPECT_EQ(short_lived()->access_key, "second");
}

TEST_F(S3Credentials, WithoutKeysTheErrorNamesThePlaces) {
  EXPECT_TRUE(FailsWith(Function()(), StatusCode::kFailedPrecondition,
                        {"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "VARVE_S3_UNSIGNED"}));
}

/// Keys that the program gives for "r2", of which no other test asks.
class S3GivenKeys : public S3Credentials {
 protected:
  ~S3GivenKeys() override { EXPECT_TRUE(SetS3Keys("r2", {}).ok()); }
  CredentialsFunction Asking() {
    return ProcessCredentials(
        [this](const std::string& name) -> std::optional<std::string> {
          const auto found = variables_.find(name);
          return found == variables_.end() ? std::nullopt : std::optional(found->second);
        },
        "r2");
  }
  static std::int64_t Soon(std::int64_t seconds) {
    return std::chrono::duration_cast<std::chrono::seconds>(TimeOfDay()).count() + seconds;
  }
  std::atomic<int> asked_{0};
};

TEST_F(S3GivenKeys, ComeBeforeAllOthersUntilTheyAreTakenBack) {
  variables_["AWS_ACCESS_KEY_ID"] = "X";
  variables_["AWS_SECRET_ACCESS_KEY"] = "Y";
  const auto keys = Asking();
  EXPECT_EQ(keys()->access_key, "X");
  ASSERT_TRUE(SetS3Keys("r2", [] { return S3Keys{"A", "B", "T", 0}; }).ok());
  EXPECT_EQ(keys()->access_key + keys()->secret_key + keys()->session_token, "ABT");
  EXPECT_EQ(Found(), "X Y ");  // Another scheme's.
  ASSERT_TRUE(SetS3Keys("r2", {}).ok());
  EXPECT_EQ(keys()->access_key, "X");
  EXPECT_TRUE(FailsWith(SetS3Keys("gs", {}), StatusCode::kInvalidArgument));
}

TEST_F(S3GivenKeys, AreAskedForFiveMinutesBeforeTheyEndByOneThread) {
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  ASSERT_TRUE(SetS3Keys("r2", [&]() -> Result<S3Keys> {
                most = std::max(most.load(), ++inside);
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                --inside;
                // The first are good for less than five minutes, the second for longer.
                return S3Keys{"A" + std::to_string(++asked_), "B", "",
                              Soon(asked_ == 1 ? 200 : 3600)};
              }).ok());
  const auto keys = Asking();
  EXPECT_EQ(keys()->access_key, "A1");
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] { EXPECT_EQ(keys()->access_key, "A2"); });
    }
  }
  EXPECT_EQ(asked_, 2);
  EXPECT_EQ(most, 1);
}

TEST_F(S3GivenKeys, ThatCannotBeRenewedAreUsedUpToTheirEnd) {
  ASSERT_TRUE(SetS3Keys("r2", [&]() -> Result<S3Keys> {
                if (++asked_ > 1) {
                  return Unavailable("the vault is away");
                }
                return S3Keys{"A", "very-secret", "", Soon(2)};
              }).ok());
  const auto keys = Asking();
  EXPECT_EQ(keys()->access_key, "A");
  EXPECT_EQ(keys()->access_key, "A");
  EXPECT_EQ(asked_, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const auto after = keys();
  EXPECT_TRUE(FailsWith(after, StatusCode::kUnavailable, {"the vault is away", "r2://"}));
  EXPECT_EQ(after.status().message().find("very-secret"), std::string::npos);
}

TEST_F(S3GivenKeys, ThatHaveEndedOrLackAPartAreAnError) {
  const auto keys = Asking();
  ASSERT_TRUE(SetS3Keys("r2", [] { return S3Keys{"A", "B", "", Soon(-5)}; }).ok());
  EXPECT_TRUE(FailsWith(keys(), StatusCode::kFailedPrecondition, {"ended"}));
  ASSERT_TRUE(SetS3Keys("r2", [] { return S3Keys{"A", "", "", 0}; }).ok());
  EXPECT_TRUE(FailsWith(keys(), StatusCode::kFailedPrecondition, {"no secret key"}));
}

}  // namespace
}  // namespace varve::s3::credentials_test
