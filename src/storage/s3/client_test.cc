#include "storage/s3/client.h"

#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/retry_time.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "varve/events.h"
#include "varve/stop.h"

namespace varve::s3::client_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::FailsWith;
using test::IsOk;
using test::S3Answer;
using test::S3Fault;
using test::S3Request;
using test::S3Server;

constexpr const char* kAccessKey = "AKIAIOSFODNN7EXAMPLE";
constexpr const char* kSecretKey = "wJalrXUtnFEMIxK7MDENGxbPxRfiCYEXAMPLEKEY";
constexpr const char* kToken = "session-token-of-the-test";
constexpr const char* kName = "b/k";

/// Collects the lines of all events while it exists.
class Events {
 public:
  Events() {
    SetEventFunction([this](const Event& event) {
      const std::scoped_lock lock(mutex_);
      lines_.push_back(ToLine(event));
    });
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  ~Events() { SetEventFunction({}); }

  std::vector<std::string> Take() {
    SetEventFunction({});  // Waits for those that are on their way.
    const std::scoped_lock lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

S3Answer ErrorAnswer(int status, const std::string& code, std::vector<std::string> headers = {}) {
  return {status, std::move(headers),
          "<Error><Code>" + code + "</Code><Message>m</Message></Error>"};
}

class S3Clients : public testing::Test {
 protected:
  Settings Quick() {
    Settings settings;
    settings.endpoint = server_.endpoint();
    settings.stall = std::chrono::seconds(5);
    settings.retry = {.first = milliseconds(1),
                      .longest = milliseconds(5'000),
                      .time_limit = milliseconds(20'000)};
    return settings;
  }
  static CredentialsFunction Keys() {
    return [] { return Credentials{kAccessKey, kSecretKey, kToken}; };
  }
  Status PutText(S3Client& client, const std::string& text = "text") {
    return client.Put(kName, AsByteSpan(text), /*if_absent=*/false);
  }
  /// Answers the first request so, and lets the server answer all others.
  void AnswerFirst(S3Answer answer) {
    server_.SetStand([answer = std::move(answer)](const S3Request&, int index) {
      return index == 0 ? std::optional(answer) : std::nullopt;
    });
  }
  static double Seconds(const std::function<void()>& work) {
    const auto start = steady_clock::now();
    work();
    return std::chrono::duration<double>(steady_clock::now() - start).count();
  }

  S3Server server_;
};

TEST_F(S3Clients, WaitAsLongAsTheServerAsksInSecondsOrUntilADate) {
  for (const S3Answer& answer : {ErrorAnswer(429, "TooManyRequests", {"Retry-After: 1"}),
                                 ErrorAnswer(503, "SlowDown",
                                             {"Date: Thu, 01 Jan 2026 00:00:00 GMT",
                                              "Retry-After: Thu, 01 Jan 2026 00:00:01 GMT"})}) {
    S3Client client(Quick(), Keys());
    AnswerFirst(answer);
    const double seconds = Seconds([&] { EXPECT_TRUE(IsOk(PutText(client))); });
    EXPECT_GE(seconds, 0.95);
    EXPECT_LT(seconds, 4);
    EXPECT_EQ(server_.requests(), 2);
  }
}

TEST_F(S3Clients, SendAgainWhatFailsForAReasonThatMayPass) {
  for (const auto& [status, code] : std::vector<std::pair<int, std::string>>{
           {500, "InternalError"}, {503, "SlowDown"}, {400, "RequestTimeout"}, {502, ""}}) {
    S3Client client(Quick(), Keys());
    AnswerFirst(ErrorAnswer(status, code));
    EXPECT_TRUE(IsOk(PutText(client)));
    EXPECT_EQ(server_.requests(), 2) << status;
  }
}

TEST_F(S3Clients, TakeAnErrorBehindAStatus200ForAFailure) {
  S3Client client(Quick(), Keys());
  server_.SetScript([](const S3Request&, int) { return S3Fault::kNone; });
  const auto upload = client.StartMarkedUpload(kName, 0, "mark");
  ASSERT_TRUE(upload.ok());
  const auto part = client.UploadPart(kName, *upload, 1, AsByteSpan("text"));
  ASSERT_TRUE(part.ok());
  AnswerFirst(ErrorAnswer(200, "InternalError"));
  const std::vector<std::string> parts{*part};
  EXPECT_TRUE(IsOk(client.EndUpload(kName, *upload, &parts)));
  EXPECT_EQ(server_.requests(), 2);
  EXPECT_EQ(server_.objects()["b/k"], "text");
}

TEST_F(S3Clients, SetTheirClockByAServerThatRefusesTheTime) {
  S3Client client(Quick(), Keys());
  std::vector<std::string> dates;
  server_.SetTime("2026-01-01T00:00:00.000Z", "Tue, 04 Feb 2031 05:06:07 GMT");
  server_.SetStand([&](const S3Request& request, int index) {
    dates.push_back(request.headers.at("x-amz-date"));
    return index == 0 ? std::optional(ErrorAnswer(403, "RequestTimeTooSkewed")) : std::nullopt;
  });
  EXPECT_TRUE(IsOk(PutText(client)));
  ASSERT_EQ(dates.size(), 2U);
  EXPECT_FALSE(dates[0].starts_with("20310204T0506")) << dates[0];
  EXPECT_TRUE(dates[1].starts_with("20310204T0506")) << dates[1];
}

TEST_F(S3Clients, SignForTheRegionThatTheServerNames) {
  S3Client client(Quick(), Keys());
  std::string authorization;
  server_.SetStand([&](const S3Request& request, int index) {
    authorization = request.headers.at("authorization");
    return index == 0 ? std::optional(ErrorAnswer(400, "AuthorizationHeaderMalformed",
                                                  {"x-amz-bucket-region: eu-west-9"}))
                      : std::nullopt;
  });
  EXPECT_TRUE(IsOk(PutText(client)));
  EXPECT_NE(authorization.find("/eu-west-9/s3/"), std::string::npos) << authorization;
}

TEST_F(S3Clients, TryARequestWithoutProgressOnAnotherConnection) {
  Settings settings = Quick();
  settings.stall = std::chrono::seconds(1);
  S3Client client(settings, Keys());
  server_.SetScript(
      [](const S3Request&, int index) { return index == 0 ? S3Fault::kStall : S3Fault::kNone; });
  const Events events;
  const double seconds = Seconds([&] { EXPECT_TRUE(IsOk(PutText(client))); });
  EXPECT_GE(seconds, 0.9);
  EXPECT_LT(seconds, 15);  // libcurl looks at the speed of the last five seconds.
  EXPECT_EQ(server_.requests(), 2);
}

TEST_F(S3Clients, DoNotFollowRedirects) {
  S3Server other;
  S3Client client(Quick(), Keys());
  for (const int status : {301, 302, 307, 308}) {
    AnswerFirst({status, {"Location: " + other.endpoint() + "/b/k"}, ""});
    const Status put = PutText(client);
    EXPECT_TRUE(FailsWith(put, StatusCode::kFailedPrecondition, {std::to_string(status)}));
  }
  EXPECT_EQ(other.requests(), 0);
}

TEST_F(S3Clients, EndAnAnswerWithoutEnd) {
  S3Client client(Quick(), Keys());
  AnswerFirst({200,
               {"x-long: " + std::string(90'000, 'a'), "x-more: " + std::string(90'000, 'b'),
                "x-yet: " + std::string(90'000, 'c')},
               ""});
  EXPECT_FALSE(client.Head(kName).ok());
  AnswerFirst({200, {}, std::string(std::size_t{17} << 20, 'x')});
  EXPECT_TRUE(FailsWith(client.List("b/", /*unfinished=*/false).status(), StatusCode::kDataLoss,
                        {"more than 16 MiB"}));
  AnswerFirst({400, {}, "<Error><Code>" + std::string(1'000'000, 'x') + "</Code></Error>"});
  const Status put = PutText(client);
  EXPECT_FALSE(put.ok());
  EXPECT_LT(put.message().size(), 2'000U);
}

TEST_F(S3Clients, SayWhatToDoAboutKeysThatHaveEnded) {
  S3Client client(Quick(), Keys());
  AnswerFirst(ErrorAnswer(400, "ExpiredToken"));
  EXPECT_TRUE(FailsWith(PutText(client), StatusCode::kFailedPrecondition,
                        {"PUT s3://b/k", "400", "ExpiredToken", "renew them"}));
}

// A router gives such answers while the server behind it is away. Taken for S3's own they would be
// an absent checkpoint, on which a job begins anew, or a damaged one.
TEST_F(S3Clients, AskAgainAfterAnAnswerThatIsNotS3s) {
  S3Client client(Quick(), Keys());
  ASSERT_TRUE(IsOk(PutText(client)));
  std::string text(4, ' ');
  const auto bytes = std::as_writable_bytes(std::span(text.data(), text.size()));
  std::vector<std::function<Status()>> requests{
      [&] { return client.List("b/", /*unfinished=*/false).status(); },
      [&] { return client.Head(kName).status(); }, [&] { return PutText(client); },
      [&] { return client.Read(kName, 0, bytes, ""); }};
  for (const S3Answer& answer :
       {S3Answer{404, {"Content-Type: text/plain"}, "default backend - 404"},
        S3Answer{404, {}, ""}}) {
    for (const auto& request : requests) {
      AnswerFirst(answer);
      EXPECT_TRUE(IsOk(request()));
    }
  }
  const S3Answer page{200, {"Content-Type: text/html"}, "<html>log in</html>"};
  AnswerFirst(page);
  EXPECT_TRUE(FailsWith(requests.back()(), StatusCode::kUnavailable, {"s3://b/k"}));
  requests.pop_back();
  for (const auto& request : requests) {
    AnswerFirst(page);
    EXPECT_TRUE(IsOk(request()));
  }
}

TEST_F(S3Clients, TakeNoAbsenceFromAnAnswerThatIsNotS3s) {
  Settings settings = Quick();
  settings.retry.time_limit = milliseconds(40);
  S3Client client(settings, Keys());
  server_.SetStand([](const S3Request&, int) { return S3Answer{404, {}, "no such site"}; });
  for (const Status& status :
       {client.Head(kName).status(), client.List("b/", /*unfinished=*/false).status(),
        client.ListAll("b/").status()}) {
    EXPECT_TRUE(FailsWith(status, StatusCode::kUnavailable, {"404", "AWS_ENDPOINT_URL"}));
  }
  server_.SetStand(
      [](const S3Request&, int) { return S3Answer{404, {"x-amz-request-id: 1"}, ""}; });
  EXPECT_EQ(client.Head(kName).status().code(), StatusCode::kNotFound);
}

// Every event, and every error of every request, after every kind of failure.
TEST_F(S3Clients, TellNoKeyAndNoSignature) {
  Settings settings = Quick();
  settings.retry.time_limit = milliseconds(40);
  const std::vector<std::string> parts;
  std::vector<std::string> told;
  std::string signature;
  Events events;
  for (const S3Answer& answer :
       {ErrorAnswer(503, "SlowDown"), ErrorAnswer(403, "SignatureDoesNotMatch"),
        ErrorAnswer(400, "ExpiredToken"), ErrorAnswer(307, "TemporaryRedirect"),
        ErrorAnswer(200, "InternalError"), S3Answer{200, {}, "no XML"}}) {
    S3Client client(settings, Keys());
    server_.SetStand([&](const S3Request& request, int) {
      const std::string& line = request.headers.at("authorization");
      signature = line.substr(line.find("Signature=") + 10);
      return answer;
    });
    told.push_back(PutText(client).ToString());
    told.push_back(client.Head(kName).status().ToString());
    told.push_back(client.List("b/", /*unfinished=*/false).status().ToString());
    told.push_back(client.Remove({kName}).ToString());
    told.push_back(client.StartMarkedUpload(kName, 0, "mark").status().ToString());
    told.push_back(client.EndUpload(kName, "u", &parts).ToString());
    told.push_back(client.EndUpload(kName, "u", nullptr).ToString());
  }
  for (std::string& line : events.Take()) {
    told.push_back(std::move(line));
  }
  EXPECT_GT(told.size(), 60U);
  for (const std::string& line : told) {
    for (const std::string& secret : {std::string(kAccessKey), std::string(kSecretKey),
                                      std::string(kToken), signature, std::string("AWS4")}) {
      EXPECT_EQ(line.find(secret), std::string::npos) << line;
    }
  }
}

TEST_F(S3Clients, ReportEachRetry) {
  Events events;
  S3Client client(Quick(), Keys());
  server_.SetScript([](const S3Request&, int index) {
    return index < 3 ? S3Fault::kUnavailable : S3Fault::kNone;
  });
  EXPECT_TRUE(IsOk(PutText(client)));
  std::size_t retries = 0;
  for (const std::string& line : events.Take()) {
    retries += line.find("tried again in") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(retries, 3U);
}

// ---- limits ----

/// Sends so many requests at once.
void PutAtOnce(S3Client& client, int count) {
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&client, i] {
      EXPECT_TRUE(
          IsOk(client.Put(kName + std::to_string(i), AsByteSpan("text"), /*if_absent=*/false)));
    });
  }
}

TEST_F(S3Clients, KeepTheLimitOfConnections) {
  Settings settings = Quick();
  settings.traffic.connections = 3;
  S3Client client(settings, Keys());
  server_.SetDelay(milliseconds(10));
  PutAtOnce(client, 16);
  EXPECT_EQ(server_.most_at_once(), 3);
  EXPECT_EQ(server_.objects().size(), 16U);
}

TEST_F(S3Clients, ThatShareTrafficKeepOneLimit) {
  Settings settings = Quick();
  settings.traffic.connections = 3;
  const auto traffic = std::make_shared<Traffic>(settings.traffic);
  S3Client a(settings, Keys(), traffic);
  S3Client b(settings, Keys(), traffic);
  server_.SetDelay(milliseconds(10));
  {
    const std::jthread other([&] { PutAtOnce(a, 8); });
    PutAtOnce(b, 8);
  }
  EXPECT_LE(server_.most_at_once(), 3);
}

TEST_F(S3Clients, HalveTheirRequestsWhenTheServerHasTooMuchToDo) {
  Events events;
  Settings settings = Quick();
  settings.traffic.connections = 8;
  S3Client client(settings, Keys());
  AnswerFirst(ErrorAnswer(503, "SlowDown"));
  EXPECT_TRUE(IsOk(PutText(client)));
  server_.SetStand({});
  server_.SetDelay(milliseconds(20));
  PutAtOnce(client, 4);  // Too few answers for the limit to grow by more than one.
  PutAtOnce(client, 16);
  EXPECT_LE(server_.most_at_once(), 7);
  bool said = false;
  for (const std::string& line : events.Take()) {
    said = said || line.find("at most 4 requests at once") != std::string::npos;
  }
  EXPECT_TRUE(said);
}

TEST_F(S3Clients, KeepTheBandwidth) {
  Settings settings = Quick();
  settings.traffic.bytes_per_second = 1'000'000;
  S3Client client(settings, Keys());
  const std::string text(200'000, 'x');
  const double up = Seconds([&] {
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(IsOk(PutText(client, text)));
    }
  });
  EXPECT_GE(up, 0.55);  // The fourth begins after 0.6 s.
  std::string back(text.size(), '\0');
  const auto bytes = std::as_writable_bytes(std::span(back.data(), back.size()));
  const double down = Seconds([&] { EXPECT_TRUE(IsOk(client.Read(kName, 0, bytes, ""))); });
  EXPECT_GE(up + down, 0.75);  // The download begins after 0.8 s, however long the uploads took.
  EXPECT_EQ(back, text);
}

TEST_F(S3Clients, CanBeStoppedWhileTheyWaitForTheirTurn) {
  Settings settings = Quick();
  settings.traffic.bytes_per_second = 1;
  S3Client client(settings, Keys());
  EXPECT_TRUE(IsOk(PutText(client)));
  std::stop_source stop;
  const ScopedStop scoped(stop.get_token());
  const std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(50));
    stop.request_stop();
  });
  EXPECT_EQ(PutText(client).code(), StatusCode::kCancelled);
}

// A failed save removes its objects by many requests. A server that is lost answers none of them.
// Without a common limit each request would wait as long as the one that failed.
TEST_F(S3Clients, SpendLittleTimeInAllOnWhatCouldBeLeftUndone) {
  Settings settings = Quick();
  settings.retry.longest = milliseconds(5);
  S3Client client(settings, Keys());
  server_.SetScript([](const S3Request&, int) { return S3Fault::kResetBefore; });
  const ScopedRetryTime around(milliseconds(400));
  {
    const ScopedRetryTime time(milliseconds(200));
    EXPECT_TRUE(FailsWith(PutText(client), StatusCode::kUnavailable, {"given up after"}));
    while (time.left() > milliseconds(0)) {
      EXPECT_EQ(PutText(client).code(), StatusCode::kUnavailable);
    }
    const int requests = server_.requests();
    EXPECT_TRUE(FailsWith(PutText(client), StatusCode::kUnavailable, {"was not sent"}));
    EXPECT_EQ(server_.requests(), requests);
  }
  EXPECT_LE(around.left(), milliseconds(200));
}

TEST_F(S3Clients, SpendNoTimeOnAServerThatAnswers) {
  S3Client client(Quick(), Keys());
  const ScopedRetryTime time(milliseconds(5'000));
  AnswerFirst(ErrorAnswer(500, "InternalError"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(IsOk(PutText(client)));
  }
  EXPECT_EQ(time.left(), milliseconds(5'000));
}

}  // namespace
}  // namespace varve::s3::client_test
