// Hugging Face folders on an S3 server: side files, folders of other programs, damaged pieces. See
// publish/index_commit.cc.

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "crash/s3_faults.h"
#include "crash/ways.h"
#include "varve/catalogue.h"
#include "varve/convert.h"

namespace varve::test::s3_hf_fault_test {
namespace {

constexpr const char* kIndex = "bucket/run/step-1/model.safetensors.index.json";
constexpr const char* kConfig = "bucket/run/step-1/config.json";

/// The path of the checkpoint that is converted.
std::string SourceOf(int number) { return "s3://bucket/source-" + std::to_string(number); }

class S3FaultsOfHf : public S3Faults {
 protected:
  S3FaultsOfHf() : S3Faults(Format::kSafetensors) {}

  /// Saves a checkpoint whose values tell its number, with a side file.
  static void SaveSource(int number, Storage& storage, const std::string& config = "{}") {
    std::vector<float> memory(2000, static_cast<float>(number));
    State state;
    for (const char* const name : {"a", "b"}) {
      state.tensors.push_back(
          {name, DType::kFloat32, {2000}, WholeBox({2000}), HostMemory{memory.data()}});
    }
    state.files.push_back({"config.json", config});
    ASSERT_TRUE(IsOk(Save(state, SourceOf(number), SmallSave(true), storage)));
  }

  static Status ConvertIt(int number, Storage& storage, bool overwrite) {
    ConvertOptions options;
    options.to = ConvertTarget::kHf;
    options.overwrite = overwrite;
    options.shard_size = 8000;
    return Convert(SourceOf(number), kS3Path, options, storage).status();
  }

  static int SeenNumber(Storage& storage) {
    EXPECT_TRUE(Verify(kS3Path, storage)->clean());
    return NumberIn(storage, kS3Path).value();
  }
};

TEST_F(S3FaultsOfHf, ASideFileOfAnotherContentIsNotReplaced) {
  S3Server server;
  const auto storage = Open(server);
  SaveSource(1, *storage);
  SaveSource(2, *storage, "{\"other\": 1}");
  ASSERT_TRUE(IsOk(ConvertIt(1, *storage, false)));
  const auto objects = server.objects();
  EXPECT_TRUE(FailsWith(ConvertIt(2, *storage, true), StatusCode::kFailedPrecondition,
                        {"config.json is there with another content", "varve rm"}));
  EXPECT_EQ(server.objects(), objects);
  EXPECT_EQ(SeenNumber(*storage), 1);
  ASSERT_TRUE(IsOk(RemoveCheckpoint(kS3Path, DryRun::kNo, *storage)));
  ASSERT_TRUE(IsOk(ConvertIt(2, *storage, false)));
  EXPECT_EQ(server.objects().at(kConfig), "{\"other\": 1}");
}

TEST_F(S3FaultsOfHf, AnOverwriteReplacesTheFolderOfAnotherProgram) {
  S3Server server;
  const auto storage = Open(server);
  SaveSource(1, *storage);
  SaveSource(2, *storage);
  ASSERT_TRUE(IsOk(ConvertIt(1, *storage, false)));
  const auto made = server.objects();
  // As save_pretrained names the files.
  std::string index = made.at(kIndex);
  for (const auto& [key, content] : made) {
    const std::size_t at = key.find("varve-data-");
    if (key.starts_with("bucket/run/") && at != std::string::npos) {
      const std::string data = key.substr(at, key.rfind('/') + 1 - at);
      for (std::size_t i = index.find(data); i != std::string::npos; i = index.find(data)) {
        index.erase(i, data.size());
      }
      ASSERT_TRUE(IsOk(storage->Remove("s3://" + key)));
      if (key.ends_with(".safetensors")) {
        server.Put("bucket/run/step-1/" + key.substr(key.rfind('/') + 1), content);
      }
    }
  }
  server.Put(kIndex, index);
  EXPECT_EQ(SeenNumber(*storage), 1);
  EXPECT_TRUE(FailsWith(ConvertIt(2, *storage, false), StatusCode::kAlreadyExists));
  ASSERT_TRUE(IsOk(ConvertIt(2, *storage, true)));
  EXPECT_EQ(SeenNumber(*storage), 2);
  EXPECT_EQ(server.objects().size(), made.size());
  const auto removed = RemoveCheckpoint(kS3Path, DryRun::kYes, *storage);
  ASSERT_TRUE(IsOk(removed));
  EXPECT_TRUE(removed->others.empty());
}

TEST_F(S3FaultsOfHf, APieceThatIsDamagedIsNotPublished) {
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
  ExpectNothingBut(1, server);
}

}  // namespace
}  // namespace varve::test::s3_hf_fault_test
