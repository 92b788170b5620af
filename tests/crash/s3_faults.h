/// Saves by two ranks to an S3 server that fails as it is told to, in any format that is written
/// there.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "catalogue/formats.h"
#include "crash/saves.h"
#include "crash/states.h"
#include "storage/s3/s3_storage.h"
#include "support/s3_server.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"

namespace varve::test {

inline constexpr const char* kS3Path = "s3://bucket/run/step-1";
inline constexpr int kS3Ranks = 2;

/// Settings with which a retry takes an instant, and a data file has several parts.
inline s3::Settings QuickSettings(const S3Server& server) {
  s3::Settings settings;
  settings.endpoint = server.endpoint();
  settings.part_bytes = 8192;
  settings.stall = std::chrono::seconds(5);
  settings.retry = {.first = std::chrono::milliseconds(1),
                    .longest = std::chrono::milliseconds(2),
                    .patience = std::chrono::milliseconds(5'000)};
  return settings;
}

/// Begins uploads of several parts that stay open while the result lives.
inline std::vector<std::unique_ptr<WritableFile>> BeginUploads(
    Storage& storage, const std::vector<std::string>& names) {
  const std::string text(20'000, 'x');
  std::vector<std::unique_ptr<WritableFile>> files;
  for (const std::string& name : names) {
    auto file = storage.OpenForWrite(name, {});
    EXPECT_TRUE(IsOk((*file)->WriteAt(0, AsByteSpan(text))));
    files.push_back(std::move(*file));
  }
  return files;
}

/// Saves of two states by two ranks, or by as many as are given.
class S3Faults : public testing::Test {
 protected:
  explicit S3Faults(Format format = Format::kVarve, int ranks = kS3Ranks)
      : format_(format), ranks_(ranks) {
    if (format == Format::kSafetensors) {
      old_.LeaveTensorsAlone();
      new_.LeaveTensorsAlone();
    }
    if (format == Format::kDcp) {
      old_.LeaveStructureOut();
      new_.LeaveStructureOut();
    }
  }

  std::unique_ptr<s3::S3Storage> Open(const S3Server& server) {
    return std::make_unique<s3::S3Storage>(
        QuickSettings(server), [] { return s3::Credentials{"key", "secret", "token"}; });
  }

  Status SaveBoth(const JobState& job, Storage& storage, bool overwrite) {
    const auto outcomes = SaveTogether(
        job, kS3Path, std::vector<Storage*>(static_cast<std::size_t>(ranks_), &storage), overwrite,
        /*mortal=*/false, format_);
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(outcomes[0].ok(), outcome.ok())
          << outcomes[0].ToString() << " / " << outcome.ToString();
    }
    return outcomes[0];
  }

  /// Returns which of the states is what a reader sees: 0 for none.
  int Seen(Storage& storage) {
    const auto content = ReadContent(kS3Path, storage);
    if (!content.ok()) {
      EXPECT_EQ(content.status().code(), StatusCode::kNotFound) << content.status().ToString();
      return 0;
    }
    EXPECT_TRUE(Holds(*content, old_) || Holds(*content, new_));
    return Holds(*content, old_) ? 1 : 2;
  }

  /// DCP makes a structure of its own, of the names.
  [[nodiscard]] bool Holds(const Content& content, const JobState& job) const {
    return content.tensors == job.content().tensors && content.objects == job.content().objects &&
           (format_ != Format::kVarve || content.structure == job.content().structure);
  }

  /// Runs a save once for each of its requests and each fault. `overwrite`: over the old state.
  void SaveWithEachFault(const std::vector<S3Fault>& faults, bool overwrite, bool must_succeed) {
    int requests = 0;  // As many as a save has made so far. The first has no fault.
    for (const S3Fault fault : faults) {
      for (int at = requests == 0 ? -1 : 0; at < requests; at += at < 0 ? 1 : kStep) {
        S3Server server;
        const auto storage = Open(server);
        if (overwrite) {
          ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
        }
        server.SetScript(
            [&](const S3Request&, int index) { return index == at ? fault : S3Fault::kNone; });
        const Status saved = SaveBoth(new_, *storage, overwrite);
        requests = std::max(requests, server.requests());
        server.SetScript({});
        const int seen = Seen(*storage);
        EXPECT_TRUE(saved.ok() || !must_succeed) << "request " << at << ": " << saved.ToString();
        EXPECT_EQ(seen, saved.ok()  ? 2
                        : overwrite ? 1
                                    : 0)
            << "request " << at << ", fault " << static_cast<int>(fault) << ": "
            << saved.ToString();
        if (!saved.ok()) {
          EXPECT_NE(saved.message().find("s3://bucket/"), std::string::npos) << saved.ToString();
          EXPECT_EQ(saved.message().find("secret"), std::string::npos) << saved.ToString();
        }
        // Nothing that is left keeps the next save from its name.
        EXPECT_TRUE(IsOk(SaveBoth(new_, *storage, true)));
        EXPECT_EQ(Seen(*storage), 2);
      }
    }
    EXPECT_GE(requests, 10);
  }

  /// Checks that there is nothing but the index `name` and what it names.
  static void ExpectNothingBut(const std::string& name, const S3Server& server, Storage& storage) {
    const std::string directory = "bucket/run/step-1/";
    const auto names = IndexedNames(storage, kS3Path);
    for (const auto& [key, content] : server.objects()) {
      const std::string file = key.substr(directory.size());
      EXPECT_TRUE(file == name ||
                  (names.ok() && std::find(names->begin(), names->end(), file) != names->end()))
          << key;
    }
    EXPECT_EQ(server.open_uploads(), 0U);
  }

  /// Lets a save die at each of its requests, whose index is `name`. What is there must open, and
  /// be all that gc leaves.
  void DieAtEachRequest(const std::string& name) {
    for (const bool overwrite : {false, true}) {
      // The request at which it dies is not carried out, or is.
      for (const S3Fault last : {S3Fault::kRefused, S3Fault::kResetAfter}) {
        bool dies = true;
        for (int at = 0; dies; at += kStep) {
          S3Server server;
          const auto storage = Open(server);
          if (overwrite) {
            ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
          }
          server.SetScript([&](const S3Request&, int index) {
            return index < at ? S3Fault::kNone : index == at ? last : S3Fault::kRefused;
          });
          const Status saved = SaveBoth(new_, *storage, overwrite);
          dies = server.requests() > at;  // Else it has ended before.
          server.SetScript({});
          const int seen = Seen(*storage);
          EXPECT_TRUE(!saved.ok() || seen == 2) << "request " << at;
          EXPECT_TRUE(!overwrite || seen != 0) << "request " << at << ": " << saved.ToString();
          const Status collected =
              CollectGarbage("s3://bucket/run", DryRun::kNo, *storage).status();
          EXPECT_TRUE(collected.ok() || collected.code() == StatusCode::kNotFound);
          EXPECT_EQ(Seen(*storage), seen) << "request " << at;
          ExpectNothingBut(name, server, *storage);
          EXPECT_TRUE(IsOk(SaveBoth(new_, *storage, true))) << "request " << at;
          EXPECT_EQ(Seen(*storage), 2);
        }
      }
    }
  }

  const Format format_;
  const int ranks_;
  static constexpr int kStep = kSanitized ? 12 : 1;  // Each is two saves and more.
  JobState old_{1, ranks_, 200};
  JobState new_{2, ranks_, 200};
};

}  // namespace varve::test
