// The choice of a path's index, and the error where none is whole.

#include "catalogue/open.h"

#include <string>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "catalogue/names.h"
#include "storages/faulty.h"
#include "storages/memory.h"
#include "support/small_state.h"
#include "support/status_matchers.h"

namespace varve::test::open_test {
namespace {

constexpr const char* kPath = "/runs/step-7";
constexpr auto kAlways = Overwrite::kAlways;
constexpr auto kDataLoss = StatusCode::kDataLoss;

Status SaveOne(Storage& storage, const std::string& path, float value = 1,
               const SaveOptions& options = {}) {
  return SmallState().Floats("w", {value, value}).Save(storage, path, options);
}

std::string InPath(std::string_view name) { return JoinPath(kPath, name); }

Result<OpenedIndex> Open(Storage& storage) { return OpenIndex(storage, kPath, {}); }

TEST(OpenIndex, GivesCommittedCheckpointWithItsRecordAndSideFiles) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState().Floats("w", {1}).File("config.json", "{}").Save(storage, kPath)));
  const auto opened = Open(storage);
  ASSERT_TRUE(IsOk(opened));
  EXPECT_EQ(opened->directory, kPath);
  ASSERT_TRUE(opened->record.has_value());
  EXPECT_EQ(opened->record->save_id, opened->metadata.save_id);
  EXPECT_FALSE(opened->headers_checked) << "the manifest was read, no header";
  ASSERT_EQ(opened->metadata.side_files.size(), 1U);
  EXPECT_EQ(opened->metadata.side_files[0].name, "config.json");
}

TEST(OpenIndex, NamesRepairWhereTheManifestIsMissingOrDamaged) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath)));
  ASSERT_TRUE(IsOk(Damage(storage, InPath(kManifestName), 40)));
  EXPECT_TRUE(FailsWith(
      Open(storage), kDataLoss,
      {"manifest.bin: not the manifest that varve.json commits to", "`varve repair` rebuilds it"}));
  ASSERT_TRUE(IsOk(storage.Remove(InPath(kManifestName))));
  EXPECT_TRUE(FailsWith(Open(storage), kDataLoss, {"manifest.bin is missing", "`varve repair`"}));
}

TEST(OpenIndex, NamesRepairWhereTheCommitRecordIsDamagedOrMissing) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath)));
  ASSERT_TRUE(IsOk(Damage(storage, InPath(kCommitRecordName), 10)));
  EXPECT_TRUE(FailsWith(Open(storage), kDataLoss, {"varve.json", "`varve repair`"}));
  ASSERT_TRUE(IsOk(storage.Remove(InPath(kCommitRecordName))));
  EXPECT_TRUE(FailsWith(Open(storage), kDataLoss, {"varve.json is missing", "`varve repair`"}))
      << "the data files say that they were saved together";
}

TEST(OpenIndex, RefusesAManifestOfAnotherSizeThoughItsFrameIsWhole) {
  for (const int change : {1, -1}) {
    MemoryStorage storage;
    ASSERT_TRUE(IsOk(SaveOne(storage, kPath)));
    auto manifest = ReadWholeFile(storage, InPath(kManifestName), 1U << 20U);
    ASSERT_TRUE(IsOk(manifest));
    manifest->resize(manifest->size() + static_cast<std::size_t>(change));
    ASSERT_TRUE(IsOk(Rewrite(storage, InPath(kManifestName), *manifest)));
    EXPECT_TRUE(FailsWith(Open(storage), kDataLoss, {"manifest.bin: not the manifest"}));
  }
}

TEST(OpenIndex, RefusesManifestOfAnotherSaveThatTheRecordFits) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath)));
  ASSERT_TRUE(IsOk(SaveOne(storage, "/other")));
  const auto manifest = ReadWholeFile(storage, "/other/manifest.bin", 1U << 20U);
  ASSERT_TRUE(IsOk(manifest));
  auto record = ReadCommitRecord(storage, kPath);
  ASSERT_TRUE(IsOk(record));
  const auto other = ReadCommitRecord(storage, "/other");
  ASSERT_TRUE(IsOk(other));
  record->manifest_bytes = other->manifest_bytes;
  record->frame_bytes = other->frame_bytes;
  record->manifest_crc32c = other->manifest_crc32c;
  ASSERT_TRUE(IsOk(Rewrite(storage, InPath(kManifestName), *manifest)));
  ASSERT_TRUE(IsOk(Rewrite(storage, InPath(kCommitRecordName), EncodeCommitRecord(*record))));
  EXPECT_TRUE(FailsWith(Open(storage), kDataLoss, {"belongs to another save than varve.json"}));
}

