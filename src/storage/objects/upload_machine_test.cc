#include "storage/objects/upload_machine.h"

#include <gtest/gtest.h>

namespace varve::upload_machine_test {
namespace {

using namespace upload_event;

/// Takes a part through all of its states.
void Send(UploadState* state, std::uint64_t part) {
  const UploadAction action = Step(state, PartIsFull{});
  if (action == UploadAction::kBegin) {
    (void)Step(state, Begun{"id"});
  }
  ASSERT_EQ(state->is, UploadStep::kOpen);
  (void)Step(state, PartSent{part, "etag"});
}

/// Returns an upload of two parts whose completion is on its way.
UploadState Completing() {
  UploadState state;
  Send(&state, 1);
  Send(&state, 0);
  EXPECT_EQ(Step(&state, SyncedParts{2}), UploadAction::kComplete);
  return state;
}

TEST(Upload, OfOnePartIsAPut) {
  UploadState state;
  EXPECT_EQ(Step(&state, SyncedSmall{}), UploadAction::kPut);
  (void)Step(&state, Carried{});
  EXPECT_EQ(state.is, UploadStep::kDone);
  EXPECT_EQ(Step(&state, GivenUp{}), UploadAction::kNone);
  EXPECT_EQ(state.is, UploadStep::kDone);
}

TEST(Upload, IsBegunOnceByTheFirstFullPart) {
  UploadState state;
  EXPECT_EQ(Step(&state, PartIsFull{}), UploadAction::kBegin);
  EXPECT_EQ(Step(&state, PartIsFull{}), UploadAction::kNone);
  EXPECT_EQ(state.is, UploadStep::kBeginning);
  (void)Step(&state, Begun{"id"});
  EXPECT_EQ(state.is, UploadStep::kOpen);
}

TEST(Upload, IsDoneWhenItsCompletionIsAnswered) {
  UploadState state = Completing();
  (void)Step(&state, Carried{});
  EXPECT_EQ(state.is, UploadStep::kDone);
}

TEST(Upload, IsNotDoneWhileAPartIsMissing) {
  UploadState state;
  Send(&state, 1);
  EXPECT_EQ(Step(&state, SyncedParts{2}), UploadAction::kNone);
  EXPECT_EQ(state.is, UploadStep::kBroken);
}

TEST(Upload, LeavesOutPartsBehindTheEnd) {
  UploadState state;
  Send(&state, 0);
  Send(&state, 1);
  Send(&state, 2);
  EXPECT_EQ(Step(&state, SyncedParts{2}), UploadAction::kComplete);
  EXPECT_EQ(state.uploaded.size(), 2U);
}

TEST(Upload, WhoseCompletionIsUnclearIsWhatTheObjectSays) {
  for (const bool ours : {true, false}) {
    UploadState state = Completing();
    EXPECT_EQ(Step(&state, Unclear{}), UploadAction::kLook);
    (void)Step(&state, Looked{ours});
    EXPECT_EQ(state.is, ours ? UploadStep::kDone : UploadStep::kBroken);
    EXPECT_EQ(Step(&state, GivenUp{}), ours ? UploadAction::kNone : UploadAction::kEnd);
  }
}

TEST(Upload, ThatWasRefusedOnceIsNeverCompleted) {
  UploadState state;
  Send(&state, 0);
  (void)Step(&state, PartIsFull{});
  (void)Step(&state, Refused{});
  EXPECT_EQ(state.is, UploadStep::kBroken);
  EXPECT_EQ(Step(&state, PartIsFull{}), UploadAction::kNone);
  EXPECT_EQ(state.is, UploadStep::kBroken);
  EXPECT_EQ(Step(&state, SyncedParts{1}), UploadAction::kNone);
  EXPECT_EQ(state.is, UploadStep::kBroken);
  EXPECT_EQ(Step(&state, GivenUp{}), UploadAction::kEnd);
  EXPECT_EQ(Step(&state, GivenUp{}), UploadAction::kNone);
}

TEST(Upload, WithoutAnIdHasNothingToEnd) {
  UploadState state;
  (void)Step(&state, PartIsFull{});
  (void)Step(&state, Unclear{});
  EXPECT_EQ(state.is, UploadStep::kBroken);
  EXPECT_EQ(Step(&state, GivenUp{}), UploadAction::kNone);
}

TEST(Upload, DoesNotTakeAPartTwice) {
  UploadState state;
  Send(&state, 0);
  EXPECT_EQ(Step(&state, PartSent{0, "another"}), UploadAction::kNone);
  EXPECT_EQ(state.is, UploadStep::kBroken);
}

}  // namespace
}  // namespace varve::upload_machine_test
