// Saves in every format beside other saves, removals and readers on an S3 server: Varve's own and
// DCP's by two ranks; Hugging Face folders by two ranks that hold shards, and so write pieces first
// (save/hf/pieces.h), and by one that holds all (save/hf/own_files.h).

#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "crash/s3_faults.h"
#include "varve/catalogue.h"

namespace varve::test::s3_format_fault_test {
namespace {

struct Way {
  const char* name;
  Format format;
  int ranks;
};

class S3FaultsOfFormats : public S3Faults, public testing::WithParamInterface<Way> {
 protected:
  S3FaultsOfFormats() : S3Faults(GetParam().format, GetParam().ranks) {}
};

TEST_P(S3FaultsOfFormats, OfTwoFirstSavesOneWins) {
  S3Server server;
  for (std::uint64_t round = 0; round < 20; round += kEvery) {
    const auto a = Open(server);
    const auto b = Open(server);
    Status first;
    Status second;
    {
      const std::jthread one([&] { first = SaveBoth(old_, *a, false); });
      const std::jthread other([&] { second = SaveBoth(new_, *b, false); });
    }
    EXPECT_TRUE(first.ok() != second.ok()) << first.ToString() << " / " << second.ToString();
    EXPECT_EQ(Seen(*a), first.ok() ? 1 : 2);
    ExpectNothingBut(1, server);
    EXPECT_TRUE(IsOk(RemoveCheckpoint(kS3Path, DryRun::kNo, *a).status()));
    EXPECT_TRUE(server.objects().empty());
  }
}

TEST_P(S3FaultsOfFormats, ARemovalBesideASaveLeavesWhatTheSaveWrites) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const std::string live = "bucket/run/step-1/varve-data-" + std::string(32, 'c') + "/data";
  ASSERT_TRUE(IsOk(WriteWholeFile(*storage, "s3://" + live, "of a save under way")));
  server.SetTime("2026-01-01T12:00:00.000Z", "Thu, 01 Jan 2026 13:00:00 GMT");
  ASSERT_TRUE(IsOk(RemoveCheckpoint(kS3Path, DryRun::kNo, *storage).status()));
  EXPECT_EQ(server.objects().size(), 1U);
  EXPECT_TRUE(server.objects().contains(live));
}

TEST_P(S3FaultsOfFormats, AReaderOfAReplacedCheckpointIsToldSo) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const auto reader = CheckpointReader::Open(kS3Path, *storage);
  ASSERT_TRUE(IsOk(reader));
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, true)));
  EXPECT_TRUE(FailsWith(ReadContent(**reader).status(), StatusCode::kFailedPrecondition,
                        {"overwritten by another save"}));
}

INSTANTIATE_TEST_SUITE_P(All, S3FaultsOfFormats,
                         testing::Values(Way{"Varve", Format::kVarve, kS3Ranks},
                                         Way{"Dcp", Format::kDcp, kS3Ranks},
                                         Way{"HfPieces", Format::kSafetensors, kS3Ranks},
                                         Way{"HfOwnFiles", Format::kSafetensors, 1}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace varve::test::s3_format_fault_test
