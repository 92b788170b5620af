// Saves in every format, with a fault or a death at each of the requests that they make of an S3
// server: Varve's own and DCP's by two ranks; Hugging Face folders by two ranks that hold shards,
// and so write pieces first (save/hf/pieces.h), and by one that holds all (save/hf/own_files.h).

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
  const char* index;  ///< Of an overwrite.
};

class S3FaultsOfFormats : public S3Faults, public testing::WithParamInterface<Way> {
 protected:
  S3FaultsOfFormats() : S3Faults(GetParam().format, GetParam().ranks) {}

  /// Returns what makes the checkpoint that a save overwrites.
  Prepare Before(bool overwrite) {
    return [this, overwrite](S3Server&, Storage& storage) {
      if (overwrite) {
        EXPECT_TRUE(IsOk(SaveBoth(old_, storage, false)));
      }
    };
  }
  Act SaveNew(bool overwrite) {
    return [this, overwrite](Storage& storage) { return SaveBoth(new_, storage, overwrite); };
  }
  /// Checks that nothing that is left keeps the next save from its name.
  void ExpectRoom(const Run& run) {
    EXPECT_TRUE(IsOk(SaveBoth(new_, *run.storage, true))) << run.what;
    EXPECT_EQ(Seen(*run.storage), 2) << run.what;
  }
};

TEST_P(S3FaultsOfFormats, ASaveOutlastsWhatPasses) {
  for (const bool overwrite : {false, true}) {
    WithEachFault(kPassing, Before(overwrite), SaveNew(overwrite), [&](const Run& run) {
      EXPECT_TRUE(run.outcome.ok()) << run.what;
      EXPECT_EQ(Seen(*run.storage), 2) << run.what;
      ExpectRoom(run);
    });
  }
}

TEST_P(S3FaultsOfFormats, ARefusedRequestFailsTheSaveAndLeavesWhatWasThere) {
  for (const bool overwrite : {false, true}) {
    WithEachFault({S3Fault::kRefused}, Before(overwrite), SaveNew(overwrite), [&](const Run& run) {
      const int before = overwrite ? 1 : 0;
      EXPECT_EQ(Seen(*run.storage), run.outcome.ok() ? 2 : before) << run.what;
      if (!run.outcome.ok()) {
        EXPECT_NE(run.what.find("s3://bucket/"), std::string::npos) << run.what;
        EXPECT_EQ(run.what.find("secret"), std::string::npos) << run.what;
      }
      ExpectRoom(run);
    });
  }
}

// A job that is killed sends no further request: it leaves what it has written.
TEST_P(S3FaultsOfFormats, AfterADeathAtAnyRequestOneCheckpointOpensAndGarbageGoes) {
  for (const bool overwrite : {false, true}) {
    WithEachDeath(Before(overwrite), SaveNew(overwrite), [&](const Run& run) {
      const int seen = Seen(*run.storage);
      EXPECT_TRUE(!run.outcome.ok() || seen == 2) << run.what;
      EXPECT_TRUE(!overwrite || seen != 0) << run.what;
      // By the server's clock all of it is old.
      const Status collected =
          CollectGarbage("s3://bucket/run", DryRun::kNo, *run.storage).status();
      EXPECT_TRUE(collected.ok() || collected.code() == StatusCode::kNotFound) << run.what;
      EXPECT_EQ(Seen(*run.storage), seen) << run.what;
      ExpectNothingBut(seen, run.server);
      ExpectRoom(run);
    });
  }
}

TEST_P(S3FaultsOfFormats, OfTwoFirstSavesOneWins) {
  S3Server server;
  for (int round = 0; round < 20; ++round) {
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

TEST_P(S3FaultsOfFormats, AnIndexWhoseFateIsNotKnownKeepsTheDataOfBoth) {
  // Each answer to its PUT is lost; the first try is carried out, or only much later.
  for (const bool applied : {true, false}) {
    S3Server server;
    auto settings = QuickSettings(server);
    settings.retry.time_limit = std::chrono::milliseconds(30);
    s3::S3Storage storage(settings, [] { return s3::Credentials{"key", "secret", ""}; });
    ASSERT_TRUE(IsOk(SaveBoth(old_, storage, false)));
    std::string index;
    const std::string name = std::string("bucket/run/step-1/") + GetParam().index;
    server.SetScript([&](const S3Request& request, int) {
      if (request.method == "PUT" && request.path == "/" + name && index.empty()) {
        index = request.body;
        return applied ? S3Fault::kResetAfter : S3Fault::kUnavailable;
      }
      return index.empty() ? S3Fault::kNone : S3Fault::kUnavailable;
    });
    EXPECT_TRUE(
        FailsWith(SaveBoth(new_, storage, true), StatusCode::kUnavailable, {"its data were kept"}));
    server.SetScript({});
    EXPECT_EQ(Seen(storage), applied ? 2 : 1);
    server.Put(name, index);
    EXPECT_EQ(Seen(storage), 2);
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

constexpr const char* kHfIndex = "model.safetensors.index.json";
INSTANTIATE_TEST_SUITE_P(All, S3FaultsOfFormats,
                         testing::Values(Way{"Varve", Format::kVarve, kS3Ranks, "varve-2.json"},
                                         Way{"Dcp", Format::kDcp, kS3Ranks, ".metadata"},
                                         Way{"HfPieces", Format::kSafetensors, kS3Ranks, kHfIndex},
                                         Way{"HfOwnFiles", Format::kSafetensors, 1, kHfIndex}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace varve::test::s3_format_fault_test
