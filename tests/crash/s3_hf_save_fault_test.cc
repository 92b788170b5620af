// Saves as Hugging Face folders, with a fault or a death at each of the requests that they make of
// an S3 server: by two ranks that hold shards, and so write pieces first (save/hf/pieces.h), and by
// one that holds all (save/hf/own_files.h).

#include <algorithm>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "catalogue/foreign.h"
#include "crash/s3_faults.h"
#include "varve/catalogue.h"

namespace varve::test::s3_hf_save_fault_test {
namespace {

constexpr const char* kIndex = "bucket/run/step-1/model.safetensors.index.json";

class HfFaults : public S3Faults {
 protected:
  explicit HfFaults(int ranks) : S3Faults(Format::kSafetensors, ranks) {}

  /// Checks that there is nothing but the index and what it names.
  static void ExpectNothingElse(const S3Server& server, Storage& storage) {
    const auto names = ForeignFileNames(storage, kS3Path);
    for (const auto& [key, content] : server.objects()) {
      const std::string name = key.substr(std::string("bucket/run/step-1/").size());
      EXPECT_TRUE(key == kIndex ||
                  (names.ok() && std::find(names->begin(), names->end(), name) != names->end()))
          << key;
    }
    EXPECT_EQ(server.open_uploads(), 0U);
  }

  void OutlastWhatPasses() {
    for (const bool overwrite : {false, true}) {
      SaveWithEachFault({S3Fault::kUnavailable, S3Fault::kResetBefore, S3Fault::kResetAfter,
                         S3Fault::kInternalLate, S3Fault::kTruncated},
                        overwrite, /*must_succeed=*/true);
    }
  }

  void FailWhereARequestIsRefused() {
    SaveWithEachFault({S3Fault::kRefused}, /*overwrite=*/false, /*must_succeed=*/false);
    SaveWithEachFault({S3Fault::kRefused}, /*overwrite=*/true, /*must_succeed=*/false);
  }

  void DieAtEachRequest() {
    for (const bool overwrite : {false, true}) {
      // The request at which it dies is not carried out, or is.
      for (const S3Fault last : {S3Fault::kRefused, S3Fault::kResetAfter}) {
        int requests = 0;
        for (int at = 0; at <= requests; at += kStep) {
          S3Server server;
          const auto storage = Open(server);
          if (overwrite) {
            ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
          }
          server.SetScript([&](const S3Request&, int index) {
            return index < at ? S3Fault::kNone : index == at ? last : S3Fault::kRefused;
          });
          const Status saved = SaveBoth(new_, *storage, overwrite);
          requests = server.requests();
          server.SetScript({});
          const int seen = Seen(*storage);
          EXPECT_TRUE(!saved.ok() || seen == 2) << "request " << at;
          EXPECT_TRUE(!overwrite || seen != 0) << "request " << at << ": " << saved.ToString();
          const Status collected =
              CollectGarbage("s3://bucket/run", DryRun::kNo, *storage).status();
          EXPECT_TRUE(collected.ok() || collected.code() == StatusCode::kNotFound);
          EXPECT_EQ(Seen(*storage), seen) << "request " << at;
          ExpectNothingElse(server, *storage);
          EXPECT_TRUE(IsOk(SaveBoth(new_, *storage, true))) << "request " << at;
          EXPECT_EQ(Seen(*storage), 2);
          ExpectNothingElse(server, *storage);
        }
      }
    }
  }
};

class S3FaultsOfHfPieces : public HfFaults {
 protected:
  S3FaultsOfHfPieces() : HfFaults(2) {}
};

class S3FaultsOfHfOwnFiles : public HfFaults {
 protected:
  S3FaultsOfHfOwnFiles() : HfFaults(1) {}
};

TEST_F(S3FaultsOfHfPieces, ASaveOutlastsWhatPasses) { OutlastWhatPasses(); }
TEST_F(S3FaultsOfHfOwnFiles, ASaveOutlastsWhatPasses) { OutlastWhatPasses(); }

TEST_F(S3FaultsOfHfPieces, ARefusedRequestFailsTheSaveAndLeavesWhatWasThere) {
  FailWhereARequestIsRefused();
}
TEST_F(S3FaultsOfHfOwnFiles, ARefusedRequestFailsTheSaveAndLeavesWhatWasThere) {
  FailWhereARequestIsRefused();
}

TEST_F(S3FaultsOfHfPieces, AfterADeathAtAnyRequestOneFolderOpensAndGarbageGoes) {
  DieAtEachRequest();
}
TEST_F(S3FaultsOfHfOwnFiles, AfterADeathAtAnyRequestOneFolderOpensAndGarbageGoes) {
  DieAtEachRequest();
}

TEST_F(S3FaultsOfHfPieces, APieceThatIsDamagedIsNotPublished) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  bool damaged = false;
  server.SetScript([&](const S3Request& request, int) {
    const bool is_piece =
        request.method == "GET" && request.path.find("/varve-pieces/data-") != std::string::npos;
    damaged = damaged || is_piece;
    return is_piece ? S3Fault::kCorrupted : S3Fault::kNone;
  });
  const Status saved = SaveBoth(new_, *storage, true);
  server.SetScript({});
  EXPECT_TRUE(damaged);
  EXPECT_TRUE(FailsWith(saved, StatusCode::kDataLoss, {"varve-pieces/data-"}));
  EXPECT_EQ(Seen(*storage), 1);
  ExpectNothingElse(server, *storage);
}

}  // namespace
}  // namespace varve::test::s3_hf_save_fault_test
