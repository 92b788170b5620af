// A save in the background whose last write has an unknown end is not repeated: a second attempt
// would have the id of the first, and so its directory. It would write there what may be visible,
// and remove it where it fails.

#include <chrono>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "async/attempts.h"
#include "base/time_source.h"
#include "crash/s3_faults.h"
#include "save/session.h"

namespace varve::test::s3_retry_test {
namespace {

/// Returns the beginning of the name of the object whose write publishes a checkpoint.
std::string MarkOf(Format format) {
  switch (format) {
    case Format::kDcp: return ".metadata";
    case Format::kSafetensors: return "model.safetensors.index.json";
    default: return "varve";
  }
}

class S3Retries : public S3Faults, public testing::WithParamInterface<Format> {
 protected:
  S3Retries() : S3Faults(GetParam(), 1) {}

  Status SaveWithARetry(const JobState& job, Storage& storage) {
    const StagedSaveOptions options{.save = SmallSave(/*overwrite=*/true, GetParam()),
                                    .retries = 2,
                                    .retry_delay = std::chrono::milliseconds(600)};
    const std::string path = kS3Path;
    const auto session = MakeSaveSession(job.rank(0), path, options.save, Claim::kApart, storage);
    const auto coordinator = MakeSingleProcessCoordinator();
    VARVE_RETURN_IF_ERROR(session->Plan(*coordinator, Status::Ok()));
    return WriteWithRetries(*session, nullptr, *coordinator, path, options, Status::Ok()).status();
  }
};

TEST_P(S3Retries, AWriteOfUnknownEndIsNotRepeatedAndWhatItWroteStays) {
  for (const bool overwrite : {false, true}) {
    for (const bool applied : {true, false}) {
      S3Server server;
      auto settings = QuickSettings(server);
      settings.retry.time_limit = std::chrono::milliseconds(30);
      s3::S3Storage storage(settings, [] { return s3::Credentials{"key", "secret", ""}; });
      if (overwrite) {
        ASSERT_TRUE(IsOk(SaveBoth(old_, storage, false)));
      }
      std::string mark;
      std::string content;
      TimePoint down_until;
      server.SetScript([&](const S3Request& request, int) {
        const std::string name = request.path.substr(request.path.rfind('/') + 1);
        const bool publishes = request.method == "PUT" && name.starts_with(MarkOf(GetParam())) &&
                               name.ends_with(GetParam() == Format::kVarve ? ".json" : "") &&
                               request.path.find("varve-data-") == std::string::npos;
        if (publishes && mark.empty()) {
          mark = request.path.substr(1);
          content = request.body;
          down_until = Now() + std::chrono::milliseconds(300);
          return applied ? S3Fault::kResetAfter : S3Fault::kUnavailable;
        }
        // The server gives no answer for a while, and then goes on.
        return !mark.empty() && Now() < down_until ? S3Fault::kUnavailable : S3Fault::kNone;
      });
      EXPECT_TRUE(FailsWith(SaveWithARetry(new_, storage), StatusCode::kUnavailable,
                            {"the checkpoint may be visible"}));
      server.SetScript({});
      EXPECT_EQ(Seen(storage), applied ? 2 : overwrite ? 1 : 0);
      server.Put(mark, content);  // Carried out only now.
      EXPECT_EQ(Seen(storage), 2);
      EXPECT_TRUE(IsOk(SaveBoth(old_, storage, true)));
      EXPECT_EQ(Seen(storage), 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, S3Retries,
                         testing::Values(Format::kVarve, Format::kDcp, Format::kSafetensors),
                         [](const auto& one) { return std::string(FormatName(one.param)); });

}  // namespace
}  // namespace varve::test::s3_retry_test
