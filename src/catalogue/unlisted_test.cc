// Checkpoints on a storage that cannot list a directory, as web servers cannot.

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/formats.h"
#include "catalogue/open.h"
#include "storages/memory.h"
#include "support/dcp_pickles.h"
#include "support/pickles.h"
#include "support/safetensors_files.h"
#include "support/small_state.h"
#include "support/status_matchers.h"

namespace varve::test::unlisted_test {
namespace {

constexpr const char* kPath = "/ck";

/// A MemoryStorage without lists, which may refuse to tell of names.
class UnlistedStorage final : public Storage, private UnlistedNames {
 public:
  UnlistedStorage() : Storage({.unlisted_names = this}) {
    EXPECT_TRUE(IsOk(files_.MakeDirectory(kPath)));
  }
  void Put(const std::string& name, const std::string& content) {
    EXPECT_TRUE(IsOk(Rewrite(files_, JoinPath(kPath, name), content)));
  }
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override {
    asked.push_back(BaseName(name));
    const auto refused = answers.find(BaseName(name));
    return refused != answers.end() ? Result<std::unique_ptr<ReadableFile>>(refused->second)
                                    : files_.OpenForRead(name);
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    return Unimplemented("list " + directory);
  }
  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& /*options*/) override {
    return Unimplemented(name);
  }
  Status MakeDirectory(const std::string& name) override { return Unimplemented(name); }
  Status SyncDirectory(const std::string& name) override { return Unimplemented(name); }
  Status Rename(const std::string& from, const std::string& /*to*/, RenameMode /*mode*/) override {
    return Unimplemented(from);
  }
  Status Remove(const std::string& name) override { return Unimplemented(name); }
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override {
    return Unimplemented(name);
  }

  std::map<std::string, Status> answers;
  std::vector<std::string> asked;

 private:
  bool IsUnlisted(const std::string& /*name*/) override { return true; }
  MemoryStorage files_;
};

std::string FileWith(const std::string& name) {
  return SafetensorsOf("{" + Entry(name, "U8", "[4]", "[0,4]") + "}", 4);
}

std::vector<std::string> NamesIn(const Result<std::vector<DirectoryEntry>>& entries) {
  EXPECT_TRUE(IsOk(entries));
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : entries.ok() ? *entries : std::vector<DirectoryEntry>{}) {
    names.push_back(entry.name);
  }
  return names;
}

TEST(Unlisted, NumberedPartsAreFollowedToTheFirstThatIsMissing) {
  UnlistedStorage storage;
  for (const char* const name : {"PART_000.pt", "PART_001.pt", "PART_003.pt"}) {
    storage.Put(name, "x");
  }
  EXPECT_EQ(NamesIn(KnownEntries(storage, kPath)),
            (std::vector<std::string>{"PART_000.pt", "PART_001.pt"}));
}

TEST(Unlisted, IndexesOfSingleRanksAreFound) {
  UnlistedStorage storage;
  storage.Put("__0.metadata", dcp::Index().Add("w", {250}).Pickle());
  storage.Put("__0_0.distcp", std::string(1000, 'x'));
  const auto opened = OpenIndex(storage, kPath);
  ASSERT_TRUE(IsOk(opened));
  EXPECT_EQ(opened->metadata.tensors.at(0).fqn, "w");
}

TEST(Unlisted, AFileIsOpenedWithoutAskingForNamesBelowIt) {
  UnlistedStorage storage;
  storage.Put("m.safetensors", FileWith("w"));
  ASSERT_TRUE(IsOk(OpenIndex(storage, JoinPath(kPath, "m.safetensors"))));
  EXPECT_EQ(storage.asked.front(), "m.safetensors");
}

TEST(Unlisted, ServersThatRefuseToTellOfMissingNamesAreReadAllTheSame) {
  UnlistedStorage storage;
  storage.Put("model.safetensors", FileWith("w"));
  for (const char* const name : {"ck", "varve.json", ".metadata", "model.safetensors.index.json"}) {
    storage.answers.emplace(name, FailedPrecondition("403"));
  }
  ASSERT_TRUE(IsOk(OpenIndex(storage, kPath)));
  storage.answers.emplace("model.safetensors", FailedPrecondition("403"));
  EXPECT_TRUE(FailsWith(OpenIndex(storage, kPath), StatusCode::kFailedPrecondition, {"403"}));
}

TEST(Unlisted, AServerThatDoesNotAnswerIsNotTakenForOneWithoutTheFile) {
  for (const char* const name : {"ck", "varve.json", ".metadata", "PART_000.pt", "__0.metadata"}) {
    UnlistedStorage storage;
    storage.answers.emplace(name, Unavailable("no answer"));
    EXPECT_TRUE(FailsWith(OpenIndex(storage, kPath), StatusCode::kUnavailable, {"no answer"}))
        << name;
  }
}

TEST(Unlisted, WhatIsNotFoundIsSaidWithTheNamesThatWereTried) {
  UnlistedStorage storage;
  EXPECT_TRUE(FailsWith(OpenIndex(storage, kPath), StatusCode::kNotFound,
                        {"varve.json", ".metadata", "model.safetensors", "saved apart"}));
  EXPECT_LE(storage.asked.size(), 16U);
}

}  // namespace
}  // namespace varve::test::unlisted_test
