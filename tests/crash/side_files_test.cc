// Side files: accepted and refused names, their record, and the damage that is noticed.

#include "catalogue/side_files.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/own_names.h"
#include "crash/matrix.h"
#include "crash/saves.h"
#include "format/commit_record.h"
#include "storages/memory.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"
#include "varve/convert.h"

namespace varve::test::side_files_test {
namespace {

constexpr const char* kPath = "runs/step-1";

const std::vector<SideFile> kFiles{{"tokenizer/vocab.json", "[1]"},
                                   {"config.json", "{}"},
                                   {"empty", ""},
                                   {"tokenizer/extra/a b.txt", std::string(10000, 'x')}};

Status SaveWith(const std::vector<SideFile>& files, Storage& storage, std::uint64_t seed,
                Format format = Format::kVarve) {
  JobState job(seed, 1);
  if (format == Format::kSafetensors) {
    job.LeaveTensorsAlone();
  }
  State state = job.rank(0);
  state.files = files;
  state.structure.clear();  // JobState's is none that DCP can hold.
  SaveOptions options = SmallSave(true);
  options.format = format;
  return Save(state, kPath, options, storage).status();
}

std::string Get(Storage& storage, const std::string& name) {
  const auto reader = CheckpointReader::Open(kPath, storage);
  if (!reader.ok()) {
    return reader.status().ToString();
  }
  const auto content = (*reader)->ReadFile(name);
  return content.ok() ? *content : content.status().ToString();
}

class SideFiles : public testing::TestWithParam<Format> {};

TEST_P(SideFiles, AreListedVerifiedAndReplacedWithTheCheckpoint) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveWith(kFiles, storage, 1, GetParam())));
  for (const SideFile& file : kFiles) {
    EXPECT_EQ(Get(storage, file.name), file.content);
  }
  {
    const auto reader = CheckpointReader::Open(kPath, storage);
    ASSERT_TRUE(IsOk(reader));
    EXPECT_EQ((*reader)->metadata().side_files, DescribeSideFiles(kFiles));
    EXPECT_TRUE(FailsWith((*reader)->ReadFile("other"), StatusCode::kNotFound, {"other"}));
  }
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, "runs/step-1/mine.txt", "mine")));
  EXPECT_TRUE(Verify(kPath, storage)->clean());
  ASSERT_TRUE(IsOk(SaveWith({{"config.json", "{2}"}}, storage, 2, GetParam())));
  EXPECT_EQ(Get(storage, "config.json"), "{2}");
  EXPECT_FALSE(storage.List("runs/step-1/tokenizer").ok());
  EXPECT_EQ(*ReadWholeFile(storage, "runs/step-1/mine.txt", 100), "mine");
  EXPECT_TRUE(Verify(kPath, storage)->clean());
  EXPECT_EQ(storage.List("runs")->size(), 1U);
}

TEST_P(SideFiles, DamageInThemIsFound) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveWith(kFiles, storage, 1, GetParam())));
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, "runs/step-1/config.json", "{]", false)));
  EXPECT_NE(Get(storage, "config.json").find("checksum mismatch"), std::string::npos);
  auto report = Verify(kPath, storage);
  ASSERT_TRUE(IsOk(report));
  ASSERT_EQ(report->damages.size(), 1U);
  EXPECT_EQ(report->damages[0].file, "config.json");
  ASSERT_TRUE(IsOk(storage.Remove("runs/step-1/config.json")));
  EXPECT_NE(Get(storage, "config.json").find("missing"), std::string::npos);
  EXPECT_EQ(Verify(kPath, storage)->damages.size(), 1U);
}

TEST_P(SideFiles, AreCopiedByConversions) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveWith(kFiles, storage, 1, GetParam())));
  for (const ConvertTarget to : {ConvertTarget::kVarve, ConvertTarget::kDcp, ConvertTarget::kHf}) {
    const std::string target = "runs/out-" + std::to_string(static_cast<int>(to));
    const auto report = Convert(kPath, target, {.to = to, .exclude = {"train/*"}}, storage);
    ASSERT_TRUE(IsOk(report));
    EXPECT_EQ(report->files.size(), kFiles.size());
    for (const SideFile& file : kFiles) {
      EXPECT_EQ(*ReadWholeFile(storage, JoinPath(target, file.name), 1 << 20), file.content);
    }
  }
  const auto single =
      Convert(kPath, "runs/one.safetensors", {.to = ConvertTarget::kSafetensors}, storage);
  ASSERT_TRUE(IsOk(single));
  EXPECT_EQ(single->files_left_out, kFiles.size());
}

