// Errors of the storage among writes of several threads.

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "crash/saves.h"

namespace varve::test::fault_test {
namespace {

constexpr const char* kPath = "runs/step-1";
TEST(StorageFaultAmongManyWrites, EndsTheSave) {
  // Three blocks of the pipeline and a header, written by several threads.
  const JobState old(1, 1);
  const JobState job(2, 1, 120'000);
  MemoryStorage base;
  ASSERT_TRUE(IsOk(SaveAlone(old, kPath, base, false)));
  std::uint64_t n = 0;
  for (; !testing::Test::HasFailure(); ++n) {
    const auto memory = base.AfterKill();
    FaultyStorage faulty(*memory);
    faulty.FailAt({Operation::kWrite, n, n % 2 == 1, {StatusCode::kOutOfSpace, "injected"}});
    const Status outcome = SaveAlone(job, kPath, faulty, true);
    if (outcome.ok()) {
      EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&job.content()}));
      break;
    }
    EXPECT_TRUE(FailsWith(outcome, StatusCode::kOutOfSpace, {"injected"}));
    EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&old.content()}));
    EXPECT_TRUE(HoldsNothingBut({kPath}, *memory));
  }
  EXPECT_GE(n, 6U);  // Data, header, manifest and record.
}

TEST(StorageFault, ARemovedDirectoryIsUnavailableAndNoMissingCheckpoint) {
  const JobState old(1, 1);
  const JobState job(2, 1);
  for (const bool overwrites : {false, true}) {
    MemoryStorage base;
    if (overwrites) {
      ASSERT_TRUE(IsOk(SaveAlone(old, kPath, base, false)));
    }
    for (const Operation operation : {Operation::kLock, Operation::kOpenForWrite,
                                      Operation::kRename, Operation::kSyncDirectory}) {
      std::uint64_t n = 0;
      for (;; ++n) {
        const auto memory = base.AfterKill();
        FaultyStorage faulty(*memory);
        faulty.FailAt({operation, n, true, {StatusCode::kNotFound, "injected"}});
        const Status outcome = SaveAlone(job, kPath, faulty, overwrites);
        if (outcome.ok()) {
          break;
        }
        EXPECT_TRUE(
            FailsWith(outcome, StatusCode::kUnavailable, {"injected", "removed or renamed"}))
            << OperationName(operation) << " " << n;
      }
      EXPECT_GE(n, 1U);
    }
  }
}

}  // namespace
}  // namespace varve::test::fault_test