TEST(OpenIndex, FindsPreviousCheckpointThatAnInterruptedOverwriteHasDisplaced) {
  for (const std::string& hidden : {DisplacedPath(kPath), OldDisplacedPath(kPath)}) {
    MemoryStorage storage;
    ASSERT_TRUE(IsOk(SaveOne(storage, kPath)));
    ASSERT_TRUE(IsOk(storage.Rename(kPath, hidden, RenameMode::kNoReplace)));
    const auto opened = Open(storage);
    ASSERT_TRUE(IsOk(opened)) << hidden;
    EXPECT_EQ(opened->directory, hidden);
    EXPECT_TRUE(opened->displaced);
  }
}

TEST(OpenIndex, PrefersTheNameToADisplacedCheckpoint) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath)));
  ASSERT_TRUE(IsOk(SaveOne(storage, "/runs/other")));
  ASSERT_TRUE(IsOk(storage.Rename("/runs/other", DisplacedPath(kPath), RenameMode::kNoReplace)));
  const auto opened = Open(storage);
  ASSERT_TRUE(IsOk(opened));
  EXPECT_EQ(opened->directory, kPath);
  EXPECT_FALSE(opened->displaced);
}

TEST(OpenIndex, ReadsTheNewSaveWhereAnOverwritePublishesBetweenItsReads) {
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(SaveOne(memory, kPath, 1)));
  FaultyStorage storage(memory);
  bool replaced = false;
  storage.SetObserver([&](Operation operation, const std::string& name) {
    // The record has been read by now.
    if (operation == Operation::kOpenForRead && BaseName(name) == kManifestName && !replaced) {
      replaced = true;
      EXPECT_TRUE(IsOk(SaveOne(memory, kPath, 2, {.overwrite = kAlways})));
    }
  });
  const auto opened = Open(storage);
  ASSERT_TRUE(IsOk(opened));
  EXPECT_TRUE(replaced);
  EXPECT_EQ(opened->record->save_id, ReadCommitRecord(memory, kPath)->save_id);
}

TEST(OpenIndex, SaysWhatTheDirectoryLacksWhereItIsNoCheckpoint) {
  MemoryStorage storage;
  EXPECT_TRUE(FailsWith(Open(storage), StatusCode::kNotFound, {"no checkpoint at /runs/step-7"}));
  ASSERT_TRUE(IsOk(storage.MakeDirectory("/runs")));
  ASSERT_TRUE(IsOk(storage.MakeDirectory(kPath)));
  ASSERT_TRUE(IsOk(Rewrite(storage, InPath("notes.txt"), "lr was too high")));
  EXPECT_TRUE(FailsWith(Open(storage), StatusCode::kNotFound, {"is not a checkpoint"}));
}

// A manager passes over a step that is no checkpoint; a disk's error must not look like one.
TEST(OpenIndex, GivesTheErrorOfAnyReadAndNotThatThereIsNoCheckpoint) {
  for (const Format format : {Format::kVarve, Format::kDcp, Format::kSafetensors}) {
    MemoryStorage memory;
    ASSERT_TRUE(IsOk(SmallState().Floats("w", {1}).Save(memory, kPath, {.format = format})));
    for (const Operation operation :
         {Operation::kList, Operation::kOpenForRead, Operation::kRead}) {
      FaultyStorage whole(memory);
      ASSERT_TRUE(IsOk(Open(whole)));
      for (std::uint64_t at = 0; at < whole.count(operation); ++at) {
        FaultyStorage storage(memory);
        storage.FailAt({operation, at, false, Unavailable("the disk does not answer")});
        const auto opened = Open(storage);
        EXPECT_TRUE(opened.ok() || FailsWith(opened, StatusCode::kUnavailable, {"not answer"}))
            << FormatName(format) << ": " << OperationName(operation) << " " << at << ": "
            << opened.status().ToString();
      }
    }
  }
}

// ---- rank-local sets ----

TEST(OpenIndex, GivesSetOfRankLocalFilesWithoutRecord) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath, 1, {.coordinate = false, .save_id = SaveId{{1}}})));
  const auto opened = Open(storage);
  ASSERT_TRUE(IsOk(opened));
  EXPECT_FALSE(opened->record.has_value());
  EXPECT_TRUE(opened->headers_checked) << "the index was made of the headers";
  EXPECT_EQ(opened->metadata.save_id, SaveId{{1}});
}

TEST(OpenIndex, IsCancelledInsteadOfTriedAgain) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath, 1, {.coordinate = false, .save_id = SaveId{{1}}})));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(FailsWith(OpenIndex(storage, kPath, stop.get_token()), StatusCode::kCancelled));
}

// ---- was it replaced? ----

