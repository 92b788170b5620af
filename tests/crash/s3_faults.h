/// Saves by two ranks to an S3 server that fails as it is told to, in any format that is written
/// there.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "crash/saves.h"
#include "crash/states.h"
#include "storage/s3/s3_storage.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"

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
                    .time_limit = std::chrono::milliseconds(5'000)};
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

  /// Checks that there is the checkpoint that is `seen`, and nothing else below the run.
  void ExpectNothingBut(int seen, const S3Server& server) {
    if (objects_of_one_ == 0) {
      S3Server other;
      EXPECT_TRUE(IsOk(SaveBoth(new_, *Open(other), false)));
      objects_of_one_ = other.objects().size();
    }
    EXPECT_EQ(server.objects().size(), seen == 0 ? 0 : objects_of_one_);
    EXPECT_EQ(server.open_uploads(), 0U);
  }

  const Format format_;
  const int ranks_;
  JobState old_{1, ranks_, 200};
  JobState new_{2, ranks_, 200};

 private:
  std::size_t objects_of_one_ = 0;  // That a checkpoint consists of; 0: not known yet.
};

}  // namespace varve::test
