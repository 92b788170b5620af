#include <set>

#include <gtest/gtest.h>

#include "plan/load_plan.h"
#include "support/random.h"

namespace varve::schedule_reads_test {
namespace {

using test::Random;
using Ranges = std::vector<ByteRange>;

// Header of 4096 bytes, then ten blocks of 100 bytes, the last of 50.
constexpr BlockGeometry kFile{4096, 4096 + 950, 100};
constexpr std::uint64_t kNoLimit = 100'000;

ByteRange InData(std::uint64_t begin, std::uint64_t end) { return {4096 + begin, 4096 + end}; }

TEST(ScheduleReads, WidensToWholeBlocks) {
  EXPECT_EQ(ScheduleReads({InData(150, 151)}, kFile, 0, kNoLimit), Ranges{InData(100, 200)});
  EXPECT_EQ(ScheduleReads({InData(100, 200)}, kFile, 0, kNoLimit), Ranges{InData(100, 200)});
  EXPECT_EQ(ScheduleReads({InData(199, 201)}, kFile, 0, kNoLimit), Ranges{InData(100, 300)});
}

TEST(ScheduleReads, EndsWithTheFile) {
  EXPECT_EQ(ScheduleReads({InData(920, 930)}, kFile, 0, kNoLimit), Ranges{InData(900, 950)});
}

TEST(ScheduleReads, ReadsABlockOnceHoweverOftenItIsNeeded) {
  EXPECT_EQ(ScheduleReads({InData(50, 60), InData(0, 10), InData(5, 55)}, kFile, 0, kNoLimit),
            Ranges{InData(0, 100)});
}

TEST(ScheduleReads, JoinsAcrossGapsUpToTheLimit) {
  const Ranges needed{InData(0, 10), InData(310, 320)};
  EXPECT_EQ(ScheduleReads(needed, kFile, 200, kNoLimit), Ranges{InData(0, 400)});
  EXPECT_EQ(ScheduleReads(needed, kFile, 199, kNoLimit),
            (Ranges{InData(0, 100), InData(300, 400)}));
}

TEST(ScheduleReads, AnUnlimitedGapJoinsAll) {
  EXPECT_EQ(ScheduleReads({InData(0, 10), InData(910, 920)}, kFile, ~std::uint64_t{0}, kNoLimit),
            Ranges{InData(0, 950)});
}

TEST(ScheduleReads, CutsIntoUnits) {
  EXPECT_EQ(ScheduleReads({InData(0, 950)}, kFile, 0, 400),
            (Ranges{InData(0, 400), InData(400, 800), InData(800, 950)}));
}

TEST(ScheduleReads, SchedulesNothingForNothing) {
  EXPECT_TRUE(ScheduleReads({}, kFile, 0, 100).empty());
  EXPECT_TRUE(ScheduleReads({InData(300, 300)}, kFile, 0, 100).empty());
}

TEST(ScheduleReads, CoversTheNeededBlocksAndOnlySmallGapsForAnyInput) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    Ranges needed(random.Below(6));
    std::set<std::uint64_t> needed_blocks;
    for (ByteRange& range : needed) {
      const std::uint64_t begin = random.Below(950);
      const std::uint64_t end = random.Between(begin, std::min<std::uint64_t>(begin + 250, 950));
      range = InData(begin, end);
      for (std::uint64_t at = begin; at < end; ++at) {
        needed_blocks.insert(at / 100);
      }
    }
    const std::uint64_t gap = random.Below(4) * 100;
    const std::uint64_t unit = random.Between(1, 5) * 100;
    // Unneeded blocks between two needed ones are read if they are at most `gap` bytes.
    std::set<std::uint64_t> want = needed_blocks;
    for (auto at = needed_blocks.begin(); at != needed_blocks.end(); ++at) {
      const auto next = std::next(at);
      if (next != needed_blocks.end() && (*next - *at - 1) * 100 <= gap) {
        for (std::uint64_t block = *at; block < *next; ++block) {
          want.insert(block);
        }
      }
    }
    std::set<std::uint64_t> got;
    std::uint64_t last = 0;
    for (const ByteRange& range : ScheduleReads(needed, kFile, gap, unit)) {
      ASSERT_GE(range.begin, last) << "ascending and disjoint";
      ASSERT_LT(range.begin, range.end);
      ASSERT_LE(range.end - range.begin, unit);
      ASSERT_EQ((range.begin - 4096) % 100, 0U);
      ASSERT_TRUE((range.end - 4096) % 100 == 0 || range.end == kFile.file_size);
      last = range.end;
      for (std::uint64_t at = range.begin; at < range.end; at += 100) {
        got.insert((at - 4096) / 100);
      }
    }
    ASSERT_EQ(got, want) << "round " << round;
  }
}

}  // namespace
}  // namespace varve::schedule_reads_test