TEST(WasReplaced, TellsTheSameSaveFromAnotherAndFromNone) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath)));
  const auto first = OpenIndex(storage, kPath);
  EXPECT_FALSE(WasReplaced(storage, *first));
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath, 2, {.overwrite = kAlways})));
  EXPECT_TRUE(WasReplaced(storage, *first));
  const auto second = OpenIndex(storage, kPath);
  ASSERT_TRUE(IsOk(storage.Rename(kPath, "aside", RenameMode::kNoReplace)));
  EXPECT_TRUE(WasReplaced(storage, *second)) << "moved aside, or removed";
}

TEST(WasReplaced, TellsOneSaveOfRanksApartFromTheNext) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath, 1, {.coordinate = false, .save_id = SaveId{{1}}})));
  const auto first = OpenIndex(storage, kPath);
  ASSERT_TRUE(IsOk(first));
  EXPECT_FALSE(WasReplaced(storage, *first));
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath, 2,
                           {.overwrite = kAlways, .coordinate = false, .save_id = SaveId{{2}}})));
  EXPECT_TRUE(WasReplaced(storage, *first));
}

TEST(UnlessReplaced, NamesTheFileOfACheckpointThatWasOpenedAsAFile) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath, 1, {.format = Format::kSafetensors})));
  const std::string file = InPath("model.safetensors");
  const auto opened = OpenIndex(storage, file);
  ASSERT_TRUE(IsOk(opened));
  ASSERT_TRUE(IsOk(storage.Remove(file)));
  EXPECT_TRUE(FailsWith(UnlessReplaced(NotFound("no such object"), storage, *opened),
                        StatusCode::kFailedPrecondition, {file + " was overwritten"}));
}

TEST(WasReplaced, TellsAnOverwriteFromDamageInOtherFormats) {
  for (const Format format : {Format::kDcp, Format::kSafetensors}) {
    MemoryStorage storage;
    const SaveOptions options{.overwrite = kAlways, .format = format};
    ASSERT_TRUE(IsOk(SaveOne(storage, kPath, 1, options)));
    const auto first = OpenIndex(storage, kPath);
    ASSERT_TRUE(IsOk(first));
    EXPECT_FALSE(WasReplaced(storage, *first));
    const std::string file = JoinPath(first->directory, first->metadata.files[0].name);
    ASSERT_TRUE(IsOk(Damage(storage, file)));
    EXPECT_FALSE(WasReplaced(storage, *first)) << "damage stays damage";
    EXPECT_TRUE(FailsWith(UnlessReplaced(NotFound("no such object"), storage, *first),
                          StatusCode::kDataLoss, {"no such object"}));
    ASSERT_TRUE(IsOk(SaveOne(storage, kPath, 2, options)));
    EXPECT_TRUE(WasReplaced(storage, *first));
    EXPECT_TRUE(FailsWith(UnlessReplaced(DataLoss("checksum mismatch"), storage, *first),
                          StatusCode::kFailedPrecondition, {"was overwritten", "open it again"}));
    EXPECT_TRUE(FailsWith(UnlessReplaced(NotFound("no such object"), storage, *first),
                          StatusCode::kFailedPrecondition, {"was overwritten", "open it again"}));
    EXPECT_TRUE(FailsWith(UnlessReplaced(Unavailable("a server"), storage, *first),
                          StatusCode::kUnavailable));
    ASSERT_TRUE(IsOk(storage.Remove(std::string(kPath))));
    EXPECT_TRUE(WasReplaced(storage, *first)) << "removed";
  }
}

// ---- a directory of checkpoints ----

TEST(OpenWanted, NamesTheNewestCheckpointByStepWhereTheDirectoryHoldsSeveral) {
  MemoryStorage storage;
  for (const char* path : {"/runs/step-10", "/runs/step-9"}) {
    ASSERT_TRUE(IsOk(SaveOne(storage, path)));
  }
  ASSERT_TRUE(IsOk(storage.MakeDirectory("/runs/step-99")));  // Empty.
  EXPECT_TRUE(FailsWith(
      OpenWanted(storage, "/runs", {}), StatusCode::kNotFound,
      {"a directory of 2 checkpoints; the newest is /runs/step-10", "`varve latest /runs`"}));
  EXPECT_TRUE(IsOk(OpenWanted(storage, "/runs/step-9", {})));
}

TEST(OpenWanted, DoesNotCountHiddenCheckpoints) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveOne(storage, kPath)));
  ASSERT_TRUE(IsOk(storage.Rename(kPath, DisplacedPath(kPath), RenameMode::kNoReplace)));
  EXPECT_TRUE(FailsWith(OpenWanted(storage, "/runs", {}), StatusCode::kNotFound,
                        {"/runs is not a checkpoint: it holds none"}));
}

}  // namespace
}  // namespace varve::test::open_test
