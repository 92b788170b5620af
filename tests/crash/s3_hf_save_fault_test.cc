// Saves as Hugging Face folders, with a fault or a death at each of the requests that they make of
// an S3 server: by two ranks that hold shards, and so write pieces first (save/hf/pieces.h), and by
// one that holds all (save/hf/own_files.h).

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "crash/s3_faults.h"

namespace varve::test::s3_hf_save_fault_test {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

class HfFaults : public S3Faults {
 protected:
  explicit HfFaults(int ranks) : S3Faults(Format::kSafetensors, ranks) {}

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
  DieAtEachRequest(kIndex);
}
TEST_F(S3FaultsOfHfOwnFiles, AfterADeathAtAnyRequestOneFolderOpensAndGarbageGoes) {
  DieAtEachRequest(kIndex);
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
  ExpectNothingBut(kIndex, server, *storage);
}

}  // namespace
}  // namespace varve::test::s3_hf_save_fault_test