TEST_P(SideFiles, ThatWouldReplaceTheUsersAreRefusedBeforeDataAreWritten) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"tokenizer", "tokenizer"},   // A file where a folder must be.
      {"empty/mine.txt", "empty"},  // A folder where a file must be.
      {"tokenizer/vocab.json", "tokenizer/vocab.json"}};
  for (const auto& [mine, named] : cases) {
    MemoryStorage storage;
    ASSERT_TRUE(IsOk(SaveWith({}, storage, 1, GetParam())));
    const std::string path = JoinPath(kPath, mine);
    if (mine.find('/') != std::string::npos) {
      ASSERT_TRUE(IsOk(storage.MakeDirectory(ParentPath(path))));
    }
    ASSERT_TRUE(IsOk(WriteWholeFile(storage, path, "mine")));
    FaultyStorage faulty(storage);
    faulty.FailAt({Operation::kWrite, 0, /*forever=*/true, DataLoss("something was written")});
    EXPECT_TRUE(FailsWith(SaveWith(kFiles, faulty, 2, GetParam()), StatusCode::kFailedPrecondition,
                          {"overwrite", named, "not part of the checkpoint"}));
    EXPECT_EQ(*ReadWholeFile(storage, path, 100), "mine");
  }
}

TEST_P(SideFiles, AFileOfTheUsersWithTheSameContentIsTakenOver) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveWith({}, storage, 1, GetParam())));
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, JoinPath(kPath, "config.json"), "{}")));
  ASSERT_TRUE(IsOk(SaveWith(kFiles, storage, 2, GetParam())));
  ASSERT_TRUE(IsOk(SaveWith({}, storage, 3, GetParam())));
  EXPECT_FALSE(ReadWholeFile(storage, JoinPath(kPath, "config.json"), 100).ok());
}

INSTANTIATE_TEST_SUITE_P(Formats, SideFiles,
                         testing::Values(Format::kVarve, Format::kDcp, Format::kSafetensors),
                         [](const auto& test) { return std::string(FormatName(test.param)); });

TEST(SideFileNames, ThatLeadOutOrAreReservedAreRefused) {
  MemoryStorage storage;
  for (const std::string name :
       {"", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a\nb", "varve.json",
        "manifest.bin", "data-00000-of-00001.safetensors", ".metadata", "__0_0.distcp",
        "model.safetensors", ".varve-staging", ".x.varve-part", "varve.json/x",
        "model-00001-of-00002.safetensors"}) {
    EXPECT_TRUE(FailsWith(SaveWith({{name, "x"}}, storage, 1), StatusCode::kInvalidArgument,
                          {"files", "\"" + name + "\""}))
        << name;
  }
  EXPECT_TRUE(FailsWith(SaveWith({{"a", ""}, {"a", ""}}, storage, 1), StatusCode::kInvalidArgument,
                        {"twice"}));
  EXPECT_TRUE(FailsWith(SaveWith({{"a", ""}, {"a.b", ""}, {"a/b", ""}}, storage, 1),
                        StatusCode::kInvalidArgument, {"\"a\"", "folder of \"a/b\""}));
  EXPECT_FALSE(storage.List("runs/step-1").ok());
}

TEST(SideFileNames, ThatAreTooManyForTheRecordAreRefused) {
  std::vector<SideFile> files;
  for (int i = 0; i < 1000; ++i) {
    files.push_back({"file-" + std::to_string(i), ""});
  }
  EXPECT_TRUE(FailsWith(CheckSideFiles(files), StatusCode::kInvalidArgument, {"1000", "48 KiB"}));
  files.resize(500);
  MemoryStorage storage;
  EXPECT_TRUE(IsOk(SaveWith(files, storage, 1)));
  EXPECT_EQ(Get(storage, "file-499"), "");
}

TEST(SideFileRecord, WithoutFilesIsAsItAlwaysWas) {
  CommitRecord record;
  record.writer = "varve 0.1.0";
  EXPECT_EQ(EncodeCommitRecord(record).find("side_files"), std::string::npos);
  record.side_files = DescribeSideFiles(kFiles);
  const auto decoded = DecodeCommitRecord(EncodeCommitRecord(record));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(decoded->side_files, record.side_files);
}

TEST(SideFileRecord, ThatLeadsOutIsDamage) {
  CommitRecord record;
  record.writer = "varve 0.1.0";
  record.side_files = {{"../secret", 1, 2}};
  EXPECT_TRUE(FailsWith(DecodeCommitRecord(EncodeCommitRecord(record)), StatusCode::kDataLoss,
                        {"../secret"}));
}

TEST(SideFilesOfAnUncoordinatedSave, AreRefused) {
  MemoryStorage storage;
  const JobState job(1, 1);
  State state = job.rank(0);
  state.files = kFiles;
  SaveOptions options = SmallSave(false);
  options.coordinate = false;
  EXPECT_TRUE(FailsWith(Save(state, kPath, options, storage), StatusCode::kInvalidArgument,
                        {"without coordination"}));
}

}  // namespace
}  // namespace varve::test::side_files_test
